"""The public lines of a batch: on stdout with ``stream-json``, and in ``results.jsonl``.

Times are ISO 8601 in UTC, durations in milliseconds. ``cost_usd`` is null: there are no prices yet. Source: the batch
contract, "Result line" and "Output".
"""

from __future__ import annotations

import msgspec

from protocol.records import Record
from protocol.usage import Usage
from supervisor.batch.core.words import EndReason, Outcome, Status

RESULT_VERSION = 1


class AttemptLine(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a job. ``signal`` is the number of the signal that ended its root agent's process.

    ``usage`` is that of all its agents. ``epoch`` is the run of the batch that it was made in.
    """

    n: int
    epoch: int
    outcome: Outcome
    reason: str
    exit_code: int | None
    signal: int | None
    started_at: str
    ended_at: str
    usage: Usage


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What ``patch.diff`` changes; binary files count as files only."""

    files: int
    insertions: int
    deletions: int


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the job's check ended; null where it had to be killed at its time limit."""

    exit_code: int | None


class JobResult(Record, frozen=True, kw_only=True, tag="job_result"):
    """A verdict: one for each job that has one.

    ``usage`` is the sum over all attempts, those that crashed or were lost too; ``uncertain_calls`` may have been
    billed besides. ``wall_ms`` is the time of all attempts, ``queue_ms`` from the start of this run of the batch to the
    first attempt in it. ``patch`` and ``log`` are paths in the batch's folder. ``metadata`` is what stood in the job
    file.
    """

    v: int = RESULT_VERSION
    batch_id: str
    id: str
    index: int
    status: Status
    reason: str
    success: bool
    response: str
    response_truncated: bool
    session_id: str | None
    provider: str
    model: str
    attempt: int
    retries_used: int
    attempts: tuple[AttemptLine, ...]
    usage: Usage
    usage_by_agent: dict[str, Usage]
    uncertain_calls: int
    cost_usd: float | None
    wall_ms: int
    queue_ms: int
    started_at: str
    ended_at: str
    cwd: str
    isolation: str
    base: str | None
    patch: str | None
    changes: Changes | None
    check: CheckResult | None
    log: str | None
    host: str
    spec_sha256: str
    tags: tuple[str, ...]
    metadata: msgspec.Raw


class BatchStart(Record, frozen=True, kw_only=True, tag="batch_start"):
    """A run of the batch begins. ``resumed`` says that there was one before it."""

    batch_id: str
    total: int
    pending: int
    resumed: bool


class JobStart(Record, frozen=True, kw_only=True, tag="job_start"):
    """The root agent of an attempt has its process."""

    id: str
    attempt: int
    pid: int


class JobRetry(Record, frozen=True, kw_only=True, tag="job_retry"):
    """A job is tried again after ``delay_ms``; ``class`` says what for."""

    id: str
    attempt: int
    kind: str = msgspec.field(name="class")
    delay_ms: int


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs by verdict; ``pending`` have none."""

    total: int = 0
    ok: int = 0
    failed: int = 0
    check_failed: int = 0
    timeout: int = 0
    budget: int = 0
    crashed: int = 0
    pending: int = 0


class BatchProgress(Record, frozen=True, kw_only=True, tag="batch_progress"):
    """How far the batch is; ``eta_ms`` is null before there is anything to judge by."""

    counts: Counts
    running: int
    retries: int
    usage: Usage
    eta_ms: int | None


class BatchSummary(Record, frozen=True, kw_only=True, tag="batch_summary"):
    """How the batch stands at the end of a run, over all runs. ``not_run`` counts the jobs without a verdict."""

    batch_id: str
    counts: Counts
    usage: Usage
    uncertain_calls: int
    cost_usd: float | None
    not_run: int
    exit_code: int | None
    reason: EndReason | None


class StoredSummary(BatchSummary, frozen=True, kw_only=True, tag="batch_summary"):
    """What ``summary.json`` holds; ``orphaned`` are jobs that are not in the file any more.

    While the batch runs ``exit_code`` and ``reason`` are null.
    """

    orphaned: tuple[str, ...]


result_decoder: msgspec.json.Decoder[JobResult] = msgspec.json.Decoder(JobResult)
