"""What an attempt tells of itself on the way, to whoever has the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from protocol.usage import Usage
from supervisor.batch import ledger_schema as schema
from supervisor.batch import process_trees
from supervisor.batch.ledger import Ledger
from supervisor.store.session_store import Ticket


class Journal(Protocol):
    """Takes what one attempt tells; never blocks."""

    def begin(self, workdir: str | None, now: float, /) -> Ticket:
        """The attempt begins, to work in ``workdir`` of the batch's folder; the ticket says when that is committed."""
        ...

    def has_session(self, session_id: str, /) -> None:
        """The attempt is stored in that session."""
        ...

    def has_process(self, pid: int, /) -> None:
        """The attempt's root agent has that process."""
        ...

    def has_used(self, used: Usage, by_agent: Mapping[str, Usage], uncertain: int, /) -> None:
        """What the attempt has used so far, in all and by agent; ``uncertain`` calls may have been billed besides."""
        ...


class LedgerJournal:
    """Writes it into the ledger of this process. See `Journal`.

    ``on_process`` is told the pid of the root agent, ``on_usage`` what the attempt has used so far. The process of an
    attempt that is made elsewhere (``is_elsewhere``) gets no start time: then nothing here is ever taken for it.
    """

    def __init__(
        self,
        ledger: Ledger,
        job_id: str,
        n: int,
        *,
        on_process: Callable[[str, int, int], None],
        on_usage: Callable[[str, int, Usage], None],
        is_elsewhere: bool = False,
    ) -> None:
        self._ledger = ledger
        self._job_id = job_id
        self._n = n
        self._on_process = on_process
        self._on_usage = on_usage
        self._is_elsewhere = is_elsewhere

    def begin(self, workdir: str | None, now: float) -> Ticket:
        """See `Journal.begin`."""
        return self._ledger.write(*schema.begin_attempt(self._job_id, self._n, self._ledger.epoch, workdir, now))

    def has_session(self, session_id: str) -> None:
        """See `Journal.has_session`."""
        self._ledger.write(schema.know_session(self._job_id, self._n, session_id))

    def has_process(self, pid: int) -> None:
        """See `Journal.has_process`."""
        started = None if self._is_elsewhere else process_trees.start_time(pid)
        self._ledger.write(schema.know_process(self._job_id, self._n, pid, started))
        self._on_process(self._job_id, self._n, pid)

    def has_used(self, used: Usage, by_agent: Mapping[str, Usage], uncertain: int) -> None:
        """See `Journal.has_used`."""
        self._ledger.write(schema.put_usage(self._job_id, self._n, used, by_agent, uncertain))
        self._on_usage(self._job_id, self._n, used)
