"""Replacing pieces of a text: each once and for certain, all of them or none. A pure function of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from workers.tools.tool import ToolError

_LINES_NAMED = 10


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """One replacement. Both texts are literal."""

    old_str: Annotated[str, Meta(description="Literal, with its white space.")]
    new_str: str
    replace_all: bool = False


def apply_replacements(text: str, replacements: Sequence[Replacement]) -> tuple[str, int]:
    """``text`` after all ``replacements``, each made on the result of those before it, and how many places changed.

    The same as ``str.replace`` for each. Raises `ToolError`, which says which one and what to do, if one is empty, has
    no effect, is not found, or is found more than once without ``replace_all``.
    """
    changed = 0
    for number, replacement in enumerate(replacements, start=1):
        old, new = replacement.old_str, replacement.new_str
        which = "old_str" if len(replacements) == 1 else f"old_str of replacement {number}"
        _check(text, replacement, which)
        changed += text.count(old)
        text = text.replace(old, new)
    return text, changed


def _check(text: str, replacement: Replacement, which: str) -> None:
    old = replacement.old_str
    if not old:
        raise ToolError(f"{which} is empty. Give the text to replace, or use Write for a whole file.")
    if old == replacement.new_str:
        raise ToolError(f"{which} and its new_str are the same: there is nothing to change.")
    first = text.find(old)
    if first < 0:
        raise ToolError(f"{which} was not found; nothing was changed. {_nearest(text, old)}")
    # From one character on, so that occurrences which overlap make it ambiguous too.
    if not replacement.replace_all and text.find(old, first + 1) >= 0:
        lines = _lines_of(text, old)
        count = max(2, text.count(old))
        raise ToolError(
            f"{which} occurs {count} times, at lines {lines}; nothing was changed. "
            "Give more of the lines around it, or set replace_all."
        )


def _lines_of(text: str, old: str) -> str:
    lines: list[str] = []
    line, seen_to, at = 1, 0, text.find(old)
    while at >= 0 and len(lines) < _LINES_NAMED:
        line += text.count("\n", seen_to, at)
        seen_to = at
        lines.append(str(line))
        at = text.find(old, at + 1)
    return ", ".join(lines) + (", ..." if at >= 0 else "")


def _nearest(text: str, old: str) -> str:
    """Where ``old`` would be found if white space at the ends of lines didn't count, else where it begins."""
    wanted = [line.strip() for line in old.strip("\n").split("\n")]
    lines = [line.strip() for line in text.split("\n")]
    for at, line in enumerate(lines):
        if line == wanted[0] and lines[at : at + len(wanted)] == wanted:
            return f"The lines from {at + 1} on differ from it only in white space; read them again."
    if wanted[0] and wanted[0] in lines:
        return f"Line {lines.index(wanted[0]) + 1} is its first line, but what follows differs; read it again."
    return "Read the file again and copy the text exactly."
