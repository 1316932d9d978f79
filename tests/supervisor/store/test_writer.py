"""The writing thread: writes that come together are committed together, in order, all or none."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
import trio

from supervisor.errors import StorageFailed, StoreCorrupt
from supervisor.store.writer import Writer, storage_failure

SECONDS = 30.0


class Gate:
    """Holds the writer at its first transaction until it is opened, and keeps what it executes."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, statement: str) -> None:
        self.statements.append(statement)
        if statement.startswith("BEGIN"):
            self.reached.set()
            assert self.open.wait(SECONDS)


@pytest.fixture
def connection(tmp_path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(tmp_path / "x.db", isolation_level=None, check_same_thread=False)
    connection.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY)")
    return connection


def insert(number: int) -> tuple[str, tuple[int]]:
    return ("INSERT INTO numbers VALUES (?)", (number,))


def stored(folder: Path) -> list[int]:
    connection = sqlite3.connect(folder / "x.db")
    found = [number for (number,) in connection.execute("SELECT number FROM numbers ORDER BY rowid")]
    connection.close()
    return found


def test_writes_that_wait_for_a_transaction_share_the_next_one(connection: sqlite3.Connection, tmp_path: Path) -> None:
    gate = Gate()
    connection.set_trace_callback(gate)
    writer = Writer(connection, "x.db")
    writer.submit([insert(0)])
    assert gate.reached.wait(SECONDS)
    tickets = [writer.submit([insert(number)]) for number in range(1, 100)]
    assert not any(ticket.done for ticket in tickets)
    gate.open.set()
    writer.close()
    assert [line for line in gate.statements if line.startswith("BEGIN")] == ["BEGIN IMMEDIATE"] * 2
    assert stored(tmp_path) == list(range(100))


async def test_a_write_that_fails_half_way_is_undone(connection: sqlite3.Connection, tmp_path: Path) -> None:
    writer = Writer(connection, "x.db")
    await writer.submit([insert(1)]).wait()
    with trio.fail_after(SECONDS), pytest.raises(StorageFailed, match=r"x\.db can't be written"):
        await writer.submit([insert(2), insert(1)]).wait()
    writer.close()
    assert stored(tmp_path) == [1]


async def test_a_defect_fails_the_write_and_does_not_hang_those_who_wait(connection: sqlite3.Connection) -> None:
    writer = Writer(connection, "x.db")
    with trio.fail_after(SECONDS), pytest.raises(StorageFailed):
        await writer.submit([("INSERT INTO numbers VALUES (?)", (10**30,))]).wait()
    writer.close()


async def test_submitting_never_blocks_while_the_disk_does(connection: sqlite3.Connection) -> None:
    gate = Gate()
    connection.set_trace_callback(gate)
    writer = Writer(connection, "x.db")
    with trio.fail_after(SECONDS):
        ticket = writer.submit([insert(1)])
        await trio.to_thread.run_sync(gate.reached.wait, SECONDS)
        last = writer.submit([insert(2)])
        assert not ticket.done
        gate.open.set()
        await last.wait()
        assert ticket.done
    writer.close()


def test_the_end_of_trio_does_not_disturb_the_thread(connection: sqlite3.Connection, tmp_path: Path) -> None:
    """A task that waits is cancelled and trio ends, with its write still under way."""
    gate = Gate()
    connection.set_trace_callback(gate)
    writer = Writer(connection, "x.db")

    async def give_up() -> None:
        with trio.CancelScope() as scope:
            ticket = writer.submit([insert(1)])
            scope.cancel()
            await ticket.wait()

    trio.run(give_up)
    gate.open.set()
    writer.close()
    assert writer.failure is None
    assert stored(tmp_path) == [1]


async def test_a_database_that_can_not_grow_is_full(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE texts (text)")
    connection.execute("PRAGMA max_page_count = 8")
    writer = Writer(connection, "x.db")
    with trio.fail_after(SECONDS), pytest.raises(StorageFailed, match="the disk is full") as caught:
        await writer.submit([("INSERT INTO texts VALUES (?)", ("x" * 100_000,))]).wait()
    assert caught.value.code == "storage_full"
    writer.close()


def test_sqlite_s_errors_become_ours() -> None:
    def error(code: int) -> sqlite3.Error:
        found = sqlite3.OperationalError("words")
        found.sqlite_errorcode = code
        return found

    full = storage_failure(error(sqlite3.SQLITE_FULL), "x.db")
    assert (type(full), full.code) == (StorageFailed, "storage_full")
    io_error = storage_failure(error(sqlite3.SQLITE_IOERR_WRITE), "x.db")
    assert (type(io_error), io_error.code) == (StorageFailed, "storage_failed")
    assert type(storage_failure(error(sqlite3.SQLITE_CORRUPT_INDEX), "x.db")) is StoreCorrupt
    assert type(storage_failure(error(sqlite3.SQLITE_NOTADB), "x.db")) is StoreCorrupt
