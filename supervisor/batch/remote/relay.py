"""Between a cluster and the process that makes an attempt: starts that process, carries bytes both ways.

Runs on the machine of the attempt, in a process of the cluster's, and does not know which cluster it is. The process
it starts has a socket as its lifeline: whichever way this one ends, that one ends all it started.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import supervisor
from supervisor.batch.remote.grounds import PARCELS, clear, make_grounds, parcel_lock
from supervisor.batch.remote.token import Token
from supervisor.child_processes import Family

NODE_ENTRY = "supervisor.batch.remote.node:run_node"
READ_BYTES = 64 * 1024
END_SECONDS = 15.0
"""What the process has to end after its last word, before it is killed."""


def relay(
    token: Token,
    spawn: str,
    parcel: str | None,
    fetch: Callable[[], Iterable[bytes]],
    letters: Callable[[], bytes | None],
) -> Iterator[bytes | int]:
    """Make the attempt ``token``; yields what its process says, and at last its exit code.

    ``parcel`` is the key of what it needs, which ``fetch`` brings where it is not there yet. ``letters`` waits for what
    is to be told to the process: bytes, empty if there is nothing for now, None at the end. Raises `OSError`.
    """
    clear(token.batch_id, token.epoch)
    folder = make_grounds(token)
    if parcel is not None:
        _bring(folder / PARCELS, parcel, fetch)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            family = Family("", [Path(supervisor.__path__[0])], ends_orphans=False)
            process = family.start(NODE_ENTRY, (str(token), str(folder), spawn), theirs.fileno(), None)
        over = threading.Event()
        for carry in (_carry_letters, _watch_parent):
            threading.Thread(target=carry, args=(ours, letters, over), daemon=True).start()
        try:
            with suppress(ConnectionError):
                while data := ours.recv(READ_BYTES):
                    yield data
        finally:
            over.set()
            with suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            code = _wait(process)
    yield code


def _bring(parcels: Path, key: str, fetch: Callable[[], Iterable[bytes]]) -> None:
    """Have the parcel here, packed or unpacked."""
    packed = parcels / f"{key}.packed"
    with parcel_lock(parcels, key):
        if packed.exists() or (parcels / f"{key}.done").exists():
            return
        unfinished = parcels / f"{key}.unfinished"
        with unfinished.open("wb") as file:
            for piece in fetch():
                file.write(piece)
        unfinished.rename(packed)


def _carry_letters(ours: socket.socket, letters: Callable[[], bytes | None], over: threading.Event) -> None:
    """Pass on what comes; when nothing more will come, end the process."""
    with suppress(OSError):
        try:
            while not over.is_set() and (data := letters()) is not None:
                ours.sendall(data)
        finally:
            ours.shutdown(socket.SHUT_RDWR)


def _watch_parent(ours: socket.socket, _letters: object, over: threading.Event) -> None:
    """End the process at once when the one that started ours is gone: the cluster itself takes seconds to notice."""
    if not hasattr(os, "pidfd_open"):
        return
    with suppress(OSError):
        parent = os.pidfd_open(os.getppid())
        try:
            while not over.is_set():
                if select.select([parent], [], [], 1.0)[0]:
                    ours.shutdown(socket.SHUT_RDWR)
                    return
        finally:
            os.close(parent)


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
