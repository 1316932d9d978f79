"""What an attempt is given, and what is known of it when it has ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from protocol.frames import Finished
from protocol.usage import Usage
from supervisor.batch.attempt_log import AttemptLog
from supervisor.batch.commands import Commands
from supervisor.batch.core.outcome import AttemptEnd
from supervisor.batch.isolation import Isolation, Patch, WorkPlace
from supervisor.batch.journal import Journal
from supervisor.batch.records import CheckResult
from supervisor.endpoints import SharedEndpoints
from supervisor.spawn import Spawner

OpenLog: TypeAlias = Callable[[str, int, Callable[[OSError], None]], AttemptLog]
"""Opens the log of an attempt, by job and number; the callable is told when it can't be written. Raises `OSError`."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What all attempts of a run share.

    ``folder`` is the batch's; ``journal`` makes the journal of an attempt, by job and number; ``on_note`` takes
    sentences for a person.
    """

    batch_id: str
    folder: Path
    journal: Callable[[str, int], Journal]
    spawner: Spawner
    commands: Commands
    isolation: Isolation
    endpoints: SharedEndpoints
    keeps_refs: bool
    on_note: Callable[[str], None]
    open_log: OpenLog


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of an attempt that has ended. Times are in seconds since 1970.

    ``exit_code`` is what a one-shot run would have exited with, or that of a process that died; ``signal`` the number
    of the signal that ended it. ``must_keep``: its work folder must stay. ``host`` is the machine where it ran, None:
    this one.
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
    host: str | None = None


class RunningAttempt(Protocol):
    """An attempt that is made here or elsewhere."""

    async def run(self) -> AttemptReport:
        """See the attempt to its end; its start is in the ledger then, its end is the caller's to write."""
        ...

    def stop(self, ending: Finished, *, kill: bool = False) -> None:
        """End the attempt as ``ending`` says; the first ending counts. ``kill``: at once, whatever is under way."""
        ...


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
