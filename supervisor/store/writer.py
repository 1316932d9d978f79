"""The thread that writes: one connection, one transaction at a time, many writes in each.

Writes that come while a transaction is being written wait and go into the next one together: a commit costs an fsync,
and agents that work at once share it. A write is never split over two transactions.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress

import trio

from supervisor.errors import StorageFailed, StoreCorrupt
from supervisor.store.schema import Write


class Ticket:
    """A write on its way to the disk."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._is_done = False
        self._failure: StorageFailed | None = None
        self._waiters: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []

    @property
    def done(self) -> bool:
        """Whether the write is on the disk, or is known never to get there."""
        return self._is_done

    async def wait(self) -> None:
        """Return when the write and all before it are on the disk; raise `StorageFailed` if it can't get there.

        Cancelling the wait leaves the write on its way. Any number of tasks may wait.
        """
        event = trio.Event()
        with self._lock:
            if not self._is_done:
                self._waiters.append((trio.lowlevel.current_trio_token(), event))
            else:
                event.set()
        await event.wait()
        if self._failure is not None:
            raise self._failure

    async def wait_quietly(self) -> None:
        """As `wait`, but a failure is no exception: for the last writes of a run that ends anyway."""
        with suppress(StorageFailed):
            await self.wait()

    def settle(self, failure: StorageFailed | None) -> list[tuple[trio.lowlevel.TrioToken, trio.Event]]:
        """Say how it went, with the lock held; return whom to wake. For the writer only."""
        self._failure = failure
        self._is_done = True
        waiters, self._waiters = self._waiters, []
        return waiters


class Writer:
    """Carries out writes on a thread of its own, in the order in which they were submitted.

    The connection belongs to that thread until `close`. After the first failure nothing is written any more and every
    later write fails like it.
    """

    def __init__(self, connection: sqlite3.Connection, source: str) -> None:
        """``source`` is what errors call the database, its path."""
        self._connection = connection
        self._source = source
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue: list[tuple[Sequence[Write], Ticket]] = []
        self._closing = False
        self._failure: StorageFailed | None = None
        self._thread = threading.Thread(target=self._write_all, name="session-store", daemon=True)
        self._thread.start()

    def submit(self, writes: Sequence[Write]) -> Ticket:
        """Queue ``writes``, to be done all or none; never blocks. To push back, wait for the ticket."""
        with self._lock:
            ticket = Ticket(self._lock)
            if self._failure is not None:
                ticket.settle(self._failure)
            elif self._closing:
                ticket.settle(StorageFailed(f"{self._source} is closed"))
            else:
                self._queue.append((writes, ticket))
                self._changed.notify()
        return ticket

    @property
    def failure(self) -> StorageFailed | None:
        """The first failure."""
        return self._failure

    def close(self) -> None:
        """Write what is queued, end the thread and close the connection; blocks until then. May be called twice."""
        with self._lock:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _write_all(self) -> None:
        while batch := self._next_batch():
            failure = self._failure or self._commit(writes for writes, _ in batch)
            self._settle([ticket for _, ticket in batch], failure)
        with suppress(sqlite3.Error):  # closing copies the log into the database; else the next open does it
            self._connection.close()

    def _next_batch(self) -> list[tuple[Sequence[Write], Ticket]]:
        """All that is queued, as soon as there is anything; nothing once the writer is closing."""
        with self._lock:
            while not self._queue and not self._closing:
                self._changed.wait()
            batch, self._queue = self._queue, []
            return batch

    def _commit(self, batch: Iterable[Sequence[Write]]) -> StorageFailed | None:
        try:
            run_transaction(self._connection, [write for writes in batch for write in writes])
        except Exception as error:  # a defect here must not leave the waiting agents waiting
            return storage_failure(error, self._source)
        return None

    def _settle(self, tickets: list[Ticket], failure: StorageFailed | None) -> None:
        to_wake: defaultdict[trio.lowlevel.TrioToken, list[trio.Event]] = defaultdict(list)
        with self._lock:
            self._failure = failure
            for ticket in tickets:
                for token, event in ticket.settle(failure):
                    to_wake[token].append(event)
        for token, events in to_wake.items():
            with suppress(trio.RunFinishedError):  # those who waited are gone
                token.run_sync_soon(_set_all, events)


def _set_all(events: list[trio.Event]) -> None:
    for event in events:
        event.set()


def run_transaction(connection: sqlite3.Connection, writes: Iterable[Write]) -> None:
    """Carry out ``writes``, all or none; raises `sqlite3.Error`. The connection is in autocommit mode."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for sql, parameters in writes:
            connection.execute(sql, parameters)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def storage_failure(error: Exception, source: str) -> StorageFailed:
    """``error`` as one of ours; ``source`` is the path of the database. Source: SQLite, "Result and Error Codes"."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorrupt(f"{source} is damaged ({error}): start a new session, or restore the file")
    if primary == sqlite3.SQLITE_FULL:
        return StorageFailed(f"{source} can't grow, the disk is full: make room and resume the session", full=True)
    return StorageFailed(f"{source} can't be written: {error}")
