"""The ledger: the one truth of a batch, in SQLite, written by a thread of its own.

Source: the batch contract, "Ledger"; SQLite, "Write-Ahead Logging" (which needs shared memory, so no network file
system).
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from protocol.version import installed_version
from supervisor.batch import ledger_schema as schema
from supervisor.batch.ledger_schema import StoredAttempt, StoredJob, StoredResult, StoredRun
from supervisor.errors import StorageFailed, StoreCorrupt, StoreNewer
from supervisor.store.schema import Write
from supervisor.store.writer import Ticket, Writer, run_transaction

FILE_NAME = "ledger.db"
BUSY_SECONDS = 5.0

_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "ceph", "gluster", "lustre", "afs")


class LedgerState(msgspec.Struct, frozen=True, kw_only=True):
    """All that a ledger says at one moment."""

    batch_id: str
    runs: tuple[StoredRun, ...]
    jobs: dict[str, StoredJob]
    attempts: dict[str, tuple[StoredAttempt, ...]]
    results: dict[str, StoredResult]
    bases: dict[tuple[str, str], str]

    @property
    def epoch(self) -> int:
        """The number of the last run."""
        return self.runs[-1].epoch if self.runs else 0


def read_ledger(folder: Path) -> LedgerState | None:
    """What the ledger in ``folder`` says; None where there is none. Nothing is written.

    Raises `StoreCorrupt`, `StoreNewer` or `StorageFailed`. The whole file is checked where its last run did not end.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with _translated(path), closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as connection:
        connection.execute("BEGIN")  # one view of all tables
        return _read(connection, path) if _is_ledger(connection, path) else None


def _read(connection: sqlite3.Connection, path: Path) -> LedgerState:
    row = connection.execute(schema.SELECT_BATCH).fetchone()
    if row is None:
        raise StoreCorrupt(f"{path} holds no batch: take another folder with --out")
    runs = tuple(
        StoredRun(epoch=epoch, pid=pid, host=host, started=started, ended=ended, exit_code=code, reason=reason)
        for epoch, pid, host, started, ended, code, reason in connection.execute(schema.SELECT_RUNS)
    )
    if not runs or runs[-1].ended is None:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StoreCorrupt(f"{path} is damaged ({verdict}): restore it, or take another folder with --out")
    attempts: dict[str, list[StoredAttempt]] = {}
    for values in connection.execute(schema.SELECT_ATTEMPTS):
        attempt = _attempt(values)
        attempts.setdefault(attempt.job_id, []).append(attempt)
    return LedgerState(
        batch_id=row[0],
        runs=runs,
        jobs={values[0]: _job(values) for values in connection.execute(schema.SELECT_JOBS)},
        attempts={job_id: tuple(found) for job_id, found in attempts.items()},
        results={
            job_id: StoredResult(job_id=job_id, status=status, line=bytes(line))
            for job_id, status, line in connection.execute(schema.SELECT_RESULTS)
        },
        bases={(repository, name): sha for repository, name, sha in connection.execute(schema.SELECT_BASES)},
    )


class Ledger:
    """The ledger, open for writing. Writes are queued and never block; each is one transaction.

    After the first failure every later write fails like it. For the one process that has the folder's lock.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, batch_id: str, epoch: int) -> None:
        self.batch_id = batch_id
        self.epoch = epoch
        self._path = path
        self._writer = Writer(connection, str(path))

    @classmethod
    def open(cls, folder: Path, state: LedgerState | None, rows: Sequence[Write], job_file_sha: str) -> Ledger:
        """Open the ledger that ``state`` was read from, or make a new one, and write ``rows``.

        Raises `StorageFailed`. Blocks for a few milliseconds: when it returns, all of it is on the disk.
        """
        path = folder / FILE_NAME
        batch_id, epoch = (state.batch_id, state.epoch + 1) if state else (_new_batch_id(), 1)
        first: list[Write] = []
        if state is None:
            first = [*((sql, ()) for sql in schema.SCHEMA)]
            first.append(schema.begin_batch(batch_id, time.time(), installed_version(), job_file_sha))
        with _translated(path):
            if state is None:
                for ending in ("", "-wal", "-shm"):  # of one that was being made when its runner died
                    path.with_name(path.name + ending).unlink(missing_ok=True)
                # SQLite gives its other files the mode of this one.
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            connection = _connect(path)
            try:
                run_transaction(connection, [*first, *rows])
            except BaseException:
                connection.close()
                raise
        return cls(connection, path, batch_id, epoch)

    def write(self, *writes: Write) -> Ticket:
        """Queue ``writes``, to be done all or none."""
        return self._writer.submit(writes)

    @property
    def failure(self) -> StorageFailed | None:
        """What every write fails with since the first one did."""
        return self._writer.failure

    def explain(self, failure: StorageFailed) -> str:
        """``failure`` of a write in a sentence that says what to do."""
        if failure.code == "storage_full":
            return f"{self._path} can't grow, the disk is full: make room and start the batch again"
        return f"{self._path} can't be written; start the batch again once that is mended ({failure})"

    def close(self) -> None:
        """Write what is queued and close the file. Blocks; never raises; may be repeated."""
        self._writer.close()


def is_on_network(folder: Path, mounts: Callable[[], str] = lambda: Path("/proc/mounts").read_text()) -> bool:
    """Whether ``folder`` lies on a network file system, as far as the system tells. Source: proc(5), /proc/mounts."""
    try:
        lines = mounts().splitlines()
        place = str(folder.resolve())
    except OSError:
        return False
    best, kind = "", ""
    for line in lines:
        _, point, found, *_ = line.split(" ", 3)
        point = point.replace("\\040", " ")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind.startswith(_NETWORK_FILE_SYSTEMS)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA journal_mode = {'DELETE' if is_on_network(path.parent) else 'WAL'}")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _is_ledger(connection: sqlite3.Connection, path: Path) -> bool:
    """False for a database that is empty: its runner died while it was being made."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and tables == 0:
        return False
    if application != schema.APPLICATION_ID:
        raise StoreCorrupt(f"{path} is no ledger of a batch: take another folder with --out")
    if version > schema.SCHEMA_VERSION:
        raise StoreNewer(f"{path} was written by a newer corral (format {version}): update corral to go on with it")
    return True


def _new_batch_id() -> str:
    return f"b-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def _job(values: Sequence[object]) -> StoredJob:
    names = ("id", "order", "spec_json", "spec_sha", "state", "retries_used", "lost_count", "not_before")
    return msgspec.convert(dict(zip(names, values, strict=True)), StoredJob, strict=False)


def _attempt(values: Sequence[object]) -> StoredAttempt:
    names = tuple(field.name for field in msgspec.structs.fields(StoredAttempt))
    fields = dict(zip(names, values, strict=True))
    usage, by_agent = fields["usage"], fields["usage_by_agent"]
    fields["usage"] = schema.read_usage(usage if isinstance(usage, bytes) else None)
    fields["usage_by_agent"] = schema.read_usage_by_agent(by_agent if isinstance(by_agent, bytes) else None)
    return msgspec.convert(fields, StoredAttempt, strict=False)


@contextmanager
def _translated(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except StorageFailed:
        raise
    except sqlite3.Error as error:
        raise _failure(error, path) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreCorrupt(
            f"{path} holds a row that can't be read ({error}): take another folder with --out"
        ) from error
    except OSError as error:
        raise StorageFailed(f"{path} can't be made: {error.strerror or error}") from error


def _failure(error: sqlite3.Error, path: Path) -> StorageFailed:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorrupt(f"{path} is damaged ({error}): restore it, or take another folder with --out")
    if code == sqlite3.SQLITE_FULL:
        return StorageFailed(f"{path} can't grow, the disk is full: make room and start the batch again", full=True)
    return StorageFailed(f"{path} can't be used: {error}")
