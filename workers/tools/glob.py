"""Glob: find files by the pattern of their path."""

from __future__ import annotations

import unicodedata
from itertools import islice
from pathlib import Path
from typing import Annotated

import trio
from msgspec import Meta

from workers.sandbox.paths import resolve_inside, shown, visible
from workers.tools.file_tree import walk
from workers.tools.glob_pattern import BadGlob, compile_glob, literal_folders
from workers.tools.list_dir import existing_folder
from workers.tools.tool import Tool, ToolArguments, ToolContext, ToolError, ToolOutput

MOST_FILES = 1_000


class GlobArguments(ToolArguments, frozen=True, kw_only=True):
    """What the model gives."""

    pattern: Annotated[str, Meta(description="Such as src/**/*.{ts,tsx}.")]
    path: Annotated[str | None, Meta(description="Folder that the pattern begins in.")] = None


async def run(arguments: GlobArguments, context: ToolContext) -> ToolOutput:
    """Search in a thread; cancelling abandons it and ends it soon after."""
    output = await trio.to_thread.run_sync(_glob, arguments, context.root, abandon_on_cancel=True)
    return ToolOutput(output=output)


def _glob(arguments: GlobArguments, root: Path) -> str:
    folder, pattern = _start_and_pattern(root, arguments)
    try:
        matches = compile_glob(_composed(pattern)).fullmatch
    except BadGlob as error:
        raise ToolError(f"`pattern` can't be used: {error}.") from None
    begin = resolve_inside(root, str(folder / literal_folders(pattern)))
    above = len(folder.relative_to(root).as_posix()) + 1 if folder != root else 0
    found = (
        entry.path for entry in walk(root, begin) if not entry.is_folder and matches(_composed(entry.path[above:]))
    )
    paths = [visible(path) for path in islice(found, MOST_FILES)]
    if not paths:
        deeper = "" if "**" in pattern else f" Only **/{visible(pattern)} looks into all folders below."
        return f"No file in {shown(root, folder)} matches {visible(pattern)}; what git ignores is left out.{deeper}"
    if next(found, None) is not None:
        paths.append(f"[more than {MOST_FILES} files; give a narrower pattern]")
    return "\n".join(paths)


def _composed(text: str) -> str:
    """``text`` in the one Unicode form in which names are compared: a model can't tell them apart."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _start_and_pattern(root: Path, arguments: GlobArguments) -> tuple[Path, str]:
    folder = existing_folder(root, arguments.path or "")
    pattern = arguments.pattern
    if pattern.startswith("/"):
        # Unambiguous where it begins with a folder inside the project.
        for base in (folder, root):
            if pattern.startswith(f"{base}/"):
                return base, pattern.removeprefix(f"{base}/")
        raise ToolError(f"The pattern {visible(pattern)} is outside the project; give one relative to its root.")
    if ".." in pattern.split("/"):
        raise ToolError("`pattern` can't contain `..`; give the folder as `path`.")
    return folder, pattern.removeprefix("./")


TOOL = Tool(
    name="Glob",
    description=(
        "Find files by a glob pattern of their path; ** stands for any number of folders. Leaves out what git ignores."
    ),
    effect="read",
    arguments=GlobArguments,
    run=run,
)
