"""A batch's folder: its lock, the projection of its results, its summary.

``DIR/{lock,ledger.db,results.jsonl,summary.json,jobs/<id>/attempt-<n>/...}``; folders have mode 0700, files 0600.
Source: the batch contract, "Files in DIR".
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from supervisor.batch.errors import BatchLocked
from supervisor.errors import StorageFailed
from supervisor.store.folder import is_full, make_private

RESULTS = "results.jsonl"
SUMMARY = "summary.json"
LOCK = "lock"
JOBS = "jobs"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class FolderLock:
    """The lock of a batch's folder, held until `release` or the process's end, whichever way that comes.

    Source: flock(2): there is no such thing as a stale lock.
    """

    def __init__(self, folder: Path) -> None:
        """Take the lock and write who has it; raises `BatchLocked` or `StorageFailed`."""
        path = folder / LOCK
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StorageFailed(f"{path} can't be opened: {error.strerror}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            self.release()
            pid, _, host = holder.partition(" ")
            who = f"process {pid} on {host}" if holder else "another process"
            raise BatchLocked(f"{folder} is in use by {who}: wait for it to end, or take another folder") from None
        except OSError as error:
            self.release()
            raise StorageFailed(f"{path} can't be locked: {error.strerror}", full=is_full(error)) from None

    def release(self) -> None:
        """Let others in."""
        os.close(self._descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a runner works in ``folder`` now."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def make_folder(folder: Path) -> None:
    """Make a batch's folder, which git does not see; raises `StorageFailed`."""
    try:
        make_private(folder / JOBS)
        ignore = folder / ".gitignore"
        if not ignore.exists():
            write_whole(ignore, b"*\n")
    except OSError as error:
        raise StorageFailed(f"{folder} can't be made: {error.strerror or error}", full=is_full(error)) from None


def attempt_folder(folder: Path, job_id: str, n: int) -> Path:
    """The folder of an attempt in that of the batch."""
    return folder / JOBS / job_id / f"attempt-{n}"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, and on the disk when this returns; raises `OSError`."""
    unfinished = path.with_name(path.name + ".tmp")
    try:
        write_synced(unfinished, content)
        unfinished.rename(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise
    sync_folder(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and see it on the disk; raises `OSError`."""
    with open(os.open(path, _FLAGS | os.O_TRUNC, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """See a file that somebody else wrote on the disk, and its name too; raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """See the names in a folder on the disk; raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ResultsFile:
    """``results.jsonl``: a projection of the ledger. Made anew at each start, since the end of it may be torn."""

    def __init__(self, folder: Path, lines: Iterable[bytes]) -> None:
        """Write ``lines``, those of the ledger, without line ends; raises `OSError`."""
        self._path = folder / RESULTS
        write_whole(self._path, b"".join(line + b"\n" for line in lines))
        self._descriptor = os.open(self._path, _FLAGS | os.O_APPEND, 0o600)

    def append(self, line: bytes) -> None:
        """Add a line that is in the ledger; raises `OSError`."""
        data = memoryview(line + b"\n")
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
