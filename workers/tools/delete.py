"""Delete: remove a file, a link or an empty folder."""

from __future__ import annotations

import os
import stat
from typing import Annotated

import trio
from msgspec import Meta

from workers.sandbox.beneath import opened_parent
from workers.sandbox.paths import existing, file_error, resolve_name_inside, shown
from workers.tools.tool import Tool, ToolArguments, ToolContext, ToolError, ToolOutput
from workers.tools.write import refuse_stale


class DeleteArguments(ToolArguments, frozen=True, kw_only=True):
    """What the model gives."""

    file_path: Annotated[str, Meta(description="A link is deleted, not what it leads to.")]


async def run(arguments: DeleteArguments, context: ToolContext) -> ToolOutput:
    """Delete in a thread; a deletion that has begun is finished before a cancellation is heard."""
    return await trio.to_thread.run_sync(_delete, arguments, context)


def _delete(arguments: DeleteArguments, context: ToolContext) -> ToolOutput:
    root = context.root
    path = resolve_name_inside(root, arguments.file_path)
    if path == root:
        raise ToolError("The project's root folder can't be deleted.")
    name = shown(root, path)
    with context.files.lock:
        is_folder = stat.S_ISDIR(existing(root, path).st_mode)
        if not is_folder:
            refuse_stale(context, path)
        try:
            with opened_parent(root, path) as (folder, last_name):
                (os.rmdir if is_folder else os.unlink)(last_name, dir_fd=folder)
        except OSError as error:
            raise file_error(error, name) from None
    return ToolOutput(output=f"Deleted {name}{'/' if is_folder else ''}.")


TOOL = Tool(
    name="Delete",
    description="Delete a file, or an empty folder.",
    effect="write",
    arguments=DeleteArguments,
    run=run,
)
