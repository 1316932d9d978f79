"""List: what is in a folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import trio
from msgspec import Meta

from workers.sandbox.beneath import entries_of, opened_parent
from workers.sandbox.paths import existing, file_error, resolve_inside, shown, visible
from workers.tools.file_tree import walk
from workers.tools.tool import Tool, ToolArguments, ToolContext, ToolError, ToolOutput

MOST_ENTRIES = 1_000


class ListArguments(ToolArguments, frozen=True, kw_only=True):
    """What the model gives."""

    file_path: Annotated[str | None, Meta(description="The folder; else the root.")] = None
    recursive: Annotated[bool, Meta(description="All below, but what git ignores.")] = False


async def run(arguments: ListArguments, context: ToolContext) -> ToolOutput:
    """List in a thread; cancelling abandons it."""
    output = await trio.to_thread.run_sync(_list, arguments, context.root, abandon_on_cancel=True)
    return ToolOutput(output=output)


def _list(arguments: ListArguments, root: Path) -> str:
    folder = existing_folder(root, arguments.file_path or "")
    lines = _lines_below(root, folder) if arguments.recursive else _lines_in(root, folder)
    shown_lines = list(islice(lines, MOST_ENTRIES))
    if not shown_lines:
        return "(the folder is empty)"
    if next(lines, None) is not None:
        shown_lines.append(f"[more than {MOST_ENTRIES} entries; list a folder below, or use Glob]")
    return "\n".join(shown_lines)


def existing_folder(root: Path, given: str) -> Path:
    """The folder inside ``root`` that ``given`` names; raises `ToolError` when there is none."""
    path = resolve_inside(root, given)
    if not stat.S_ISDIR(existing(root, path).st_mode):
        raise ToolError(f"{shown(root, path)} is not a folder.")
    return path


def _lines_in(root: Path, folder: Path) -> Iterator[str]:
    try:
        entries = entries_of(root, folder)
    except OSError as error:
        raise file_error(error, shown(root, folder)) from None
    above = "" if folder == root else f"{folder.relative_to(root).as_posix()}/"
    for entry in entries:
        yield _line(root, above + entry.name, entry.is_folder, entry.is_link)


def _lines_below(root: Path, folder: Path) -> Iterator[str]:
    for entry in walk(root, folder):
        yield _line(root, entry.path, entry.is_folder, entry.is_link)


def _line(root: Path, path: str, is_folder: bool, is_link: bool) -> str:
    if is_link:
        try:
            with opened_parent(root, root / path) as (folder, name):
                return f"{visible(path)} -> {visible(os.readlink(name, dir_fd=folder))}"
        except OSError:
            return f"{visible(path)} -> ?"
    return visible(path) + ("/" if is_folder else "")


TOOL = Tool(
    name="List",
    description="List a folder; folders end with /.",
    effect="read",
    arguments=ListArguments,
    run=run,
)
