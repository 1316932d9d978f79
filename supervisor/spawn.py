"""Starts worker processes.

A worker is started fresh, from this very installation: the bootstrap finds the packages by the path of our own, so
that a folder ``workers/`` in the project, or a variable like PYTHONPATH, never decides what code runs.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
import trio

import protocol
from protocol.handshake import WORKER_ENTRY

STDERR_TAIL_BYTES = 4096

_BOOTSTRAP = """
import importlib.util, sys
root, entry, kind, fd = sys.argv[1:]
for name in ("protocol", "workers"):
    spec = importlib.util.spec_from_file_location(
        name, f"{root}/{name}/__init__.py", submodule_search_locations=[f"{root}/{name}"])
    sys.modules[name] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
module, _, function = entry.partition(":")
getattr(importlib.import_module(module), function)(kind, int(fd))
"""


class ExitStatus(msgspec.Struct, frozen=True):
    """How a process ended: ``signal`` its number where one ended it, else ``code``."""

    code: int | None
    signal: int | None


class WorkerProcess:
    """A worker's process, seen from the supervisor. ``stream`` is our end of its channel."""

    def __init__(self, process: subprocess.Popen[bytes], stream: trio.SocketStream) -> None:
        self._process = process
        self.pid = process.pid
        self.stream = stream
        self._stderr_tail = bytearray()
        self._status: ExitStatus | None = None

    async def collect_stderr(self) -> None:
        """Keep the newest `STDERR_TAIL_BYTES` of what the worker writes on stderr, until it ends or is cancelled."""
        assert self._process.stderr is not None
        async with trio.lowlevel.FdStream(os.dup(self._process.stderr.fileno())) as stderr:
            while data := await stderr.receive_some(65536):
                self._stderr_tail += data
                del self._stderr_tail[:-STDERR_TAIL_BYTES]

    @property
    def stderr_tail(self) -> str:
        """What the worker wrote last on stderr."""
        return self._stderr_tail.decode(errors="replace")

    async def wait(self) -> ExitStatus:
        """Wait for the process's end; repeatable. Its group is killed before its pid is given back to the system."""
        if self._status is None:
            await _wait_for_exit(self.pid)
        if self._status is None:
            self.kill()
            code = self._process.wait()
            self._status = ExitStatus(code, None) if code >= 0 else ExitStatus(None, -code)
            if self._process.stderr is not None:
                self._process.stderr.close()
        return self._status

    def terminate(self) -> None:
        """SIGTERM to the worker's process group."""
        if self._status is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL the worker's process group; harmless once it was waited for."""
        if self._status is None:
            with suppress(ProcessLookupError):  # nothing of the group is left but a process that has ended
                os.killpg(self.pid, signal.SIGKILL)


async def _wait_for_exit(pid: int) -> None:
    """Return once ``pid``, a child of ours, has ended; it is left to be reaped."""
    if not hasattr(os, "pidfd_open"):
        await trio.to_thread.run_sync(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT, abandon_on_cancel=True)
        return
    pidfd = os.pidfd_open(pid)
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def spawn_worker(kind: str) -> WorkerProcess:
    """Start a worker of ``kind`` in a process group of its own.

    Raises `OSError` when the system can't: no processes, memory or descriptors left. Call it from the main thread.
    """
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            _command(kind, theirs.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
            process_group=0,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return WorkerProcess(process, trio.SocketStream(trio.socket.from_stdlib_socket(ours)))


def _command(kind: str, channel_fd: int) -> list[str]:
    root = Path(protocol.__path__[0]).parent
    return [sys.executable, "-E", "-P", "-c", _BOOTSTRAP, str(root), WORKER_ENTRY, kind, str(channel_fd)]


class Spawner(Protocol):
    """Starts the workers of a run."""

    async def spawn(self, kind: str) -> WorkerProcess:
        """Start a worker of ``kind``; raises `OSError` when the system can't."""
        ...

    async def run(self) -> None:
        """What the spawner has to do in the background, until cancelled."""
        ...

    def close(self) -> None:
        """End what the spawner itself keeps running."""
        ...


class FreshSpawner:
    """Starts each worker by exec."""

    async def spawn(self, kind: str) -> WorkerProcess:
        """Start a worker."""
        return spawn_worker(kind)

    async def run(self) -> None:
        """Nothing to do."""
        await trio.sleep_forever()

    def close(self) -> None:
        """Nothing to end."""
