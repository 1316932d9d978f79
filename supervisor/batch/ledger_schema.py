"""What the ledger holds: tables, statements, and the way from rows to structs and back.

batch     one row
run       one row for each process that ran the batch; its number is the ``epoch``
job       every job that was ever in the file
attempt   every attempt of a job; ``outcome`` is null while it runs
result    the verdicts, in the order in which they came, each with its line of ``results.jsonl``
base      the commit that a name stood for when a worktree of that repository was first asked for

Nothing here opens, waits or knows threads. Times are in seconds since 1970. Source: the batch contract, "Ledger".
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from protocol.usage import Usage
from supervisor.batch.core.outcome import AttemptEnd
from supervisor.batch.core.words import Outcome, Status
from supervisor.store.schema import Write

APPLICATION_ID = 0x43424154
"""``CBAT``."""
SCHEMA_VERSION = 1

SCHEMA = (
    "CREATE TABLE batch (batch_id TEXT NOT NULL, created REAL NOT NULL, version TEXT NOT NULL, job_file_sha TEXT)",
    """CREATE TABLE run (epoch INTEGER PRIMARY KEY, pid INTEGER NOT NULL, pid_start TEXT, host TEXT NOT NULL,
        argv TEXT NOT NULL, started REAL NOT NULL, ended REAL, exit_code INTEGER, reason TEXT)""",
    """CREATE TABLE job (id TEXT PRIMARY KEY, ord INTEGER NOT NULL, spec_json BLOB NOT NULL, spec_sha TEXT NOT NULL,
        state TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'running', 'done')),
        retries_used INTEGER NOT NULL DEFAULT 0, lost_count INTEGER NOT NULL DEFAULT 0, not_before REAL)""",
    """CREATE TABLE attempt (job_id TEXT NOT NULL REFERENCES job, n INTEGER NOT NULL,
        epoch INTEGER NOT NULL REFERENCES run, outcome TEXT, reason TEXT NOT NULL DEFAULT '', pid INTEGER,
        pid_start TEXT, exit_code INTEGER, signal INTEGER, session_id TEXT, usage BLOB, usage_by_agent BLOB,
        uncertain_calls INTEGER NOT NULL DEFAULT 0, started REAL NOT NULL, ended REAL, workdir TEXT, patch_sha TEXT,
        PRIMARY KEY (job_id, n))""",
    "CREATE TABLE result (job_id TEXT PRIMARY KEY REFERENCES job, status TEXT NOT NULL, line BLOB NOT NULL)",
    """CREATE TABLE base (repository TEXT NOT NULL, name TEXT NOT NULL, sha TEXT NOT NULL,
        PRIMARY KEY (repository, name))""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
"""What makes an empty file a ledger; to be run in one transaction."""


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the ledger has it."""

    id: str
    order: int
    spec_json: bytes
    spec_sha: str
    state: str
    retries_used: int
    lost_count: int
    not_before: float | None


class StoredAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt; ``outcome`` None: it runs, or its runner died. ``workdir`` is a path in the batch's folder."""

    job_id: str
    n: int
    epoch: int
    outcome: Outcome | None
    reason: str
    pid: int | None
    pid_start: str | None
    exit_code: int | None
    signal: int | None
    session_id: str | None
    usage: Usage
    usage_by_agent: dict[str, Usage]
    uncertain_calls: int
    started: float
    ended: float | None
    workdir: str | None
    patch_sha: str | None


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """One process's run of the batch; ``ended`` None: it runs, or was killed."""

    epoch: int
    pid: int
    host: str
    started: float
    ended: float | None
    exit_code: int | None
    reason: str | None


class StoredResult(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict and its line, without the line end."""

    job_id: str
    status: Status
    line: bytes


SELECT_BATCH = "SELECT batch_id FROM batch"
SELECT_RUNS = "SELECT epoch, pid, host, started, ended, exit_code, reason FROM run ORDER BY epoch"
SELECT_JOBS = """SELECT id, ord, spec_json, spec_sha, state, retries_used, lost_count, not_before FROM job
    ORDER BY ord, id"""
SELECT_ATTEMPTS = """SELECT job_id, n, epoch, outcome, reason, pid, pid_start, exit_code, signal, session_id, usage,
    usage_by_agent, uncertain_calls, started, ended, workdir, patch_sha FROM attempt ORDER BY job_id, n"""
SELECT_RESULTS = "SELECT job_id, status, line FROM result ORDER BY rowid"
SELECT_BASES = "SELECT repository, name, sha FROM base"

_usage_decoder = msgspec.json.Decoder(Usage)
_by_agent_decoder = msgspec.json.Decoder(dict[str, Usage])


def read_usage(body: bytes | None) -> Usage:
    """The usage in a column; nothing used where nothing stands."""
    return Usage() if body is None else _usage_decoder.decode(body)


def read_usage_by_agent(body: bytes | None) -> dict[str, Usage]:
    """The usage by agent in a column."""
    return {} if body is None else _by_agent_decoder.decode(body)


# -- writes -----------------------------------------------------------------------------------------------------------


def begin_batch(batch_id: str, now: float, version: str, job_file_sha: str) -> Write:
    """The one row of a new ledger."""
    return "INSERT INTO batch VALUES (?, ?, ?, ?)", (batch_id, now, version, job_file_sha)


def begin_run(epoch: int, pid: int, pid_start: str | None, host: str, argv: list[str], now: float) -> Write:
    """A process takes the batch up."""
    sql = "INSERT INTO run (epoch, pid, pid_start, host, argv, started) VALUES (?, ?, ?, ?, ?, ?)"
    return sql, (epoch, pid, pid_start, host, msgspec.json.encode(argv).decode(), now)


def end_run(epoch: int, exit_code: int, reason: str, now: float) -> Write:
    """The process ends as it should."""
    return "UPDATE run SET ended = ?, exit_code = ?, reason = ? WHERE epoch = ?", (now, exit_code, reason, epoch)


def put_job(job_id: str, order: int, spec_json: bytes, spec_sha: str) -> Write:
    """A job of the file: a new one, or a known one at its present place and with its present spec."""
    sql = """INSERT INTO job (id, ord, spec_json, spec_sha) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE
        SET ord = excluded.ord, spec_json = excluded.spec_json, spec_sha = excluded.spec_sha"""
    return sql, (job_id, order, spec_json, spec_sha)


def put_base(repository: str, name: str, sha: str) -> Write:
    """What a name stands for, for the whole life of the batch."""
    return "INSERT OR IGNORE INTO base VALUES (?, ?, ?)", (repository, name, sha)


def drop_verdict(job_id: str) -> list[Write]:
    """The job begins anew; its attempts stay."""
    sql = "UPDATE job SET state = 'pending', retries_used = 0, lost_count = 0, not_before = NULL WHERE id = ?"
    return [("DELETE FROM result WHERE job_id = ?", (job_id,)), (sql, (job_id,))]


def begin_attempt(job_id: str, n: int, epoch: int, workdir: str | None, now: float) -> list[Write]:
    """An attempt begins. Source: rule L1, before its worker is started."""
    sql = "INSERT INTO attempt (job_id, n, epoch, workdir, started) VALUES (?, ?, ?, ?, ?)"
    return [
        (sql, (job_id, n, epoch, workdir, now)),
        ("UPDATE job SET state = 'running', not_before = NULL WHERE id = ?", (job_id,)),
    ]


def know_session(job_id: str, n: int, session_id: str) -> Write:
    """The session that the attempt is stored in."""
    return "UPDATE attempt SET session_id = ? WHERE job_id = ? AND n = ?", (session_id, job_id, n)


def know_process(job_id: str, n: int, pid: int, pid_start: str | None) -> Write:
    """The process of the attempt's root agent."""
    return "UPDATE attempt SET pid = ?, pid_start = ? WHERE job_id = ? AND n = ?", (pid, pid_start, job_id, n)


def put_usage(job_id: str, n: int, usage: Usage, by_agent: Mapping[str, Usage], uncertain: int) -> Write:
    """What the attempt has used so far."""
    sql = "UPDATE attempt SET usage = ?, usage_by_agent = ?, uncertain_calls = ? WHERE job_id = ? AND n = ?"
    return sql, (msgspec.json.encode(usage), msgspec.json.encode(by_agent), uncertain, job_id, n)


def end_attempt(
    job_id: str, n: int, end: AttemptEnd, now: float, exit_code: int | None = None, signal: int | None = None
) -> Write:
    """An attempt ends."""
    sql = """UPDATE attempt SET outcome = ?, reason = ?, exit_code = ?, signal = ?, ended = ?
        WHERE job_id = ? AND n = ?"""
    return sql, (end.outcome, end.reason, exit_code, signal, now, job_id, n)


def put_patch(job_id: str, n: int, sha: str) -> Write:
    """The patch of the attempt is on the disk, with this SHA-256."""
    return "UPDATE attempt SET patch_sha = ? WHERE job_id = ? AND n = ?", (sha, job_id, n)


def forget_workdir(job_id: str, n: int) -> Write:
    """The work folder of the attempt is gone."""
    return "UPDATE attempt SET workdir = NULL WHERE job_id = ? AND n = ?", (job_id, n)


def put_back(job_id: str, retries_used: int, lost_count: int | None, not_before: float | None) -> Write:
    """The job is pending again; ``lost_count`` None: as it was."""
    sql = """UPDATE job SET state = 'pending', retries_used = ?, lost_count = coalesce(?, lost_count), not_before = ?
        WHERE id = ?"""
    return sql, (retries_used, lost_count, not_before, job_id)


def put_verdict(job_id: str, status: Status, line: bytes, retries_used: int) -> list[Write]:
    """A verdict, with the whole text of its line. Source: rule L2."""
    return [
        ("INSERT INTO result (job_id, status, line) VALUES (?, ?, ?)", (job_id, status, line)),
        ("UPDATE job SET state = 'done', retries_used = ? WHERE id = ?", (retries_used, job_id)),
    ]
