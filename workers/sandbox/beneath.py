"""Folders below the project root, opened so that no link on the way is followed.

A path is resolved first (`workers.sandbox.paths`), links and all, and must lie inside; then its folder is opened here
from a descriptor of the root without following any link. A link that is met now was put there in between, and the
call is refused. What happens to a file then happens below that descriptor, by its last name alone. So whatever is
swapped for what, and however fast, nothing outside is read or written.

Linux looks the whole way up at once (openat2); elsewhere, and on older kernels, each part is opened from the one before
it. Source: openat2(2), RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS; POSIX.1-2024, `openat`, O_NOFOLLOW.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

ON_THE_WAY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
"""Flags for a folder that is only passed through: it need not be readable."""

LISTED = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_RDONLY
"""Flags for a folder whose entries are wanted."""

_SYS_OPENAT2 = 437  # on every architecture that Python runs on
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_TRIES = 128
"""How often a look-up is made again that the kernel gave up because something was renamed meanwhile."""


class OpenHow(ctypes.Structure):
    """``struct open_how`` of openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class FolderEntry(NamedTuple):
    """An entry of a folder, by its own kind: a link counts as a link, wherever it leads."""

    name: str
    is_folder: bool
    is_link: bool


@contextmanager
def opened_folder(root: Path, folder: Path, flags: int = ON_THE_WAY) -> Generator[int, None, None]:
    """A descriptor of ``folder``, which is ``root`` or lies below it; closed at the end of the block.

    Raises `OSError`: ELOOP or ENOTDIR where a link lies on the way.
    """
    descriptor = _open_folder(root, folder, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_parent(root: Path, path: Path) -> Generator[tuple[int, str], None, None]:
    """A descriptor of the folder that ``path`` lies in, and its name there; for ``root`` itself that is ``.``.

    For calls with ``dir_fd``, which must not follow a link at the name itself. Raises as `opened_folder`.
    """
    name = "." if path == root else path.name
    with opened_folder(root, root if path == root else path.parent) as descriptor:
        yield descriptor, name


def status_of(root: Path, path: Path) -> os.stat_result | None:
    """The status of what is at ``path``, of a link its own; None where there is nothing.

    Raises `OSError` for all other reasons.
    """
    try:
        with opened_parent(root, path) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def entries_of(root: Path, folder: Path) -> list[FolderEntry]:
    """What is in ``folder``, sorted by name; raises `OSError`."""
    with opened_folder(root, folder, LISTED) as descriptor, os.scandir(descriptor) as found:
        entries = [FolderEntry(entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in found]
    entries.sort()
    return entries


def _open_folder(root: Path, folder: Path, flags: int) -> int:
    parts = folder.relative_to(root).parts
    if not parts:
        return os.open(root, flags)
    if ".." in parts:  # resolved paths have none, and no look-up here may go up
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(folder))
    # The way to the root is the person's own choice; only what lies below it is anybody else's.
    start = os.open(root, ON_THE_WAY)
    try:
        return opener()(start, parts, flags)
    finally:
        os.close(start)


def by_openat2(start: int, parts: tuple[str, ...], flags: int) -> int:
    """Open the folder that ``parts`` lead to from the descriptor ``start``, in one look-up of the kernel's."""
    how = OpenHow(flags=flags, resolve=_RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS)
    path = os.fsencode("/".join(parts))
    number = errno.EAGAIN
    for _ in range(_TRIES):
        descriptor = _openat2(start, path, how)
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), "/".join(parts))


def by_walking(start: int, parts: tuple[str, ...], flags: int) -> int:
    """As `by_openat2`, one part after the other."""
    current = os.dup(start)
    for at, part in enumerate(parts, start=1):
        try:
            below = os.open(part, flags if at == len(parts) else ON_THE_WAY, dir_fd=current)
        finally:
            os.close(current)
        current = below
    return current


@cache
def opener() -> Callable[[int, tuple[str, ...], int], int]:
    return by_openat2 if has_openat2() else by_walking


def has_openat2() -> bool:
    """Whether the kernel has openat2 and lets us call it (old container runtimes forbid what they don't know)."""
    if not sys.platform.startswith("linux"):
        return False
    descriptor = _openat2(-100, b"/", OpenHow(flags=ON_THE_WAY, resolve=_RESOLVE_NO_SYMLINKS))
    if descriptor < 0:
        return False
    os.close(descriptor)
    return True


def _openat2(start: int, path: bytes, how: OpenHow) -> int:
    size = ctypes.c_size_t(ctypes.sizeof(how))
    return int(_libc().syscall(ctypes.c_long(_SYS_OPENAT2), start, path, ctypes.byref(how), size))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
