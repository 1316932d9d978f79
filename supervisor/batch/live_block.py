"""The live block on a terminal: where the batch stands, and what runs. Drawn ten times a second at most."""

from __future__ import annotations

import contextlib
import os
import sys

from rich.console import Console
from rich.live import Live
from rich.text import Text

from supervisor.batch.progress import Snapshot, state_line, verdict_words
from supervisor.batch.records import JobResult
from supervisor.live.figures import duration
from supervisor.terminal_text import printable

REDRAW_SECONDS = 0.2
_LINES_BESIDE = 4
"""Of a terminal's height that the list of jobs leaves free."""


class LiveBlock:
    """Implements `supervisor.batch.progress.Progress`. Verdicts that are not ok, and notes, scroll by above it."""

    redraw_seconds: float | None = REDRAW_SECONDS

    def __init__(self) -> None:
        is_plain = bool(os.environ.get("NO_COLOR"))
        self._console = Console(
            file=sys.stderr, color_system=None if is_plain else "auto", highlight=False, markup=False, emoji=False
        )
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        with contextlib.suppress(OSError, ValueError):
            self._live.start()

    def verdict(self, result: JobResult, snapshot: Snapshot) -> None:
        """Say what did not go well; the rest shows in the numbers."""
        if result.status != "ok":
            self._print(Text(_one_line(verdict_words(result)), style="yellow"))
        self.draw(snapshot)

    def heartbeat(self, snapshot: Snapshot) -> None:
        """The block says it all the time."""

    def draw(self, snapshot: Snapshot) -> None:
        """Draw the block anew."""
        room = max(1, self._console.height - _LINES_BESIDE)
        block = Text(_one_line(state_line(snapshot)), style="bold", no_wrap=True, overflow="ellipsis")
        for job_id, seconds in snapshot.running[:room]:
            block.append(f"\n  {_one_line(job_id)} {duration(round(seconds * 1000))}", style="not bold")
        if len(snapshot.running) > room:
            block.append(f"\n  and {len(snapshot.running) - room} more", style="not bold")
        with contextlib.suppress(OSError, ValueError):
            self._live.update(block, refresh=True)

    def note(self, sentence: str) -> None:
        """Write it above the block."""
        self._print(Text(f"corral: {_one_line(sentence)}"))

    def close(self) -> None:
        """Take the block away."""
        with contextlib.suppress(OSError, ValueError):
            self._live.stop()

    def _print(self, text: Text) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._console.print(text, no_wrap=True, overflow="ellipsis", crop=True)


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())
