"""Read: the text of a file, or a part of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO

import trio
from msgspec import Meta

from workers.sandbox.paths import resolve_inside, shown
from workers.sandbox.regular_file import open_regular, read_regular
from workers.tools.text_file import decode, split_lines
from workers.tools.tool import Tool, ToolArguments, ToolContext, ToolError, ToolOutput

MOST_LINES = 2_000
MOST_BYTES = 100_000
LONGEST_LINE = 2_000
"""What one call returns at most; ``LONGEST_LINE`` is in characters."""

WHOLE_FILE = 10_000_000
"""Bytes up to which a file is held as a whole; only such a file can be edited."""

_PIECE = 65_536


class ReadArguments(ToolArguments, frozen=True, kw_only=True):
    """What the model gives."""

    file_path: str
    start_line: Annotated[int | None, Meta(description="From 1.")] = None
    num_lines: int | None = None


async def run(arguments: ReadArguments, context: ToolContext) -> ToolOutput:
    """Read in a thread; cancelling abandons it."""
    start = 1 if arguments.start_line is None else max(arguments.start_line, 1)
    count = MOST_LINES if arguments.num_lines is None else min(arguments.num_lines, MOST_LINES)
    if count < 1 or (arguments.start_line or 0) < 0:
        raise ToolError("`start_line` and `num_lines` count lines from 1.")
    output = await trio.to_thread.run_sync(_read, context, arguments.file_path, start, count, abandon_on_cancel=True)
    return ToolOutput(output=output)


def _read(context: ToolContext, given: str, start: int, count: int) -> str:
    path = resolve_inside(context.root, given)
    name = shown(context.root, path)
    content = read_regular(context.root, path, WHOLE_FILE)
    if content is None:
        return _read_part(context.root, path, start, count)
    file = decode(content)
    if file is None:
        raise ToolError(f"{name} is a binary file of {len(content)} bytes; use Bash to look into it.")
    context.files.remember(path, content)
    lines = split_lines(file.text)
    if not lines:
        return "(the file is empty)"
    if start > len(lines):
        raise ToolError(f"{name} has only {len(lines)} lines; there is no line {start}.")
    chosen = list(fitting(lines[start - 1 : start - 1 + count]))
    return _with_note(chosen, start, f"{len(lines)}", start - 1 + len(chosen) < len(lines))


def fitting(lines: Iterable[str]) -> Iterator[str]:
    """As many of ``lines`` as one call may return, the long ones cut."""
    size = 0
    for line in lines:
        cut = line
        if len(line) > LONGEST_LINE:
            cut = f"{line[:LONGEST_LINE]}... [{len(line) - LONGEST_LINE} more characters in this line]"
        size += len(cut.encode()) + 1
        if size > MOST_BYTES:
            return
        yield cut


def _with_note(lines: list[str], start: int, total: str, goes_on: bool) -> str:
    text = "\n".join(lines)
    if start == 1 and not goes_on:
        return text
    last = start + len(lines) - 1
    advice = f"; go on with start_line={last + 1}" if goes_on else ""
    return f"{text}\n[lines {start} to {last} of {total}{advice}]"


def _read_part(root: Path, path: Path, start: int, count: int) -> str:
    """Lines of a file that is too big to be held: read up to them and no further."""
    name = shown(root, path)
    with open_regular(root, path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
        if b"\0" in file.peek(_PIECE)[:_PIECE]:
            raise ToolError(f"{name} is a binary file, or UTF-16, of over {WHOLE_FILE} bytes; use Bash.")
        lines = _lines_of(file)
        skipped = sum(1 for _ in islice(lines, start - 1))
        chosen = list(fitting(islice(lines, count)))
        if not chosen:
            raise ToolError(f"{name} has only {skipped} lines; there is no line {start}.")
        size = os.fstat(descriptor).st_size
    return _with_note(chosen, start, f"a file of {size} bytes", goes_on=True)


def _lines_of(file: BinaryIO) -> Iterator[str]:
    """The lines of ``file``; of each no more than its first piece is kept."""
    while piece := file.readline(_PIECE):
        trio.from_thread.check_cancelled()
        more = piece
        while len(more) == _PIECE and not more.endswith(b"\n"):
            more = file.readline(_PIECE)
            trio.from_thread.check_cancelled()
        yield piece.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")


TOOL = Tool(
    name="Read",
    description=(
        f"Read a text file, without line numbers: {MOST_LINES} lines or {MOST_BYTES // 1000} kB at most, then a note "
        "in brackets says how to go on. Paths are relative to the project's root, in all tools."
    ),
    effect="read",
    arguments=ReadArguments,
    run=run,
)
