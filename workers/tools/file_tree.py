"""Walking through the files of a project, without those that git ignores."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from workers.sandbox.beneath import entries_of
from workers.sandbox.regular_file import read_regular
from workers.tools.tool import ToolError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_IGNORE_FILE = ".gitignore"
_LONGEST_IGNORE_FILE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file or folder met on the way. ``path`` is relative to the root, with ``/``; a link is never followed."""

    path: str
    is_folder: bool
    is_link: bool


@dataclass(frozen=True)
class IgnoreRules:
    """The ignore files that hold in a folder, the outermost first, each with the folder that it lies in.

    Source: gitignore(5). The innermost file that says anything of a path decides; within a file the last line does.
    """

    levels: tuple[tuple[str, GitIgnoreSpec], ...] = ()

    def ignore(self, path: str, is_folder: bool) -> bool:
        """Whether the entry at ``path`` is left out, provided that the folders above it are not."""
        for folder, spec in reversed(self.levels):
            below = path[len(folder) :] + ("/" if is_folder else "")
            verdict = spec.check_file(below).include
            if verdict is not None:
                return verdict
        return False

    def within(self, root: Path, folder: str, files: Container[str] = (_IGNORE_FILE,)) -> IgnoreRules:
        """The rules inside ``folder`` (empty for the root, else ending with ``/``), given those of its parent.

        ``files`` are the names of the files that may be there; what isn't among them is not looked for.
        """
        names = [f"{folder}{_IGNORE_FILE}"] if _IGNORE_FILE in files else []
        if not folder:
            names.insert(0, ".git/info/exclude")
        specs = [spec for name in names if (spec := _read_spec(root, root / name)) is not None]
        return IgnoreRules((*self.levels, *((folder, spec) for spec in specs))) if specs else self


def _read_spec(root: Path, file: Path) -> GitIgnoreSpec | None:
    try:
        content = read_regular(root, file, _LONGEST_IGNORE_FILE)
    except ToolError:
        return None
    # Not imported before it is needed: most workers never walk through a tree with ignore files.
    from pathspec import GitIgnoreSpec

    lines = (content or b"").decode("utf-8", "replace").splitlines()
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError:  # one bad line; git passes over it
        return GitIgnoreSpec.from_lines(line for line in lines if _is_pattern(GitIgnoreSpec, line))


def _is_pattern(spec: type[GitIgnoreSpec], line: str) -> bool:
    try:
        spec.from_lines([line])
    except ValueError:
        return False
    return True


def walk(root: Path, start: Path) -> Iterator[Entry]:
    """All that lies below the folder ``start``, folders before what is in them, sorted by name.

    Without ``.git`` folders and without what is ignored, unless ``start`` itself is: then somebody wants to see it and
    only ignore files from there on count. Folders that can't be read are passed over. Runs in a thread of trio's and
    ends with `trio.Cancelled` when its call was cancelled.
    """
    folder = start.relative_to(root).as_posix() + "/" if start != root else ""
    pending = [_entries(root, folder, rules_above(root, folder))]
    while pending:
        step = next(pending[-1], None)
        if step is None:
            pending.pop()
            continue
        entry, rules = step
        yield entry
        if entry.is_folder:
            pending.append(_entries(root, f"{entry.path}/", rules))


def rules_above(root: Path, folder: str) -> IgnoreRules:
    """The rules of all folders above ``folder``; none if one of them ignores the way to it."""
    rules = IgnoreRules()
    above = ""
    for name in folder.split("/")[:-1]:
        rules = rules.within(root, above)
        above = f"{above}{name}/"
        if rules.ignore(above[:-1], is_folder=True):
            return IgnoreRules()
    return rules


def _entries(root: Path, folder: str, rules: IgnoreRules) -> Iterator[tuple[Entry, IgnoreRules]]:
    """The entries of one folder, each with the rules of that folder; ``rules`` are those of its parent."""
    trio.from_thread.check_cancelled()
    try:
        entries = entries_of(root, root / folder)
    except OSError:
        return
    names = {entry.name for entry in entries if not entry.is_folder}
    rules = rules.within(root, folder, names)
    for entry in entries:
        path = folder + entry.name
        if entry.name != ".git" and not rules.ignore(path, entry.is_folder):
            yield Entry(path=path, is_folder=entry.is_folder, is_link=entry.is_link), rules
