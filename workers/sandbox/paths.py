"""Which paths the file tools may name: those inside the project root.

The check is by resolved path, before the file is opened. It holds against ``..``, absolute paths and symbolic links
that lead out, not against somebody who swaps a folder for a link between check and use.
"""

from __future__ import annotations

import difflib
import errno
import os
from itertools import islice
from pathlib import Path

from protocol.codec import clean_text
from workers.tools.tool import ToolError

_NAMES_LOOKED_AT = 5_000
_REASONS = {
    errno.ENOENT: "does not exist",
    errno.EACCES: "may not be accessed (permission denied)",
    errno.EPERM: "may not be changed (operation not permitted)",
    errno.EROFS: "is on a read-only file system",
    errno.ENOSPC: "can't be written: the disk is full",
    errno.EDQUOT: "can't be written: the disk quota is used up",
    errno.EISDIR: "is a folder",
    errno.ENOTDIR: "has a file where a folder should be",
    errno.EEXIST: "has a file where a folder should be",
    errno.ELOOP: "is a symbolic link that leads nowhere",
    errno.ENAMETOOLONG: "is too long a name",
}


class OutsideProject(ToolError):
    """The path leads out of the project root."""


def resolve_inside(root: Path, given: str) -> Path:
    """The absolute path, without symbolic links, that ``given`` names below ``root``; it need not exist.

    ``given`` is relative to ``root`` or absolute; empty stands for ``root`` itself. Raises `OutsideProject` for what
    leads out of ``root`` and `ToolError` for what can be no path.
    """
    if "\0" in given:
        raise ToolError("A path can't contain a NUL character.")
    try:
        path = Path(os.path.realpath(root / given))
    except UnicodeEncodeError:
        raise ToolError(f"{visible(given)} can't be a file name here.") from None
    except OSError as error:
        raise file_error(error, given) from None
    if not path.is_relative_to(root):
        raise OutsideProject(f"{visible(given)} is outside the project; file tools work only inside {visible(root)}.")
    return path


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
    folder = path.parent
    if not folder.is_dir():
        while folder != root and not folder.is_dir():
            folder = folder.parent
        return ToolError(
            f"{shown(root, path)} does not exist; the last folder on its way that does is {shown(root, folder)}."
        )
    near = [shown(root, folder / name) for name in _near_names(folder, path.name)]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return ToolError(f"{shown(root, path)} does not exist.{hint}")


def _near_names(folder: Path, name: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _NAMES_LOOKED_AT)]
    except OSError:
        return []
    by_folded_name = {other.casefold(): other for other in sorted(names)}
    stems = [other for other in sorted(names) if Path(other).stem.casefold() == Path(name).stem.casefold()]
    close = [by_folded_name[key] for key in difflib.get_close_matches(name.casefold(), by_folded_name, n=3)]
    return list(dict.fromkeys([*close, *stems]))[:3]
