"""How the batch gets on, on standard error: a block that is drawn again on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Protocol

import msgspec

from supervisor.batch.flags import ProgressKind
from supervisor.batch.records import Counts, JobResult
from supervisor.live.figures import duration, tokens
from supervisor.sinks.notes import write_note
from supervisor.terminal_text import printable


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The batch at one moment. ``running`` are ids with the seconds that each has run, the longest first."""

    counts: Counts
    running: tuple[tuple[str, float], ...]
    retries: int
    tokens: int
    eta_seconds: float | None


class Progress(Protocol):
    """Shows progress."""

    redraw_seconds: float | None
    """How often `draw` wants to be called; None: never."""

    def verdict(self, result: JobResult, snapshot: Snapshot) -> None:
        """A job has its verdict."""
        ...

    def heartbeat(self, snapshot: Snapshot) -> None:
        """Time has passed."""
        ...

    def draw(self, snapshot: Snapshot) -> None:
        """Show the present state."""
        ...

    def note(self, sentence: str) -> None:
        """Something that a person should know."""
        ...

    def close(self) -> None:
        """Nothing more is shown."""
        ...


def make_progress(kind: ProgressKind, *, quiet: bool) -> Progress:
    """The one that was asked for, by default the one that fits standard error."""
    if quiet or kind == "none":
        return NoProgress(tells_notes=not quiet)
    is_terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if kind == "tty" or (kind == "auto" and is_terminal):
        from supervisor.batch.live_block import LiveBlock  # imports the library for terminals

        return LiveBlock()
    return PlainProgress()


class NoProgress:
    """Shows nothing but notes."""

    redraw_seconds: float | None = None

    def __init__(self, *, tells_notes: bool) -> None:
        self._tells_notes = tells_notes

    def verdict(self, result: JobResult, snapshot: Snapshot) -> None:
        """Not shown."""

    def heartbeat(self, snapshot: Snapshot) -> None:
        """Not shown."""

    def draw(self, snapshot: Snapshot) -> None:
        """Not shown."""

    def note(self, sentence: str) -> None:
        """Write it, if notes are wanted."""
        if self._tells_notes:
            write_note(sentence)

    def close(self) -> None:
        """Nothing is open."""


class PlainProgress:
    """A line for each verdict and each heartbeat, without colours."""

    redraw_seconds: float | None = None

    def verdict(self, result: JobResult, snapshot: Snapshot) -> None:
        """Write how it ended."""
        _write_line(f"{_place(snapshot.counts)} {verdict_words(result)}")

    def heartbeat(self, snapshot: Snapshot) -> None:
        """Write where the batch stands."""
        _write_line(state_line(snapshot))

    def draw(self, snapshot: Snapshot) -> None:
        """There is nothing to draw."""

    def note(self, sentence: str) -> None:
        """Write it."""
        write_note(sentence)

    def close(self) -> None:
        """Nothing is open."""


def verdict_words(result: JobResult) -> str:
    """``ID STATUS (reason), N tries, TIME, TOKENS tokens``."""
    reason = f" ({result.reason})" if result.reason else ""
    tries = f", {len(result.attempts)} tries" if len(result.attempts) > 1 else ""
    return (
        f"{result.id} {result.status}{reason}{tries}, {duration(result.wall_ms)},"
        f" {tokens(result.usage.total_tokens)} tokens"
    )


def state_line(snapshot: Snapshot) -> str:
    """``[12/100] ok=10 failed=1 crashed=1 running=8 retry=2 eta=00:12:30 tokens=1.2M``."""
    counts = snapshot.counts
    numbers = {
        "ok": counts.ok,
        "failed": counts.failed,
        "check_failed": counts.check_failed,
        "timeout": counts.timeout,
        "budget": counts.budget,
        "crashed": counts.crashed,
    }
    shown = [f"{name}={number}" for name, number in numbers.items() if number or name == "ok"]
    shown += [f"running={len(snapshot.running)}", f"retry={snapshot.retries}"]
    shown += [f"eta={clock(snapshot.eta_seconds)}", f"tokens={tokens(snapshot.tokens)}"]
    return f"{_place(counts)} {' '.join(shown)}"


def clock(seconds: float | None) -> str:
    """``HH:MM:SS``, or ``?`` where it is unknown."""
    if seconds is None:
        return "?"
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}"


def _place(counts: Counts) -> str:
    return f"[{counts.total - counts.pending}/{counts.total}]"


def _write_line(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{' '.join(printable(line).split())}\n")
        sys.stderr.flush()
