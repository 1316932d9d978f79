"""Which paths the file tools may name: those inside the project root.

A path is resolved here, by ``..`` and links, and refused where it leads out. What is then done with it is done by
`workers.sandbox.beneath`, which follows no link any more: so it doesn't matter what is swapped in between.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
import unicodedata
from itertools import islice
from pathlib import Path

from protocol.codec import clean_text
from workers.sandbox.beneath import entries_of, status_of
from workers.tools.tool import ToolError

_NAMES_LOOKED_AT = 5_000
_REASONS = {
    errno.ENOENT: "does not exist",
    errno.EACCES: "may not be accessed (permission denied)",
    errno.EPERM: "may not be changed (operation not permitted)",
    errno.EROFS: "is on a read-only file system",
    errno.ENOSPC: "can't be written: the disk is full; the old content, if any, is untouched",
    errno.EDQUOT: "can't be written: the disk quota is used up; the old content, if any, is untouched",
    errno.EISDIR: "is a folder",
    errno.ENOTDIR: "has a file where a folder should be",
    errno.EEXIST: "has a file where a folder should be",
    errno.ENOTEMPTY: "is a folder that is not empty",
    errno.ELOOP: "is, or lies below, a symbolic link that can't be followed",
    errno.ENAMETOOLONG: "is too long a name",
    errno.EXDEV: "leads out of the project",
}


class OutsideProject(ToolError):
    """The path leads out of the project root."""


class ProjectGone(ToolError):
    """The project root is no folder any more."""

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"cwd_gone: the project folder {visible(root)} is gone (deleted or moved), so nothing can be done in it. "
            "Say so in your reply."
        )


def resolve_inside(root: Path, given: str) -> Path:
    """The absolute path, without symbolic links, that ``given`` names below ``root``; it need not exist.

    ``given`` is relative to ``root`` or absolute; empty stands for ``root`` itself. A name that does not exist as it is
    given, but in another Unicode normal form, is taken in that form: a model can't tell the two apart. Raises
    `OutsideProject` for what leads out of ``root`` and `ToolError` for what can be no path.
    """
    path = _resolved(root, _below_root(root, given), given)
    if not given.isascii():
        # A link may be among the names that were found only now.
        path = _resolved(root, as_spelled(root, path), given)
    return path


def resolve_name_inside(root: Path, given: str) -> Path:
    """As `resolve_inside`, but where the last name is a link the path is the link's own."""
    path = _below_root(root, given)
    if path == root or path.name in ("", ".."):
        return resolve_inside(root, given)
    return as_spelled(root, resolve_inside(root, str(path.parent)) / path.name)


def _below_root(root: Path, given: str) -> Path:
    """``given`` as an absolute path; a root that is spelled in another normal form is the root all the same."""
    if "\0" in given:
        raise ToolError("A path can't contain a NUL character.")
    if given.isascii() or not given.startswith("/") or given.startswith(f"{root}/"):
        return root / given
    composed, above = unicodedata.normalize("NFC", given), f"{unicodedata.normalize('NFC', str(root))}/"
    return root / composed.removeprefix(above)


def _resolved(root: Path, path: Path, given: str) -> Path:
    try:
        resolved = Path(os.path.realpath(path))
    except UnicodeEncodeError:
        raise ToolError(f"{visible(given)} can't be a file name here.") from None
    except OSError as error:
        raise file_error(error, given) from None
    if not resolved.is_relative_to(root):
        raise OutsideProject(f"{visible(given)} is outside the project; file tools work only inside {visible(root)}.")
    return resolved


def as_spelled(root: Path, path: Path) -> Path:
    """``path`` with each name as its folder spells it, where it has it in another Unicode normal form only.

    Source: Unicode Standard Annex 15. A name that is there as given is never taken for another.
    """
    found = root
    for name in path.relative_to(root).parts:
        found = found / (name if name.isascii() else _as_in_folder(root, found, name))
    return found


def _as_in_folder(root: Path, folder: Path, name: str) -> str:
    composed = unicodedata.normalize("NFC", name)
    try:
        names = [entry.name for entry in entries_of(root, folder)]
    except OSError:
        return name
    if name in names:
        return name
    return next((other for other in names if unicodedata.normalize("NFC", other) == composed), name)


def shown(root: Path, path: Path) -> str:
    """``path`` as the model reads it: relative to ``root``, with ``/``, on one line."""
    return visible(path.relative_to(root).as_posix())


def visible(name: str | Path) -> str:
    """A file name as text on one line: control characters as escapes, what is no Unicode replaced by U+FFFD."""
    text = clean_text(str(name))
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or ord(c) > 0x9F else c.encode("unicode_escape").decode() for c in text)


def file_error(error: OSError, given: str) -> ToolError:
    """``error`` as a sentence that names the path as the model gave it."""
    reason = _REASONS.get(error.errno or 0) or f"can't be used: {(error.strerror or str(error)).lower()}"
    return ToolError(f"{visible(given)} {reason}.")


def missing(root: Path, path: Path) -> ToolError:
    """A sentence for a ``path`` that does not exist, with the names in its folder that come near."""
    if not root.is_dir():
        return ProjectGone(root)
    folder = path.parent
    if not is_folder(root, folder):
        while not is_folder(root, folder):
            folder = folder.parent
        return ToolError(
            f"{shown(root, path)} does not exist; the last folder on its way that does is {shown(root, folder)}."
        )
    near = [shown(root, folder / name) for name in _near_names(root, folder, path.name)]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return ToolError(f"{shown(root, path)} does not exist.{hint}")


def is_folder(root: Path, path: Path) -> bool:
    """Whether ``path`` is ``root``, or a folder below it that can be come to."""
    if path == root:
        return True
    try:
        status = status_of(root, path)
    except OSError:
        return False
    return status is not None and stat.S_ISDIR(status.st_mode)


def exists(root: Path, path: Path) -> bool:
    """Whether anything is at the resolved ``path``; raises `ToolError` where that can't be told."""
    try:
        return status_of(root, path) is not None
    except OSError as error:
        raise file_error(error, shown(root, path)) from None


def existing(root: Path, path: Path) -> os.stat_result:
    """The status of what is at the resolved ``path``; raises `ToolError` when there is nothing, or it can't be told."""
    try:
        status = status_of(root, path)
    except OSError as error:
        raise file_error(error, shown(root, path)) from None
    if status is None:
        raise missing(root, path)
    return status


def _near_names(root: Path, folder: Path, name: str) -> list[str]:
    try:
        names = [entry.name for entry in islice(entries_of(root, folder), _NAMES_LOOKED_AT)]
    except OSError:
        return []
    by_folded_name = {other.casefold(): other for other in names}
    stems = [other for other in names if Path(other).stem.casefold() == Path(name).stem.casefold()]
    close = [by_folded_name[key] for key in difflib.get_close_matches(name.casefold(), by_folded_name, n=3)]
    return list(dict.fromkeys([*close, *stems]))[:3]
