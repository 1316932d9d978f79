"""What an attempt is given, and what is known of it when it has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from protocol.usage import Usage
from supervisor.batch.commands import Commands
from supervisor.batch.core.outcome import AttemptEnd
from supervisor.batch.isolation import Isolation, Patch, WorkPlace
from supervisor.batch.ledger import Ledger
from supervisor.batch.records import CheckResult
from supervisor.endpoints import Endpoints
from supervisor.spawn import Spawner


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What all attempts of a run share.

    ``on_process`` is told the pid of each root agent, ``on_usage`` what an attempt has used so far. ``pass_on`` takes
    the agents' lines where they are asked for, ``room`` waits for whoever reads them.
    """

    folder: Path
    ledger: Ledger
    spawner: Spawner
    commands: Commands
    isolation: Isolation
    endpoints: Endpoints
    keeps_refs: bool
    on_process: Callable[[str, int, int], None]
    on_usage: Callable[[str, int, Usage], None]
    on_note: Callable[[str], None]
    pass_on: Callable[[bytes], None] | None
    room: Callable[[], Awaitable[None]]


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of an attempt that has ended. Times are in seconds since 1970.

    ``exit_code`` is what a one-shot run would have exited with, or that of a process that died; ``signal`` the number
    of the signal that ended it. ``must_keep``: its work folder must stay.
    """

    n: int
    end: AttemptEnd
    started: float
    ended: float
    exit_code: int | None = None
    signal: int | None = None
    session_id: str | None = None
    response: str = ""
    usage: Usage = Usage()
    usage_by_agent: dict[str, Usage] = {}  # msgspec copies it
    uncertain_calls: int = 0
    place: WorkPlace | None = None
    patch: Patch | None = None
    must_keep: bool = False
    check: CheckResult | None = None
    log: Path | None = None


class Findings:
    """Collects what becomes known on the way."""

    def __init__(self, n: int, started: float) -> None:
        self.started = started
        self._report = AttemptReport(n=n, end=AttemptEnd(outcome="cancelled"), started=started, ended=started)

    def note(self, **known: object) -> None:
        """Fields of `AttemptReport` that are known now."""
        self._report = msgspec.structs.replace(self._report, **known)

    def report(self, end: AttemptEnd, now: float) -> AttemptReport:
        """All of it, once the attempt has ended."""
        return msgspec.structs.replace(self._report, end=end, ended=now)
