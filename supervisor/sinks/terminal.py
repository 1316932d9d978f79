"""Lines for a person: in colour on a terminal, plain elsewhere.

The library for colours is imported on a terminal only. ``NO_COLOR`` takes every style away, not the colours alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import TextIO

from supervisor.sinks.activity import Activity, Tone
from supervisor.terminal_text import printable

_STYLES: dict[Tone, str] = {"step": "", "agent": "bold", "trouble": "yellow", "detail": "dim"}


def line_writer(stream: TextIO | None = None) -> Callable[[Activity], None]:
    """A function that writes a step as one line on ``stream``, by default stderr; a closed one is no error."""
    target = sys.stderr if stream is None else stream
    if target is None:  # closed before we began
        return lambda _activity: None
    return _coloured(target) if target.isatty() else _plain(target)


def _plain(stream: TextIO) -> Callable[[Activity], None]:
    def write(activity: Activity) -> None:
        label = f"{activity.agent}: " if activity.agent else ""
        with contextlib.suppress(OSError, ValueError):
            stream.write(f"  {_one_line(label + activity.text)}\n")
            stream.flush()

    return write


def _coloured(stream: TextIO) -> Callable[[Activity], None]:
    from rich.console import Console
    from rich.text import Text

    is_plain = bool(os.environ.get("NO_COLOR"))
    console = Console(
        file=stream, color_system=None if is_plain else "auto", highlight=False, markup=False, emoji=False
    )

    def write(activity: Activity) -> None:
        line = Text("  ")
        if activity.agent:
            line.append(_one_line(activity.agent), style="cyan").append(" ")
        line.append(_one_line(activity.text), style=_STYLES[activity.tone])
        with contextlib.suppress(OSError, ValueError):
            console.print(line, no_wrap=True, overflow="ellipsis", crop=True)

    return write


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())
