"""Starts worker processes: as forks of a fork server, or each by exec where fork is not to be used.

Whichever way, what runs is this very installation: packages are found by the path of our own, so that a folder
``workers/`` in the project, or a variable like PYTHONPATH, never decides what code runs. The names of the entries come
from `protocol` and are resolved in the child only.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Literal, NoReturn, Protocol, TypeAlias

import msgspec
import trio

import protocol
from protocol.fork_frames import (
    FORK_SERVER_ENTRY,
    FRESH_WORKER_ENTRY,
    MAX_MESSAGE_BYTES,
    Exited,
    ForkRequest,
    Reap,
    Serving,
    Spawn,
    Spawned,
    SpawnFailed,
    encode_fork_frame,
    end_orphans,
    notice_decoder,
)
from protocol.handshake import WORKER_ENTRY

SpawnMode: TypeAlias = Literal["auto", "fork", "fresh"]
"""``fork``: a fork server; ``fresh``: an exec for each worker; ``auto``: fork where the system is fit for it."""

STDERR_TAIL_BYTES = 4096
MOST_OPEN_FILES = 8192
"""The soft limit of descriptors in this process, where the hard one allows it: a worker takes two here."""

_CLOSE_SECONDS = 3.0
"""What a fork server has to end by itself: half a second of it is its workers' own."""

_BOOTSTRAP = """
import importlib.util, os, sys
folders, entry, *words, number = sys.argv[1:]
for folder in folders.split(os.pathsep):
    name = os.path.basename(folder)
    spec = importlib.util.spec_from_file_location(
        name, f"{folder}/__init__.py", submodule_search_locations=[folder])
    sys.modules[name] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
module, _, function = entry.partition(":")
getattr(importlib.import_module(module), function)(*words, int(number))
"""


class ExitStatus(msgspec.Struct, frozen=True):
    """How a process ended: ``signal`` its number where one ended it, else ``code``; both None where nobody knows."""

    code: int | None
    signal: int | None


class Spawner(Protocol):
    """Starts the workers of a run."""

    async def spawn(self, kind: str) -> WorkerProcess:
        """Start a worker of ``kind`` in a process group of its own.

        Raises `OSError` when the system can't: no processes, memory or descriptors left. After a cancellation there is
        no worker, or one whose channel is closed. Needs `run` to be running; to be called from the main thread.
        """
        ...

    async def run(self) -> None:
        """Take notice of what becomes of the workers, until cancelled."""
        ...

    def close(self) -> None:
        """End what the spawner itself keeps running, and all workers that are left; blocks for 3 seconds at most.

        For after the run, outside of trio. May be repeated.
        """
        ...


def choose_spawner(
    mode: SpawnMode,
    early: EarlyForkServer | None = None,
    *,
    entry: str = WORKER_ENTRY,
    packages: Sequence[Path] = (),
    ends_orphans: bool = False,
) -> Spawner:
    """The spawner for ``mode``; it takes over ``early``, and raises this process's soft limit of open files.

    ``entry`` is where its workers begin; ``packages`` are the folders of packages that it needs beside our own.
    ``ends_orphans`` says that this process is a subreaper and has no children but the spawner's: then it kills any
    other that turns up when a worker has ended.
    """
    family = _Family(entry, packages, ends_orphans=ends_orphans)
    if mode == "fresh" or (mode == "auto" and not _can_fork_safely()):
        if early is not None:
            early.close()
        return FreshSpawner(family)
    return ForkSpawner(family, early)


# -- one worker's process ---------------------------------------------------------------------------------------------


class WorkerProcess:
    """A worker's process, seen from the supervisor. ``stream`` is our end of its channel."""

    def __init__(self, pid: int, ends: _Ends, *, reap: Callable[[], ExitStatus] | None) -> None:
        """``reap`` waits for a child of ours and returns its status; None: somebody else will `report` it."""
        self.pid = pid
        self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(ends.channel))
        self._stderr: int | None = ends.stderr
        self._stderr_tail = bytearray()
        self._status: ExitStatus | None = None
        self._reap_child = reap
        self._changed = trio.Event()

    async def collect_stderr(self) -> None:
        """Keep the newest `STDERR_TAIL_BYTES` of what the worker writes on stderr, until it ends or is cancelled.

        May be called once.
        """
        descriptor, self._stderr = self._stderr, None
        if descriptor is None:
            return
        async with trio.lowlevel.FdStream(descriptor) as stderr:
            while data := await stderr.receive_some(65536):
                self._stderr_tail += data
                del self._stderr_tail[:-STDERR_TAIL_BYTES]

    @property
    def stderr_tail(self) -> str:
        """What the worker wrote last on stderr."""
        return self._stderr_tail.decode(errors="replace")

    async def wait(self) -> ExitStatus:
        """Wait for the process's end; any number of tasks may, and again.

        Its group is killed before its pid is given back to the system. Cancelling leaves the process alone.
        """
        while self._status is None:
            if self._reap_child is None:
                await self._changed.wait()
                continue
            await _wait_for_exit(self.pid)
            if self._status is None:  # else another task was quicker
                self.kill()
                self._end(self._reap_child())
        return self._status

    def report(self, status: ExitStatus) -> None:
        """The parent of the process says how it ended."""
        self._end(status)
        self._changed.set()

    def adopt(self, reap: Callable[[], ExitStatus]) -> None:
        """The process is a child of ours from now on: its parent has died."""
        self._reap_child = reap
        self._changed.set()

    def terminate(self) -> None:
        """SIGTERM to the worker's process group."""
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the worker's process group; harmless once its end is known."""
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> None:
        if self._status is None:
            with suppress(ProcessLookupError):  # nothing of the group is left but a process that has ended
                os.killpg(self.pid, number)

    def _end(self, status: ExitStatus) -> None:
        self._status = status
        descriptor, self._stderr = self._stderr, None
        if descriptor is not None:
            os.close(descriptor)


async def _wait_for_exit(pid: int) -> None:
    """Return once ``pid``, a child of ours, has ended; it is left to be reaped."""
    if not hasattr(os, "pidfd_open"):
        await trio.to_thread.run_sync(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT, abandon_on_cancel=True)
        return
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:  # no child of ours, and reaped by whoever's it was
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


class _Ends(msgspec.Struct, frozen=True):
    """Our ends of a worker's channel and stderr, and the worker's."""

    channel: socket.socket
    stderr: int
    their_channel: socket.socket
    their_stderr: int

    @classmethod
    def open(cls) -> _Ends:
        ours, theirs = socket.socketpair()
        try:
            reader, writer = os.pipe()
        except OSError:
            ours.close()
            theirs.close()
            raise
        return cls(ours, reader, theirs, writer)

    @property
    def theirs(self) -> tuple[int, int]:
        return self.their_channel.fileno(), self.their_stderr

    def close_theirs(self) -> None:
        self.their_channel.close()
        os.close(self.their_stderr)

    def close_ours(self) -> None:
        self.channel.close()
        os.close(self.stderr)


# -- children ---------------------------------------------------------------------------------------------------------


class _Family:
    """What is to be run in child processes, and who of the children of this process is known."""

    def __init__(self, entry: str, packages: Sequence[Path], *, ends_orphans: bool) -> None:
        self.entry = entry
        self._folders = [*_own_packages(), *packages]
        self._ends_orphans = ends_orphans
        self._known: set[int] = set()
        self._open_files = _raise_open_files()

    def start(self, entry: str, words: Sequence[str], kept: int, stderr: int | None) -> subprocess.Popen[bytes]:
        """Start a process by exec that calls ``entry`` with ``words`` and ``kept``, a descriptor that it inherits."""
        folders = os.pathsep.join(map(str, self._folders))
        process = subprocess.Popen(
            [sys.executable, "-E", "-P", "-c", _BOOTSTRAP, folders, entry, *words, str(kept)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=(kept,),
            process_group=0,
        )
        if hasattr(resource, "prlimit"):  # a tool that closes all it could have open would take long
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, self._open_files)
        self._known.add(process.pid)
        return process

    def know(self, pid: int) -> None:
        """``pid`` is a child of ours, or will be."""
        self._known.add(pid)

    def reap(self, pid: int, process: subprocess.Popen[bytes] | None = None) -> ExitStatus:
        """The status of a child that has ended; it is gone then, and so are the orphans that it left behind."""
        try:
            code: int | None = process.wait() if process else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:
            code = None
        self._known.discard(pid)
        if self._ends_orphans:
            end_orphans(self._known)
        if code is None or code >= 0:
            return ExitStatus(code, None)
        return ExitStatus(None, -code)


def _own_packages() -> tuple[Path, Path]:
    root = Path(protocol.__path__[0]).parent
    return root / "protocol", root / "workers"


def _raise_open_files() -> tuple[int, int]:
    """Raise the soft limit of open files; returns the limits as they were."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MOST_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft, hard


# -- each worker by exec ----------------------------------------------------------------------------------------------


class FreshSpawner:
    """Starts each worker by exec. See `Spawner`."""

    def __init__(self, family: _Family | None = None) -> None:
        self._family = family or _Family(WORKER_ENTRY, (), ends_orphans=False)

    async def spawn(self, kind: str) -> WorkerProcess:
        """See `Spawner.spawn`."""
        ends = _Ends.open()
        try:
            channel, stderr = ends.theirs
            process = self._family.start(FRESH_WORKER_ENTRY, (self._family.entry, kind), channel, stderr)
        except OSError:
            ends.close_ours()
            raise
        finally:
            ends.close_theirs()
        return WorkerProcess(process.pid, ends, reap=lambda: self._family.reap(process.pid, process))

    async def run(self) -> None:
        """Wait until cancelled: each worker tells of its own end."""
        await trio.sleep_forever()

    def close(self) -> None:
        """Nothing is left to end."""


# -- workers as forks -------------------------------------------------------------------------------------------------


class EarlyForkServer:
    """A fork server that is a fork of this process, made by `fork_early`."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control

    def close(self) -> None:
        """End it: for a run that does not come about."""
        self.control.close()
        _end_process(self.pid, 0.0)


def fork_early() -> EarlyForkServer | None:
    """Fork a fork server off this process, for `choose_spawner`; None where that is not safe or not possible.

    For the front door, as soon as trio and msgspec are imported: the child goes on to import what workers need, while
    the parent opens the session. The process must have one thread and must not have run an event loop.
    """
    if not _can_fork_safely() or len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208 - names are enough
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
        for folder in _own_packages():
            _find_package_at(folder)
        module, _, function = FORK_SERVER_ENTRY.partition(":")
        getattr(import_module(module), function)(str(supervisor), socket_fd)
    finally:
        os._exit(1)


def _find_package_at(folder: Path) -> None:
    """Import the package in ``folder`` under its name, wherever ``sys.path`` would find one."""
    if folder.name not in sys.modules:
        file = folder / "__init__.py"
        spec = importlib.util.spec_from_file_location(folder.name, file, submodule_search_locations=[str(folder)])
        assert spec is not None
        assert spec.loader is not None
        sys.modules[folder.name] = package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)


def _can_fork_safely() -> bool:
    # macOS: its system libraries start threads of their own; and it has no sockets of type SEQPACKET.
    return sys.platform.startswith("linux") and hasattr(os, "pidfd_open")


def _end_process(pid: int, seconds: float) -> None:
    """Wait for a child of ours, ``seconds`` at most; then kill it. It is reaped."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([pidfd], [], [], seconds)[0]:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


class _Answer:
    """What becomes of a request: a pid, an errno, or neither if the server has died."""

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.pid: int | None = None
        self.errno: int | None = None


class _ServerLink:
    """Our end of one fork server, from its start to its end."""

    def __init__(self, pid: int, control: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        control.setblocking(False)
        self.pid = pid
        self.process = process
        self.control = control
        self.has_served = False
        self.gone = trio.Event()
        self.workers: dict[int, WorkerProcess] = {}
        self._answers: dict[int, tuple[_Answer, _Ends]] = {}
        self._requests = 0
        self._sending = trio.Lock()

    async def spawn(self, entry: str, kind: str) -> WorkerProcess | None:
        """A new worker; None if the server died before there was one. Raises `OSError`."""
        ends = _Ends.open()
        self._requests += 1
        number = self._requests
        answer = _Answer()
        self._answers[number] = answer, ends
        try:
            await self._send(Spawn(number=number, entry=entry, kind=kind), ends.theirs)
            await answer.arrived.wait()
        finally:
            del self._answers[number]
            ends.close_theirs()
            if answer.pid is None:
                ends.close_ours()  # of a worker that may still come of it: it ends at once
        if answer.errno is not None:
            raise OSError(answer.errno, os.strerror(answer.errno))
        return None if answer.pid is None else self.workers_made.pop(answer.pid)
