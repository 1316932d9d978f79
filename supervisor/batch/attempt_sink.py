"""Where the events of an attempt go: its log, the ledger's usage, and what its end is judged by."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from protocol.codec import encode_json
from protocol.records import AgentCrashed
from protocol.usage import Usage
from supervisor.run import Run
from supervisor.sinks.notes import note_of
from supervisor.sinks.sink import Event
from supervisor.terminal_text import printable

WIRE = "wire.ndjson"
STDERR = "stderr.log"


async def _at_once() -> None:
    """Nothing is waited for."""


class AttemptSink:
    """Writes ``wire.ndjson`` and ``stderr.log``; ``crash`` is the last death of the root agent's process.

    ``on_usage`` is called whenever the run has used more, ``on_failure`` once when the log can't be written. With
    ``pass_on`` each line goes there too, marked as the attempt's, and ``room`` is waited for.
    """

    def __init__(
        self,
        folder: Path,
        main_agent_id: str,
        *,
        on_usage: Callable[[Run], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        """Raises `OSError`."""
        self._main_agent_id = main_agent_id
        self._on_usage = on_usage
        self._on_failure = on_failure
        self._run: Run | None = None
        self._used: Usage | None = None
        self._has_failed = False
        self._marks = b""
        self._pass_on: Callable[[bytes], None] | None = None
        self._wait: Callable[[], Awaitable[None]] = _at_once
        self.crash: AgentCrashed | None = None
        self._wire = _open(folder / WIRE)
        self._stderr = _open(folder / STDERR)

    def pass_on(
        self, job_id: str, attempt: int, write: Callable[[bytes], None], room: Callable[[], Awaitable[None]]
    ) -> None:
        """Give each line to ``write`` too, with ``job_id`` and ``attempt`` in it."""
        self._marks = b',"job_id":%s,"attempt":%d}\n' % (encode_json(job_id), attempt)
        self._pass_on = write
        self._wait = room

    def watch(self, run: Run) -> None:
        """The run whose usage is to be told."""
        self._run = run

    def take(self, event: Event) -> None:
        """Write the event down."""
        if isinstance(event.record, AgentCrashed) and event.agent_id == self._main_agent_id:
            self.crash = event.record
        self._write(self._wire, event.line)
        note = note_of(event.record)
        if note is not None:
            self.note(note if event.agent_name in ("", "main") else f"{event.agent_name}: {note}")
        if self._pass_on is not None:
            self._pass_on(event.line[:-2] + self._marks)
        if self._run is not None and (used := self._run.usage.run_total()) is not self._used:
            self._used = used
            self._on_usage(self._run)

    def note(self, text: str) -> None:
        """A line, or several, for ``stderr.log``."""
        self._write(self._stderr, (printable(text).rstrip("\n") + "\n").encode(errors="replace"))

    async def room(self) -> None:
        """Files take each line at once; who reads the lines elsewhere may push back."""
        await self._wait()

    def release(self) -> None:
        """The one who reads them is released by the batch itself."""

    async def finish(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Close the files."""
        os.close(self._wire)
        os.close(self._stderr)

    def _write(self, descriptor: int, data: bytes) -> None:
        if self._has_failed:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError as error:
            self._has_failed = True
            self._on_failure(error)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
