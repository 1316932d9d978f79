"""Where the sockets of live runs are, and which of them are left from runs that are gone.

``<session_id>.<pid>.sock`` in a folder with mode 0700: ``$XDG_RUNTIME_DIR/corral``, or ``run`` in corral's state folder
where that variable is not set or names no folder of this user's (as under sudo).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from supervisor.live.errors import FolderUnsafe
from supervisor.live.unix_socket import is_refused
from supervisor.xdg import state_folder

_NAME = re.compile(r"\.?(?P<session>[A-Za-z0-9][A-Za-z0-9-]{0,63})\.(?P<pid>[1-9][0-9]{0,9})\.sock")


class LiveSocket(msgspec.Struct, frozen=True, kw_only=True):
    """The socket of a run; ``pid`` is its supervisor's."""

    path: Path
    session_id: str
    pid: int


def live_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the sockets; it need not exist. Source: XDG Base Directory Specification 0.8."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        with suppress(OSError):
            found = Path(runtime).stat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                return Path(runtime) / "corral"
    return state_folder(environ) / "run"


def socket_of(folder: Path, session_id: str, pid: int) -> LiveSocket:
    """The socket of a run that is named so."""
    return LiveSocket(path=folder / f"{session_id}.{pid}.sock", session_id=session_id, pid=pid)


def make_folder(folder: Path) -> None:
    """Make the folder, or close an existing one of ours to others. Raises OSError and `FolderUnsafe`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.lstat().st_uid == os.geteuid() and not folder.is_symlink():
        folder.chmod(0o700)
    check_folder(folder)


def check_folder(folder: Path) -> None:
    """Raise `FolderUnsafe` unless the folder is ours and closed to others, OSError if it can't be looked at."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise FolderUnsafe(f"{folder} must be a folder of yours that is closed to others (mode 0700)")


def live_sockets(folder: Path) -> list[LiveSocket]:
    """The sockets of runs that may be live, by name; those of runs that are gone are removed.

    Raises `FolderUnsafe`; no folder means no runs.
    """
    try:
        check_folder(folder)
        names = sorted(each.name for each in folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FolderUnsafe(f"{folder} can't be read: {error.strerror or error}") from None
    found: list[LiveSocket] = []
    for name in names:
        matched = _NAME.fullmatch(name)
        if matched is None:
            continue
        live = LiveSocket(path=folder / name, session_id=matched["session"], pid=int(matched["pid"]))
        if is_stale(live):
            with suppress(OSError):
                live.path.unlink()
        elif not name.startswith("."):  # a run that has yet to listen
            found.append(live)
    return found


def is_stale(live: LiveSocket) -> bool:
    """Whether the run is gone: no process of its number is left and nobody listens.

    Both, because numbers are used again, and a run in another namespace of process ids has one that we can't see.
    """
    return not _is_alive(live.pid) and is_refused(live.path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
