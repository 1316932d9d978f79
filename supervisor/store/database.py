"""Opening a session's database: a new one, and a stored one that is looked at before anything is written to it.

Source: SQLite, "Write-Ahead Logging", "URI Filenames" and the pragmas named in the code.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from protocol.content import Message
from supervisor.errors import StorageFailed, StoreCorrupt, StoreNewer
from supervisor.store import schema
from supervisor.store.schema import Value, Write
from supervisor.store.writer import run_transaction, storage_failure

BUSY_SECONDS = 5.0
"""How long to wait for a lock of another connection: one that only reads, as the lock file keeps writers out."""


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """What the process before left. ``uncertain`` is empty where it ended as it should, else it has each agent that
    lived and the number of its model calls whose fate nobody knows."""

    epoch: int
    ended_cleanly: bool
    uncertain: tuple[tuple[str, int], ...] = ()


def create_database(path: Path, first_rows: list[Write]) -> sqlite3.Connection:
    """Make a session of the empty file; raises `StorageFailed`."""
    with _translated(path):
        connection = _connect(path)
        run_transaction(connection, [*((sql, ()) for sql in schema.SCHEMA), *first_rows])
        return connection


def open_database(path: Path, first_rows: list[Write]) -> sqlite3.Connection:
    """Open a session that `look_at` has found sound, and write ``first_rows``; raises `StorageFailed`."""
    with _translated(path):
        connection = _connect(path)
        run_transaction(connection, first_rows)
        return connection


def look_at(path: Path) -> LastRun:
    """Check a stored session without writing to it; raises `StoreCorrupt`, `StoreNewer` or `StorageFailed`.

    The whole file is checked only where the run before did not end cleanly: that takes time in proportion to its size.
    """
    with reading(path) as connection:
        check_kind(connection, path)
        row = connection.execute(schema.SELECT_LAST_RUN).fetchone()
        if row is None:
            raise StoreCorrupt(f"{path} holds no run of a session: start a new session")
        epoch, ended = row
        if ended is not None:
            return LastRun(epoch=epoch, ended_cleanly=True)
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StoreCorrupt(f"{path} is damaged ({verdict}): start a new session, or restore the file")
        living = [agent_id for (agent_id,) in connection.execute(schema.SELECT_LIVING_AGENTS)]
        uncertain = tuple((agent_id, _calls_in_flight(connection, agent_id, epoch)) for agent_id in living)
        return LastRun(epoch=epoch, ended_cleanly=False, uncertain=uncertain)


def read_history(path: Path, agent_id: str) -> tuple[Message, ...]:
    """The committed transcript of an agent; raises `StorageFailed`."""
    with reading(path) as connection:
        return schema.read_history(connection.execute(schema.SELECT_HISTORY, (agent_id,)))


def read_number(path: Path, sql: str, *parameters: Value) -> int:
    """The one number that ``sql`` selects, 0 for no row; raises `StorageFailed`."""
    with reading(path) as connection:
        row = connection.execute(sql, parameters).fetchone()
        return int(row[0]) if row is not None else 0


@contextmanager
def reading(path: Path) -> Generator[sqlite3.Connection, None, None]:
    """A connection that can't write, on the calling thread; what goes wrong inside becomes `StorageFailed`.

    Read only, it does not copy the log of a crashed process into the database either.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with _translated(path), closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as connection:
        yield connection


def _connect(path: Path) -> sqlite3.Connection:
    """A connection in autocommit mode that may be handed to another thread."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def check_kind(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `StoreCorrupt` for what is no session of ours and `StoreNewer` for a format that we do not know."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != schema.APPLICATION_ID:
        raise StoreCorrupt(f"{path} is no session of corral: start a new session")
    if version > schema.SCHEMA_VERSION:
        raise StoreNewer(f"{path} was written by a newer corral (format {version}): update corral to resume it")


def _calls_in_flight(connection: sqlite3.Connection, agent_id: str, epoch: int) -> int:
    last = schema.read_history(connection.execute(schema.SELECT_LAST_MESSAGE, (agent_id, epoch)))
    return schema.calls_in_flight(last[0] if last else None)


@contextmanager
def _translated(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except StorageFailed:
        raise
    except sqlite3.Error as error:
        raise storage_failure(error, str(path)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreCorrupt(f"{path} holds an item that can't be read ({error}): start a new session") from error
