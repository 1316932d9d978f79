"""A stored session: who worked in it, what was said, and what it used.

One process holds a session at a time. Writes are queued and never block, each is one transaction; reads see what is
committed.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from protocol.codec import clean_text
from protocol.content import Message
from protocol.frames import ExternalSession
from protocol.records import AgentOutcome
from protocol.usage import Usage
from supervisor.errors import StorageFailed
from supervisor.store import schema
from supervisor.store.database import create_database, look_at, open_database, read_history, read_number, reading
from supervisor.store.folder import DATABASE, SessionLock, find_session, make_session_folder
from supervisor.store.writer import Ticket, Writer

__all__ = ["SessionStore", "Ticket"]


class SessionStore:
    """The store of one session, open in this process until `close`. Made by `create` or `open`.

    ``epoch`` is 1 for the process that began the session and one more for each that takes it up. The lock and the
    connection don't survive a fork: open the store after it. The writing methods return a `Ticket` at once; to push
    back, wait for it. After the first failure every later ticket fails like it.
    """

    def __init__(self, folder: Path, lock: SessionLock, connection: sqlite3.Connection, epoch: int) -> None:
        """For `create` and `open`; takes over the lock and the connection."""
        self.session_id = folder.name
        self.epoch = epoch
        self.main_agent_id = schema.MAIN_AGENT_ID
        self._path = folder / DATABASE
        self._lock: SessionLock | None = lock
        self._writer = Writer(connection, str(self._path))

    @classmethod
    def create(cls, home: Path, *, project_root: Path, provider: str, model: str, agent_name: str) -> SessionStore:
        """Begin a session with its main agent; ``home`` is corral's state folder. Raises `StorageFailed`.

        Blocks for a few milliseconds: when it returns, the session is on the disk.
        """
        folder = make_session_folder(home, datetime.now(UTC), secrets.randbits(24))
        lock = SessionLock(folder)
        now = time.time()
        try:
            rows = [
                *schema.begin_session(
                    folder.name,
                    now,
                    project_root=clean_text(str(project_root)),
                    provider=provider,
                    model=model,
                    agent_name=agent_name,
                ),
                *schema.begin_run(1, os.getpid(), now),
                *schema.add_agent(schema.MAIN_AGENT_ID, 1, None, None, agent_name, ""),
            ]
            connection = create_database(folder / DATABASE, rows)
        except BaseException:
            lock.release()
            raise
        return cls(folder, lock, connection, 1)

    @classmethod
    def open(cls, home: Path, session_id: str) -> SessionStore:
        """Take up a stored session in a new epoch.

        Raises `UnknownSession`, `SessionLocked`, `StoreCorrupt` or `StoreNewer` (both leave the file untouched) or
        `StorageFailed`. A run before that did not end is marked as crashed, and so are the agents that lived in it.
        """
        folder = find_session(home, session_id)
        lock = SessionLock(folder)
        try:
            last = look_at(folder / DATABASE)
            epoch = last.epoch + 1
            rows = [] if last.ended_cleanly else schema.mark_crashed(last.epoch, last.uncertain)
            rows += ((sql, ()) for sql in schema.ADDED_LATER)
            rows += [*schema.revive_main_agent(), *schema.begin_run(epoch, os.getpid(), time.time())]
            connection = open_database(folder / DATABASE, rows)
        except BaseException:
            lock.release()
            raise
        return cls(folder, lock, connection, epoch)

    # -- what is stored -----------------------------------------------------------------------------------------------

    def history(self, agent_id: str) -> tuple[Message, ...]:
        """The transcript of an agent, in order; empty for an unknown one. Raises `StorageFailed`.

        Blocks while it reads. To see a write of this process, wait for its ticket first.
        """
        return read_history(self._path, agent_id)

    def iterations(self, agent_id: str) -> int:
        """How many model calls the agent's turn in this run has made, by what is committed."""
        return read_number(self._path, schema.SELECT_ITERATIONS, agent_id)

    def external_session(self, agent_id: str, agent_name: str) -> ExternalSession | None:
        """The session that the external agent ``agent_name`` has for the agent; None where none is kept."""
        with reading(self._path) as connection:
            row = connection.execute(schema.SELECT_EXTERNAL_SESSION, (agent_id, agent_name)).fetchone()
        return None if row is None else ExternalSession(session_id=row[0], cwd=row[1], known=row[2])

    def usage_by_agent(self) -> dict[str, Usage]:
        """What the runs before this one used: own calls by agent name, the main agent's under ``main``."""
        with reading(self._path) as connection:
            return schema.read_usage(connection.execute(schema.SELECT_USAGE, (schema.MAIN_USAGE_NAME, self.epoch)))

    def uncertain_calls(self) -> int:
        """How many model calls in the runs before this one may have been billed without an answer that we saw."""
        return read_number(self._path, schema.SELECT_UNCERTAIN_CALLS, self.epoch)

    # -- writing ------------------------------------------------------------------------------------------------------

    def add_agent(
        self, agent_id: str, parent_agent_id: str, parent_call_id: str, agent_name: str, prompt: str
    ) -> Ticket:
        """A sub-agent begins; its id is new in the session. (The main agent is there from the start.)"""
        row = schema.add_agent(agent_id, self.epoch, parent_agent_id, parent_call_id, agent_name, prompt)
        return self._writer.submit(row)

    def append(
        self,
        agent_id: str,
        messages: Iterable[Message],
        usage: Usage | None,
        iterations: int,
        external: tuple[str, ExternalSession] | None = None,
    ) -> Ticket:
        """Items of an agent's transcript, in order, and what the call that they came of used.

        ``iterations`` is the number of model calls that the turn has made; a smaller one than is stored is ignored.
        ``external`` is the name of the external agent that said it, and the session that it can go on with.
        """
        writes = schema.append(agent_id, self.epoch, messages, usage, iterations)
        if external is not None:
            writes += schema.keep_external_session(agent_id, *external)
        return self._writer.submit(writes)

    def end_agent(self, agent_id: str, outcome: AgentOutcome, uncertain_calls: int) -> Ticket:
        """An agent ends; ``uncertain_calls`` of its calls were in flight when its process died or it was cancelled."""
        return self._writer.submit(schema.end_agent(agent_id, self.epoch, outcome, uncertain_calls))

    def end_run(self, exit_code: int) -> Ticket:
        """This process's run ends as it should. Without it, the next process takes the run for crashed."""
        return self._writer.submit(schema.end_run(self.epoch, exit_code, time.time()))

    def flush(self) -> Ticket:
        """Write nothing; the ticket tells when all writes before it are on the disk."""
        return self._writer.submit(())

    @property
    def failure(self) -> StorageFailed | None:
        """What every write fails with since the first one did; None while all is well."""
        return self._writer.failure

    def close(self) -> None:
        """Write what is queued, close the file, let others have the session. Blocks; never raises; may be repeated."""
        self._writer.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
