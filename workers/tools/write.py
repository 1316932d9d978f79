"""Write: make a file, or replace its whole content."""

from __future__ import annotations

from pathlib import Path

import trio

from workers.sandbox.paths import exists, resolve_inside, shown
from workers.sandbox.regular_file import read_regular, replace_regular
from workers.tools.read import WHOLE_FILE
from workers.tools.text_file import split_lines
from workers.tools.tool import Tool, ToolArguments, ToolContext, ToolError, ToolOutput


class WriteArguments(ToolArguments, frozen=True, kw_only=True):
    """What the model gives."""

    file_path: str
    content: str


async def run(arguments: WriteArguments, context: ToolContext) -> ToolOutput:
    """Write in a thread; a write that has begun is finished before a cancellation is heard."""
    return await trio.to_thread.run_sync(_write, arguments, context)


def _write(arguments: WriteArguments, context: ToolContext) -> ToolOutput:
    path = resolve_inside(context.root, arguments.file_path)
    try:
        content = arguments.content.encode()
    except UnicodeEncodeError:
        raise ToolError("`content` has lone surrogates, which no file can hold as text.") from None
    with context.files.lock:
        existed = exists(context.root, path)
        if existed:
            refuse_stale(context, path)
        replace_regular(context.root, path, content)
        context.files.remember(path, content)
    done = "Replaced" if existed else "Created"
    lines = len(split_lines(arguments.content))
    return ToolOutput(output=f"{done} {shown(context.root, path)}: {lines} lines, {len(content)} bytes.")


def refuse_stale(context: ToolContext, path: Path) -> None:
    """Raise `ToolError` if the agent has seen the file at ``path`` and it is another one now."""
    if not context.files.knows(path):
        return
    content = read_regular(context.root, path, WHOLE_FILE)
    if content is None or context.files.is_stale(path, content):
        raise ToolError(f"{shown(context.root, path)} has changed since you last saw it; read it again first.")


TOOL = Tool(
    name="Write",
    description="Create a file, folders too, or replace all of one.",
    effect="write",
    arguments=WriteArguments,
    run=run,
)
