"""Notes for a person on stderr, in every output format: what went wrong and what is being waited for."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from protocol.records import (
    AgentCrashed,
    Compaction,
    Error,
    LoopCapRequest,
    LoopGuard,
    Record,
    Retry,
    TurnEnd,
    Warn,
)
from supervisor.sinks.sink import Event
from supervisor.terminal_text import printable


class NotesSink:
    """Writes a line on stderr for each event that a person would want to know of, with the sub-agent's name."""

    def take(self, event: Event) -> None:
        """Write the event's note, if it has one."""
        note = note_of(event.record)
        if note is not None:
            write_note(note if event.agent_name in ("", "main") else f"{event.agent_name}: {note}")

    async def room(self) -> None:
        """Stderr takes each note at once."""

    def release(self) -> None:
        """It never pushed back."""

    async def finish(self) -> None:
        """Nothing is held back."""


def write_note(note: str) -> None:
    """Write ``note`` as one line on stderr, control sequences removed; a closed stderr is no error."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"corral: {printable(note)}\n")
        sys.stderr.flush()


def note_of(record: Record) -> str | None:
    """What to tell a person of ``record``; None for what is no news."""
    make = _NOTES.get(type(record))
    return None if make is None else make(record)


def _retry(record: Retry) -> str:
    reason = record.reason.replace("_", " ")
    return f"{reason}: trying again in {record.delay_ms / 1000:g} s ({record.attempt} of {record.max_attempts})"


def _crashed(record: AgentCrashed) -> str:
    how = f"signal {record.signal}" if record.signal is not None else f"exit code {record.exit_code}"
    return (
        f"the process of {record.agent_name} died ({record.cause}, {how}){': ' if record.detail else ''}{record.detail}"
    )


def _compaction(record: Compaction) -> str | None:
    if record.status == "started":
        return f"the context is {record.context_percent} % full: summing up the history"
    return f"the history could not be summed up: {record.detail}" if record.status == "failed" else None


def _turn_end(record: TurnEnd) -> str | None:
    if record.reason.kind == "complete":
        return None
    return f"{record.reason.kind}: {record.reason.message}"


_NOTES: dict[type[Record], Callable[..., str | None]] = {
    Retry: _retry,
    AgentCrashed: _crashed,
    Compaction: _compaction,
    TurnEnd: _turn_end,
    Warn: lambda record: record.message,
    Error: lambda record: record.message,
    LoopGuard: lambda record: record.detail,
    LoopCapRequest: lambda record: f"the cap of {record.cap} model calls was reached",
}
