"""Grep: find lines by a regular expression."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import trio
from msgspec import Meta

from protocol.codec import clean_text
from workers.sandbox.paths import missing, resolve_inside, shown, visible
from workers.sandbox.regular_file import read_regular
from workers.tools.file_tree import walk
from workers.tools.text_file import decode, split_lines
from workers.tools.tool import Tool, ToolArguments, ToolContext, ToolError, ToolOutput

MOST_MATCHES = 200
LONGEST_LINE = 300
LARGEST_FILE = 10_000_000
"""How many lines one call returns, and characters of each; bytes of a file that is still searched."""


class GrepArguments(ToolArguments, frozen=True, kw_only=True):
    """What the model gives."""

    pattern: Annotated[str, Meta(description="A Python regular expression, matched against each line.")]
    path: Annotated[str | None, Meta(description="A file or folder, relative to the project's root.")] = None
    case_insensitive: Annotated[bool, Meta(description="Ignore upper and lower case.")] = False


async def run(arguments: GrepArguments, context: ToolContext) -> ToolOutput:
    """Search in a thread; cancelling abandons it and ends it with the file that it is at."""
    expression = _compiled(arguments)
    search = partial(_grep, expression, arguments.path or "", context.root)
    return ToolOutput(output=await trio.to_thread.run_sync(search, abandon_on_cancel=True))


def _compiled(arguments: GrepArguments) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what other versions of Python may read into the pattern
            return re.compile(arguments.pattern, re.IGNORECASE if arguments.case_insensitive else 0)
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolError(
            f"`pattern` is no valid Python regular expression: {error}. Escape special characters with a backslash."
        ) from None


@dataclass
class _Search:
    """One search and what was passed over in it."""

    root: Path
    expression: re.Pattern[str]
    too_large: list[str] = field(default_factory=list[str])

    def matches_in(self, paths: Iterator[Path]) -> Iterator[str]:
        for path in paths:
            trio.from_thread.check_cancelled()
            yield from self._matches_in_file(path)

    def _matches_in_file(self, path: Path) -> Iterator[str]:
        name = shown(self.root, path)
        try:
            content = read_regular(self.root, path, LARGEST_FILE)
        except ToolError:
            return  # a pipe, a file that may not be read or that is gone
        if content is None:
            self.too_large.append(name)
            return
        file = decode(content)
        if file is None:
            return
        for number, line in enumerate(split_lines(file.text), start=1):
            match = self.expression.search(line)
            if match is not None:
                yield f"{name}:{number}: {_cut(line, match.start())}"


def _cut(line: str, match: int) -> str:
    if len(line) <= LONGEST_LINE:
        return line
    start = max(0, min(match - LONGEST_LINE // 3, len(line) - LONGEST_LINE))
    end = start + LONGEST_LINE
    return f"{'...' if start else ''}{line[start:end]}{'...' if end < len(line) else ''}"


def _grep(expression: re.Pattern[str], given: str, root: Path) -> str:
    path = resolve_inside(root, given)
    if not path.exists():
        raise missing(root, path)
    if not path.is_dir():
        read_regular(root, path, LARGEST_FILE)  # says why, if it can't be read
    search = _Search(root, expression)
    lines: list[str] = []
    for line in search.matches_in(_files(root, path)):
        if len(lines) == MOST_MATCHES:
            lines.append(f"[more than {MOST_MATCHES} lines match; give a narrower pattern or path]")
            break
        lines.append(line)
    if not lines:
        lines.append(f"No line in {shown(root, path)} matches {visible(expression.pattern)}.")
    if search.too_large:
        names = ", ".join(search.too_large[:5])
        lines.append(f"[not searched, over {LARGEST_FILE} bytes: {len(search.too_large)} files, such as {names}]")
    return clean_text("\n".join(lines))


def _files(root: Path, path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for entry in walk(root, path):
        if not entry.is_folder and not entry.is_link:
            yield root / entry.path


TOOL = Tool(
    name="Grep",
    description=(
        "Search files for lines that match a Python regular expression. Returns `path:line: text`, paths relative to "
        f"the project's root, {MOST_MATCHES} lines at most. Binaries and what git ignores are left out."
    ),
    effect="read",
    arguments=GrepArguments,
    run=run,
)
