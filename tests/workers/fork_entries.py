"""What the workers of the tests do: entries that a fork server, or an exec, is told to run.

Each takes the worker's kind and its channel. The kind is the argument of the entry.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path


def echo(_kind: str, channel_fd: int) -> None:
    """Answer each message with the same, and the pid before the first; ends when the channel does."""
    with socket.socket(fileno=channel_fd) as channel:
        channel.sendall(f"{os.getpid()}\n".encode())
        while data := channel.recv(4096):
            channel.sendall(data)


def leave(kind: str, channel_fd: int) -> None:
    """End as ``kind`` says: ``exit 3``, ``say words``, ``raise``, ``signal 9`` or ``return``."""
    verb, _, word = kind.partition(" ")
    if verb == "exit":
        sys.exit(int(word))
    if verb == "say":
        sys.exit(word)
    if verb == "raise":
        raise RuntimeError("as it was told")
    if verb == "signal":
        os.kill(os.getpid(), int(word))
        signal.pause()


def stay(_kind: str, channel_fd: int) -> None:
    """Take no notice of the channel's end nor of SIGTERM; leave a child in the group and one in a session of its own.

    Says the pids of the two and then never ends.
    """
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)  # ignored, it would be ignored by the children too
    near = subprocess.Popen(["sleep", "600"])
    far = subprocess.Popen(["sleep", "600"], start_new_session=True)
    os.write(channel_fd, f"{os.getpid()} {near.pid} {far.pid}\n".encode())
    while True:
        signal.pause()


def describe(_kind: str, channel_fd: int) -> None:
    """Say in one line what the process is like: open descriptors, signals, limits, modules and chance."""
    import random

    from workers.fork_preload import preload

    before = set(sys.modules)
    preload()
    handlers = {number.name for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if _is_caught(number)}
    found = {
        "descriptors": _open_descriptors(),
        "channel": channel_fd,
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "imported": sorted(set(sys.modules) - before),
        "caught": sorted(handlers),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "chance": random.random(),
        "group": os.getpgid(0),
        "pid": os.getpid(),
    }
    os.write(channel_fd, repr(found).encode() + b"\n")
    select.select([channel_fd], [], [], 60)


def _is_caught(number: signal.Signals) -> bool:
    return callable(signal.getsignal(number)) and signal.getsignal(number) is not signal.default_int_handler


def _open_descriptors() -> list[int]:
    found: list[int] = []
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # the one that listed them is closed by now
            os.fstat(int(link.name))
            found.append(int(link.name))
    return sorted(found)


def kill_the_server(_kind: str, channel_fd: int) -> None:
    """End the process that forked this one."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
