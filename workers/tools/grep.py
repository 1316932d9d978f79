"""Grep: find lines by a regular expression."""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import trio
from msgspec import Meta

from protocol.codec import clean_text
from workers.sandbox.paths import ProjectGone, existing, is_folder, resolve_inside, shown, visible
from workers.sandbox.regular_file import read_regular
from workers.tools.file_tree import walk
from workers.tools.line_search import Expression, Match, engines, search_lines
from workers.tools.text_file import decode, split_lines
from workers.tools.tool import Tool, ToolArguments, ToolContext, ToolError, ToolOutput

MOST_MATCHES = 200
LONGEST_LINE = 300
LARGEST_FILE = 10_000_000
"""How many lines one call returns, and characters of each; bytes of a file that is still searched."""

LONGEST_SEARCH = 30.0
"""Seconds after which a search ends with what it has found."""

_PIECE = 500_000  # bytes of text that are given to the search at once


class GrepArguments(ToolArguments, frozen=True, kw_only=True):
    """What the model gives."""

    pattern: Annotated[str, Meta(description="A Python regular expression, for one line.")]
    path: Annotated[str | None, Meta(description="A file or folder; else everything.")] = None
    case_insensitive: bool = False


async def run(arguments: GrepArguments, context: ToolContext) -> ToolOutput:
    """Read files in a thread and match their lines in a process of its own, with a bound in time.

    Cancelling kills the process and ends the thread with the file that it is at.
    """
    expression = _checked(arguments)
    start = await trio.to_thread.run_sync(_start, arguments.path or "", context.root, abandon_on_cancel=True)
    search = _Search(context.root, start)
    with trio.move_on_after(LONGEST_SEARCH) as limit:
        for engine in engines(expression, context.root, MOST_MATCHES + 1):
            search = _Search(context.root, start)
            try:
                if await search_lines(engine, context.root, search.next_piece, search.take):
                    break
            except FileNotFoundError:
                if not context.root.is_dir():
                    raise ProjectGone(context.root) from None
                raise
        else:
            raise ToolError("The search could not be done; try a simpler pattern.")
    return ToolOutput(output=search.result(expression.pattern, stopped=limit.cancelled_caught))


def _checked(arguments: GrepArguments) -> Expression:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what other versions of Python may read into the pattern
            re.compile(arguments.pattern)
        arguments.pattern.encode()
    except UnicodeEncodeError:
        raise ToolError("`pattern` has lone surrogates, which no file can hold as text.") from None
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolError(
            f"`pattern` is no valid Python regular expression: {error}. Escape special characters with a backslash."
        ) from None
    return Expression(pattern=arguments.pattern, ignore_case=arguments.case_insensitive)


def _start(given: str, root: Path) -> Path:
    path = resolve_inside(root, given)
    existing(root, path)
    if not is_folder(root, path):
        read_regular(root, path, LARGEST_FILE)  # says why, if it can't be read
    return path


class _Search:
    """One search: the text of its files as one sequence of lines, and the lines of it that match."""

    def __init__(self, root: Path, start: Path) -> None:
        self._root = root
        self._start = start
        self._texts = self._lines_of_files()
        self._names: list[str] = []
        self._first_lines: list[int] = []
        self._lines = 0
        self._too_large: list[str] = []
        self._found: list[str] = []

    async def next_piece(self) -> bytes:
        """The next lines to search, empty when there are no more."""
        return await trio.to_thread.run_sync(self._next_piece, abandon_on_cancel=True)

    def _next_piece(self) -> bytes:
        piece = bytearray()
        for name, lines in self._texts:
            self._names.append(name)
            self._first_lines.append(self._lines + 1)
            self._lines += len(lines)
            piece += "\n".join(lines).encode() + b"\n"
            if len(piece) >= _PIECE:
                break
        return bytes(piece)

    def _lines_of_files(self) -> Iterator[tuple[str, list[str]]]:
        for path in _files(self._root, self._start):
            trio.from_thread.check_cancelled()
            name = shown(self._root, path)
            try:
                content = read_regular(self._root, path, LARGEST_FILE)
            except ToolError:
                continue  # a pipe, a file that may not be read or that is gone
            if content is None:
                self._too_large.append(name)
                continue
            file = decode(content)
            if file is not None and (lines := split_lines(file.text)):
                yield name, lines

    def take(self, match: Match) -> None:
        """A line was found."""
        at = bisect_right(self._first_lines, match.number) - 1
        number = match.number - self._first_lines[at] + 1
        start = len(match.line[: match.start].decode("utf-8", "replace"))
        self._found.append(f"{self._names[at]}:{number}: {_cut(match.line.decode('utf-8', 'replace'), start)}")

    def result(self, pattern: str, stopped: bool) -> str:
        """What the model is told; ``stopped`` where the time was up before the end."""
        if len(self._found) > MOST_MATCHES:
            note = f"[more than {MOST_MATCHES} lines match; give a narrower pattern or path]"
            return clean_text("\n".join([*self._found[:MOST_MATCHES], note]))
        lines = list(self._found)
        if stopped:
            lines.append(f"[stopped after {LONGEST_SEARCH:g} s, not at the end; give a narrower path or pattern]")
        elif not lines:
            lines.append(f"No line in {shown(self._root, self._start)} matches {visible(pattern)}.")
        if self._too_large:
            names = ", ".join(self._too_large[:5])
            count = len(self._too_large)
            lines.append(f"[not searched, over {LARGEST_FILE} bytes: {count} files, such as {names}]")
        return clean_text("\n".join(lines))


def _cut(line: str, match: int) -> str:
    if len(line) <= LONGEST_LINE:
        return line
    start = max(0, min(match - LONGEST_LINE // 3, len(line) - LONGEST_LINE))
    end = start + LONGEST_LINE
    return f"{'...' if start else ''}{line[start:end]}{'...' if end < len(line) else ''}"


def _files(root: Path, path: Path) -> Iterator[Path]:
    if not is_folder(root, path):
        yield path
        return
    for entry in walk(root, path):
        if not entry.is_folder and not entry.is_link:
            yield root / entry.path


TOOL = Tool(
    name="Grep",
    description=(
        f"Search text files by regular expression; gives path:line: text, {MOST_MATCHES} lines at most. "
        "Leaves out what git ignores."
    ),
    effect="read",
    arguments=GrepArguments,
    run=run,
)
