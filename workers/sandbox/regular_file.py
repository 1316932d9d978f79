"""Reading and replacing regular files, and nothing else.

A pipe would block, a device has no end, a link could lead anywhere: all of them are refused before they are opened.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from workers.sandbox.beneath import opened_parent
from workers.sandbox.paths import file_error, missing, shown
from workers.tools.tool import ToolError

_KINDS = (
    (stat.S_ISDIR, "a folder; use List"),
    (stat.S_ISFIFO, "a named pipe, not a file"),
    (stat.S_ISSOCK, "a socket, not a file"),
    (stat.S_ISCHR, "a device, not a file"),
    (stat.S_ISBLK, "a device, not a file"),
    (stat.S_ISLNK, "a symbolic link that can't be followed"),
)


@contextmanager
def open_regular(root: Path, path: Path) -> Generator[int, None, None]:
    """A descriptor of the regular file at ``path``, open for reading; raises `ToolError` for anything else.

    Never blocks on what ``path`` is, only on its disk. Hard links are files like any other.
    """
    try:
        with opened_parent(root, path) as (folder, name):
            _check_kind(root, path, os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise missing(root, path) from None
    except OSError as error:
        raise file_error(error, shown(root, path)) from None
    try:
        # Once more, of what was really opened: the name may have changed hands.
        _check_kind(root, path, os.fstat(descriptor).st_mode)
        yield descriptor
    finally:
        os.close(descriptor)


def _check_kind(root: Path, path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "not a regular file")
    raise ToolError(f"{shown(root, path)} is {kind}.")


def read_regular(root: Path, path: Path, limit: int) -> bytes | None:
    """The content of the regular file at ``path``, or None if it has more than ``limit`` bytes; raises `ToolError`."""
    with open_regular(root, path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
        try:
            # Read rather than believe the size: files in /proc say 0.
            content = file.read(limit + 1)
        except OSError as error:
            raise file_error(error, shown(root, path)) from None
    return content if len(content) <= limit else None


def replace_regular(root: Path, path: Path, content: bytes) -> None:
    """Make ``content`` the content of ``path`` at one stroke: whoever reads sees the old or the new one, whole.

    Mode and owner of an existing file are kept, missing folders are made. The name gets a new inode: other hard links
    keep the old content. Raises `ToolError`, and leaves the old content, when it can't be done.
    """
    try:
        _make_folders(root, path)
        with opened_parent(root, path) as (folder, name):
            before = _status_of_writable(root, path, folder, name)
            temporary = _written_beside(folder, content, before)
            try:
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _unlink_if_there(folder, temporary)
                raise
    except FileNotFoundError:
        raise missing(root, path) from None
    except OSError as error:
        raise file_error(error, shown(root, path)) from None


def _written_beside(folder: int, content: bytes, before: os.stat_result | None) -> str:
    """The name of a new file in ``folder`` with ``content``, and with mode and owner of ``before``."""
    temporary = f".corral-{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if before is None else 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if before is not None:
                _keep_mode_and_owner(file.fileno(), before)
    except BaseException:
        _unlink_if_there(folder, temporary)
        raise
    return temporary


def _unlink_if_there(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _make_folders(root: Path, path: Path) -> None:
    """Make the folders between ``root`` and ``path``; not ``root``, which somebody may have removed on purpose."""
    for relative in reversed(path.relative_to(root).parents[:-1]):
        with opened_parent(root, root / relative) as (folder, name), suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)


def _status_of_writable(root: Path, path: Path, folder: int, name: str) -> os.stat_result | None:
    try:
        before = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _check_kind(root, path, before.st_mode)
    if not os.access(name, os.W_OK, dir_fd=folder):
        # Renaming over it would work, but whoever made it read-only meant the content.
        raise ToolError(f"{shown(root, path)} is read-only.")
    return before


def _keep_mode_and_owner(descriptor: int, before: os.stat_result) -> None:
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        with suppress(PermissionError):  # only root may give files away
            os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
