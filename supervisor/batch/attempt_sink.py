"""Where the events of an attempt go: its log, its usage, and what its end is judged by."""

from __future__ import annotations

from collections.abc import Callable

from protocol.records import AgentCrashed
from protocol.usage import Usage
from supervisor.batch.attempt_log import AttemptLog
from supervisor.run import Run
from supervisor.sinks.notes import note_of
from supervisor.sinks.sink import Event


class AttemptSink:
    """Writes the attempt's ``log``; ``crash`` is the last death of the root agent's process.

    ``on_usage`` is called whenever the run has used more.
    """

    def __init__(self, log: AttemptLog, main_agent_id: str, on_usage: Callable[[Run], None]) -> None:
        self._log = log
        self._main_agent_id = main_agent_id
        self._on_usage = on_usage
        self._run: Run | None = None
        self._used: Usage | None = None
        self.crash: AgentCrashed | None = None

    def watch(self, run: Run) -> None:
        """The run whose usage is to be told."""
        self._run = run

    def take(self, event: Event) -> None:
        """Write the event down."""
        if isinstance(event.record, AgentCrashed) and event.agent_id == self._main_agent_id:
            self.crash = event.record
        self._log.line(event.line)
        note = note_of(event.record)
        if note is not None:
            self._log.note(note if event.agent_name in ("", "main") else f"{event.agent_name}: {note}")
        if self._run is not None and (used := self._run.usage.run_total()) is not self._used:
            self._used = used
            self._on_usage(self._run)

    async def room(self) -> None:
        """Wait while the log's reader is behind."""
        await self._log.room()

    def release(self) -> None:
        """The one who reads the lines is released by the batch itself."""

    async def finish(self) -> None:
        """Nothing is held back."""
