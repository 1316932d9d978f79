"""A fork server that is a fork of this very process, made before anything heavy is imported.

Where there is more than one CPU, two processes import at once: this one what a run needs, the other what its workers
need. So nothing here imports trio or msgspec in the parent.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import protocol


def can_fork_safely() -> bool:
    """Whether this system is fit for a fork server.

    Linux is, where it has pidfds. On macOS system libraries start threads of their own, and there are no sockets of
    type SEQPACKET.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


class EarlyForkServer:
    """A fork server that is a fork of this process, made by `fork_early`."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control
        self._has_begun = False

    def begin(self, conceal: Iterable[str] = ()) -> None:
        """Let it serve once it is ready; until then it waits. Only the first call counts.

        ``conceal`` are the environment variables with keys in them that were set when it was forked: it takes them out
        of its own environment first.
        """
        if not self._has_begun:
            self._has_begun = True
            begin_serving(self.control, conceal)

    def close(self) -> None:
        """End it: for a run that does not come about. May be repeated."""
        self.control.close()
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)  # our child, which nobody else reaps before it is taken over
            os.waitpid(self.pid, 0)


def fork_early() -> EarlyForkServer | None:
    """Fork a fork server off this process, for `choose_spawner`; None where that is not safe or not possible.

    For the front door: the child imports what workers need, while the parent does what comes before a first worker. It
    serves after `EarlyForkServer.begin`. The process must have one thread and must not have run an event loop.
    """
    if not can_fork_safely() or len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208 - names are enough
        return None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:  # no process left: what comes of it is told when a worker is to be started
        ours.close()
        theirs.close()
        return None
    if pid == 0:
        _become_fork_server(parent, theirs.detach())
    theirs.close()
    with suppress(OSError):  # it did it itself
        os.setpgid(pid, pid)
    return EarlyForkServer(pid, ours)


def _become_fork_server(supervisor: int, socket_fd: int) -> NoReturn:
    """What runs in the fork. None of our stack may go on there, whatever happens."""
    try:
        from importlib import import_module

        from protocol.fork_frames import FORK_SERVER_ENTRY

        for folder in own_packages():
            _find_package_at(folder)
        module, _, function = FORK_SERVER_ENTRY.partition(":")
        getattr(import_module(module), function)(str(supervisor), socket_fd)
    finally:
        os._exit(1)


def _find_package_at(folder: Path) -> None:
    """Import the package in ``folder`` under its name, wherever ``sys.path`` would find one."""
    import importlib.util

    if folder.name not in sys.modules:
        file = folder / "__init__.py"
        spec = importlib.util.spec_from_file_location(folder.name, file, submodule_search_locations=[str(folder)])
        assert spec is not None
        assert spec.loader is not None
        sys.modules[folder.name] = package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)


def begin_serving(control: socket.socket, conceal: Iterable[str] = ()) -> None:
    """Send a fork server the message that it waits for; see `protocol.fork_frames.Begin`. One that died is no error."""
    from protocol.fork_frames import Begin, encode_fork_frame

    with suppress(BrokenPipeError, ConnectionResetError):
        control.send(encode_fork_frame(Begin(conceal=tuple(conceal))))


def own_packages() -> tuple[Path, Path]:
    """The folders of the packages that a process of ours needs, wherever ``sys.path`` would find others."""
    root = Path(protocol.__path__[0]).parent
    return root / "protocol", root / "workers"
