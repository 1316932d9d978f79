"""UNIX sockets at paths of any length, and whose they are.

Source: unix(7): an address holds 107 bytes of path (104 on the BSDs); SO_PEERCRED has the credentials that the peer had
when it connected or began to listen.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

ADDRESS_BYTES = 103
"""The longest path that every system takes."""

_BACKLOG = 64
_CREDENTIALS = struct.Struct("3i")


def listen(path: Path) -> socket.socket:
    """A listening socket at ``path`` with mode 0600, which appears there whole: whoever finds it can connect.

    Raises OSError; nothing is left behind then.
    """
    unfinished = path.with_name(f".{path.name}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            unfinished.unlink()
        with _short(unfinished) as address:
            listener.bind(address)
        unfinished.chmod(0o600)
        listener.listen(_BACKLOG)
        unfinished.rename(path)
    except OSError:
        listener.close()
        with suppress(OSError):
            unfinished.unlink()
        raise
    return listener


def connect(path: Path, timeout: float) -> socket.socket:
    """A connection to the socket at ``path``, whose waits last ``timeout`` seconds at most. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        with _short(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def is_refused(path: Path) -> bool:
    """Whether nobody listens at ``path``. A listener that is busy, or can't be reached, is none of that."""
    try:
        connect(path, 0).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except OSError:
        pass
    return False


class HasOptions(Protocol):
    """A socket, of the standard library or of trio."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """The option's value, at most ``buflen`` bytes of it."""
        ...


def is_same_user(connection: HasOptions) -> bool:
    """Whether the peer runs as our own user. Where the system can't say, the folder's mode has to be enough."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, user, _group = _CREDENTIALS.unpack(credentials)
    return bool(user == os.geteuid())


@contextmanager
def _short(path: Path) -> Generator[str, None, None]:
    """``path`` in few enough bytes; a long one by a symbolic link that is there while the block lasts."""
    if len(os.fsencode(path)) <= ADDRESS_BYTES:
        yield str(path)
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="corral-") as folder:
        link = Path(folder) / "f"
        link.symlink_to(path.parent)
        yield str(link / path.name)
