"""What these commands share: a parser that raises, and output that survives a closed pipe."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from supervisor import exit_codes
from supervisor.errors import WrongUsage
from supervisor.terminal_text import printable


class CommandParser(argparse.ArgumentParser):
    """A parser for ``corral COMMAND``; wrong words are `WrongUsage`, ``--help`` is for `help_asked`."""

    def __init__(self, command: str, usage: str, description: str) -> None:
        super().__init__(
            prog=f"corral {command}",
            usage=f"corral {command} {usage}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=False,
            allow_abbrev=False,
        )
        self.add_argument("-h", "--help", action="store_true", help="show this and end")

    def error(self, message: str) -> NoReturn:
        raise WrongUsage(f"{message} ({self.prog} --help shows how it is used)")


def help_asked(arguments: Sequence[str]) -> bool:
    """Whether the help is asked for, whatever else is there."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "-h" in options or "--help" in options


def write(text: str | bytes) -> int:
    """Write to standard output and return the exit code; text loses what could steer a terminal."""
    view = memoryview(printable(text).encode() if isinstance(text, str) else text)
    while view:
        try:
            view = view[os.write(1, view) :]
        except OSError:
            return exit_codes.STDOUT_CLOSED
    return exit_codes.COMPLETE


def note(sentence: str) -> None:
    """One line on standard error."""
    with suppress(OSError):
        sys.stderr.write(f"corral: {printable(sentence)}\n")


def table(rows: Sequence[Sequence[str]]) -> str:
    """``rows`` in columns; the last one is as wide as it is. No cell may steer a terminal or break the line."""
    clean = [[" ".join(printable(cell).split()) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in clean) for column in range(len(clean[0]))] if clean else []
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in clean)
    return "".join(f"{line}\n" for line in lines)
