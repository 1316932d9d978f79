"""Where a session lies, and the lock that keeps it to one process.

``sessions/<session_id>/{session.db,lock}`` below corral's state folder; folders have mode 0700, files 0600.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from datetime import datetime
from pathlib import Path

from supervisor.errors import SessionLocked, StorageFailed, UnknownSession

DATABASE = "session.db"
LOCK = "lock"

_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_ATTEMPTS = 16
_NAMED_AT_MOST = 10


def new_session_id(now: datetime, chance: int) -> str:
    """A name that sorts by time and is short enough to type: the UTC time and six hex digits of ``chance``."""
    return f"{now:%Y%m%d-%H%M%S}-{chance % 0x1000000:06x}"


def find_session(home: Path, session_id: str) -> Path:
    """The folder of the stored session of that id, or the only one whose id begins so; raises `UnknownSession`.

    No name leads out of the folder of sessions.
    """
    folder = home / "sessions" / session_id
    if _SESSION_ID.fullmatch(session_id):
        if (folder / DATABASE).is_file():
            return folder
        fitting = [each for each in session_folders(home) if each.name.startswith(session_id)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            hints = tuple(each.name for each in fitting[-_NAMED_AT_MOST:])
            raise UnknownSession(f"{session_id!r} begins the ids of {len(fitting)} sessions, the last", hints=hints)
    raise UnknownSession(f"there is no session {session_id!r}: corral sessions list shows those that there are")


def session_folders(home: Path) -> list[Path]:
    """The folders of all stored sessions, the oldest first; raises `StorageFailed`."""
    try:
        folders = sorted((home / "sessions").iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageFailed(f"{home / 'sessions'} can't be read: {error.strerror or error}") from None
    return [folder for folder in folders if _SESSION_ID.fullmatch(folder.name) and (folder / DATABASE).is_file()]


def make_session_folder(home: Path, now: datetime, chance: int) -> Path:
    """Make the folder of a new session, with an empty database file in it; raises `StorageFailed`."""
    try:
        sessions = make_private(home / "sessions")
        for attempt in range(_ATTEMPTS):
            folder = sessions / new_session_id(now, chance + attempt)
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                continue
            # SQLite gives its other files the mode of this one, but would make it by the umask alone.
            os.close(os.open(folder / DATABASE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return folder
    except OSError as error:
        raise StorageFailed(f"the session can't be stored below {home}: {error.strerror or error}") from None
    raise StorageFailed(f"the session can't be stored below {home}: no free name")


def make_private(folder: Path) -> Path:
    """Make ``folder`` and what is missing above it, all with mode 0700 (`Path.mkdir` gives parents the default)."""
    missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    return folder


class SessionLock:
    """The lock of a session, held until `release` or the process's end, whichever way that comes.

    Source: flock(2). The descriptor is closed on exec; a process forked while it is open would share the lock.
    """

    def __init__(self, folder: Path) -> None:
        """Take the lock and write this process's id in it; raises `SessionLocked` or `StorageFailed`."""
        try:
            self._descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageFailed(f"{folder / LOCK} can't be opened: {error.strerror}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            pid = self._holder()
            self.release()
            raise SessionLocked(folder.name, pid) from None
        except OSError as error:
            self.release()
            raise StorageFailed(f"{folder / LOCK} can't be locked: {error.strerror}", full=is_full(error)) from None

    def release(self) -> None:
        """Let others in."""
        os.close(self._descriptor)

    def _holder(self) -> int | None:
        text = os.pread(self._descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else None


def is_full(error: OSError) -> bool:
    """Whether ``error`` says that there is no room left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
