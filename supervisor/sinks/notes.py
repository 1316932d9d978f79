"""Notes for a person on stderr, in every output format: what went wrong and what is being waited for."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable

from protocol.records import (
    AgentCrashed,
    Compaction,
    CrashCause,
    Error,
    Info,
    LoopCapRequest,
    LoopGuard,
    Record,
    Retry,
    RetryReason,
    TurnEnd,
    TurnKind,
    Warn,
)
from supervisor.sinks.activity import ActivityReader
from supervisor.sinks.sink import Event
from supervisor.sinks.terminal import line_writer
from supervisor.terminal_text import printable


class NotesSink:
    """Writes a line on stderr for each event that a person would want to know of, with the sub-agent's name.

    ``activity`` reads the agents' steps off the events, to be shown too; None shows none.
    """

    def __init__(self, activity: ActivityReader | None = None) -> None:
        self._activity = activity
        self._show = line_writer() if activity is not None else None

    def take(self, event: Event) -> None:
        """Write the event's note, if it has one."""
        note = note_of(event.record)
        if note is not None:
            write_note(note if event.agent_name in ("", "main") else f"{event.agent_name}: {note}")
        if self._activity is not None and self._show is not None and (step := self._activity.read(event)) is not None:
            self._show(step)

    async def room(self) -> None:
        """Stderr takes each note at once."""

    def release(self) -> None:
        """It never pushed back."""

    async def finish(self) -> None:
        """Nothing is held back."""


def write_note(note: str) -> None:
    """Write ``note`` as one line on stderr, control sequences removed; a closed stderr is no error."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"corral: {' '.join(printable(note).split())}\n")
        sys.stderr.flush()


def note_of(record: Record) -> str | None:
    """What to tell a person of ``record``; None for what is no news."""
    make = _NOTES.get(type(record))
    return None if make is None else make(record)


_FAILURES: dict[RetryReason, str] = {
    "rate_limit": "the model's server asks to be called less often",
    "server_error": "the model's server failed",
    "stream_failed": "the model's reply broke off",
    "empty_response": "the model's reply was empty",
    "network": "the model's server can't be reached",
}
_CRASHES: dict[CrashCause, str] = {
    "signal": "the agent's process was killed",
    "exited_early": "the agent's process exited before its work was done",
    "out_of_memory": "the agent's process ran out of memory",
    "unresponsive": "the agent's process did not respond any more",
    "channel_closed": "the agent's process failed",
    "protocol_error": "the agent's process sent what can't be understood",
    "spawn_failed": "the agent failed",
}
_ENDS: dict[TurnKind, str] = {"error": "failed", "cancelled": "cancelled", "limit": "stopped"}


def _retry(record: Retry) -> str:
    when = f"in {record.delay_ms / 1000:g} s" if record.delay_ms else "at once"
    return f"{_FAILURES[record.reason]}; trying again {when} ({record.attempt} of {record.max_attempts})"


def _crashed(record: AgentCrashed) -> str:
    note = _CRASHES[record.cause]
    if record.signal is not None:
        note += f" ({_signal_name(record.signal)})"
    elif record.exit_code is not None:
        note += f" (exit code {record.exit_code})"
    if record.detail:
        note += f": {record.detail}"
    return note if record.restart is None else f"{note}; a new one goes on with the work"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have numbers only
        return f"signal {number}"


def _compaction(record: Compaction) -> str | None:
    if record.status == "started":
        why = f"the context is {record.context_percent} % full"
        if record.trigger == "overflow":
            why = "the prompt is too long for the model"
        return f"{why}: summing up the history"
    if record.status == "skipped":
        return "the history is too short to be summed up"
    return f"the history could not be summed up: {record.detail}" if record.status == "failed" else None


def _loop_guard(record: LoopGuard) -> str:
    return f"{record.detail}; {'the model was told' if record.action == 'feedback' else 'its turn ends here'}"


def _turn_end(record: TurnEnd) -> str | None:
    if record.reason.kind == "complete":
        return None
    end = _ENDS[record.reason.kind]
    return f"{end}: {record.reason.message}" if record.reason.message else end


def _loop_cap(record: LoopCapRequest) -> str:
    return f"the cap of {record.cap} model calls was reached"


def _info(record: Info) -> str:
    return record.message


def _warning(record: Warn) -> str:
    return f"warning: {record.message}"


def _error(record: Error) -> str:
    return f"error: {record.message}"


_NOTES: dict[type[Record], Callable[..., str | None]] = {
    Retry: _retry,
    AgentCrashed: _crashed,
    Compaction: _compaction,
    LoopGuard: _loop_guard,
    LoopCapRequest: _loop_cap,
    TurnEnd: _turn_end,
    Info: _info,
    Warn: _warning,
    Error: _error,
}
