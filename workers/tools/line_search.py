"""Searching lines by a regular expression, in a process that can be killed.

Two engines do the same: ripgrep, where it is installed and means the same by the pattern, and Python. Both read the
lines on their standard input, so neither opens a file, and which files are searched doesn't depend on the engine.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from workers.sandbox.process import Child, open_process
from workers.tools.ripgrep_pattern import ripgrep_pattern

_PROGRAM = Path(__file__).with_name("search_program.py")
_RECEIVED = 65_536


@dataclass(frozen=True, kw_only=True)
class Expression:
    """What is looked for: a valid regular expression of Python's."""

    pattern: str
    ignore_case: bool


@dataclass(frozen=True)
class Match:
    """A line that matches: its number from 1, the byte its match begins at, from 0, and all of it."""

    number: int
    start: int
    line: bytes


@dataclass(frozen=True)
class Engine:
    """A command that searches its standard input, and the exit codes of a search that went through."""

    command: Sequence[str]
    good_codes: frozenset[int]


def engines(expression: Expression, root: Path, most: int) -> list[Engine]:
    """What can search for ``expression``, the best first; each stops after ``most`` lines."""
    pattern = expression.pattern.replace("\0", r"\x00")  # no argument can hold a NUL
    flags = "i" if expression.ignore_case else ""
    python = Engine([sys.executable, "-I", "-S", str(_PROGRAM), pattern, flags, str(most)], frozenset({0}))
    program = _ripgrep(root)
    translated = ripgrep_pattern(expression.pattern, expression.ignore_case) if program else None
    if program is None or translated is None:
        return [python]
    command = _ripgrep_command(program, translated, expression.ignore_case, most)
    return [Engine(command, frozenset({0, 1})), python]  # 1: no line matches; 2: it doesn't take the pattern


def _ripgrep(root: Path) -> str | None:
    """Where ripgrep is; one that lies inside the project is not ours to run."""
    program = shutil.which("rg")
    if program is None or Path(program).absolute().is_relative_to(root) or Path(program).resolve().is_relative_to(root):
        return None
    return program


def _ripgrep_command(program: str, pattern: str, ignore_case: bool, most: int) -> list[str]:
    return [
        program,
        "--no-config",
        "--color=never",
        "--no-filename",
        "--no-heading",
        "--line-number",
        "--column",
        "--line-buffered",
        "--text",
        "--encoding=none",
        f"--max-count={most}",
        "--ignore-case" if ignore_case else "--case-sensitive",
        f"--regexp={pattern}",
        "-",
    ]


async def search_lines(
    engine: Engine, root: Path, next_piece: Callable[[], Awaitable[bytes]], take: Callable[[Match], None]
) -> bool:
    """Give the pieces, each of whole lines, to ``engine`` until one is empty; ``take`` is told of each match in order.

    Returns False if it did not go through, for example because it doesn't take the pattern. Cancelling kills it.
    Raises `OSError` if it can't be started.
    """
    async with open_process(engine.command, cwd=root, env={}, stdin=True, stderr=False, grace=0) as child:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_feed, child, next_piece)
            await _read_matches(child, take)
            nursery.cancel_scope.cancel()
        return await child.wait() in engine.good_codes


async def _feed(child: Child, next_piece: Callable[[], Awaitable[bytes]]) -> None:
    assert child.stdin is not None
    async with child.stdin:
        while piece := await next_piece():
            try:
                await child.stdin.send_all(piece)
            except trio.BrokenResourceError:
                return  # it has found all that was asked for


async def _read_matches(child: Child, take: Callable[[Match], None]) -> None:
    assert child.stdout is not None
    unread = bytearray()
    while data := await child.stdout.receive_some(_RECEIVED):
        begin = len(unread)
        unread += data
        while (end := unread.find(b"\n", begin)) >= 0:
            number, column, line = bytes(unread[:end]).split(b":", 2)
            del unread[: end + 1]
            begin = 0
            take(Match(int(number), int(column) - 1, line))
