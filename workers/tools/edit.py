"""Edit: replace pieces of a file, and leave everything else of it as it is."""

from __future__ import annotations

from typing import Annotated

import msgspec
import trio
from msgspec import Meta

from workers.sandbox.paths import resolve_inside, shown
from workers.sandbox.regular_file import read_regular, replace_regular
from workers.tools.read import WHOLE_FILE
from workers.tools.replacements import Replacement, apply_replacements
from workers.tools.text_file import TextFile, decode
from workers.tools.tool import Tool, ToolArguments, ToolContext, ToolError, ToolOutput


class EditArguments(ToolArguments, frozen=True, kw_only=True):
    """What the model gives."""

    file_path: str
    replacements: Annotated[
        tuple[Replacement, ...],
        Meta(description="Made in order; all or none.", min_length=1),
    ]


async def run(arguments: EditArguments, context: ToolContext) -> ToolOutput:
    """Edit in a thread; an edit that has begun is finished before a cancellation is heard."""
    return await trio.to_thread.run_sync(_edit, arguments, context)


def _edit(arguments: EditArguments, context: ToolContext) -> ToolOutput:
    path = resolve_inside(context.root, arguments.file_path)
    name = shown(context.root, path)
    with context.files.lock:
        content = read_regular(context.root, path, WHOLE_FILE)
        if content is None:
            raise ToolError(f"{name} has over {WHOLE_FILE} bytes, too many for Edit; use Bash.")
        if context.files.is_stale(path, content):
            raise ToolError(f"{name} has changed since you last saw it; read it again first.")
        file = decode(content)
        if file is None:
            raise ToolError(f"{name} is a binary file; Edit changes only text.")
        text, places = edited_text(file, arguments.replacements)
        try:
            new_content = file.encoded(text)
        except UnicodeEncodeError as error:
            character = f"U+{ord(error.object[error.start]):04X}"
            raise ToolError(f"{name} is in {file.encoding}, which has no character {character}.") from None
        replace_regular(context.root, path, new_content)
        context.files.remember(path, new_content)
    return ToolOutput(output=f"Edited {name}: {places} {'place' if places == 1 else 'places'} changed.")


def edited_text(file: TextFile, replacements: tuple[Replacement, ...]) -> tuple[str, int]:
    """The new text of ``file`` and how many places changed.

    Read shows all lines with plain ends, so that is what the model matches with. A file whose every line ends with
    CR LF is matched with plain ends and keeps its own. Where ends are mixed the text is matched as it is, and only a
    piece that isn't found is tried with CR LF.
    """
    if file.has_only_crlf:
        plain = [_with_ends(replacement, "\n") for replacement in replacements]
        text, places = apply_replacements(file.text.replace("\r\n", "\n"), plain)
        return text.replace("\n", "\r\n"), places
    adapted = list(replacements)
    if "\r\n" in file.text:
        crlf = [_with_ends(replacement, "\r\n") for replacement in replacements]
        adapted = [
            other if one.old_str not in file.text and other.old_str in file.text else one
            for one, other in zip(replacements, crlf, strict=True)
        ]
    return apply_replacements(file.text, adapted)


def _with_ends(replacement: Replacement, line_end: str) -> Replacement:
    old, new = (
        text.replace("\r\n", "\n").replace("\n", line_end) for text in (replacement.old_str, replacement.new_str)
    )
    return msgspec.structs.replace(replacement, old_str=old, new_str=new)


TOOL = Tool(
    name="Edit",
    description=(
        "Replace exact pieces of a text file. Each old_str must occur exactly once, or set replace_all: give enough "
        "of the lines around it."
    ),
    effect="write",
    arguments=EditArguments,
    run=run,
)
