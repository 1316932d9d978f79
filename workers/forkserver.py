"""The fork server: a process that has imported everything and forks workers.

It has one thread, runs no event loop and keeps no open connection: only such a process can be forked safely. It serves
one supervisor, over one socket (see `protocol.fork_frames`). When that ends, so does the server, and with it all that
it has forked.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import NoReturn

from protocol.fork_frames import (
    MAX_BEGIN_BYTES,
    MAX_MESSAGE_BYTES,
    SPAWN_DESCRIPTORS,
    Exited,
    ForkNotice,
    Reap,
    Serving,
    Spawn,
    Spawned,
    SpawnFailed,
    begin_decoder,
    encode_fork_frame,
    request_decoder,
)
from protocol.key_scrubbing import take_out_of_environment
from protocol.process_tree import become_subreaper, end_orphans, forbid_inspection, name_process
from workers.fork_worker import begin_forked_worker, close_all_but
from workers.keeper import KeeperLink, fork_keeper

GRACE_SECONDS = 0.5
"""What workers have to see for themselves that the supervisor is gone, and to end what they started."""

_LAST_SECONDS = 5.0
"""For killed workers to be gone; one in an uninterruptible wait may not."""

_PR_SET_PDEATHSIG = 1


def run_fork_server(supervisor: str, socket_fd: int) -> NoReturn:
    """Serve the process number ``supervisor`` on ``socket_fd`` until it closes its end; never returns.

    Everything else that the process has open is closed, stdin and stdout are ``/dev/null``. Standard error stays: it
    says why a server could not begin.
    """
    try:
        gc.disable()  # what is imported stays: there is nothing to collect before a worker's own work
        _stand_alone(socket_fd)
        _die_with(int(supervisor))
        from workers.fork_preload import preload

        preload()
        _check_one_thread()
        gc.freeze()
        control = socket.socket(fileno=socket_fd)
        if _is_to_begin(control):
            # From here on the server ends by itself, and in order.
            _set_death_signal(0)
            ForkServer(control, fork_keeper(int(supervisor))).serve()
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _is_to_begin(control: socket.socket) -> bool:
    """Take the first message; False if there is none because the supervisor has gone or has no use for a server.

    It may come long after the imports: a supervisor that forks a server first of all reads its settings meanwhile.
    """
    try:
        data = control.recv(MAX_BEGIN_BYTES)
    except ConnectionResetError:
        return False
    if not data:
        return False
    take_out_of_environment(begin_decoder.decode(data).conceal)
    return True


class ForkServer:
    """Forks workers, reports their ends, ends orphans of dead ones."""

    def __init__(self, control: socket.socket, keeper: KeeperLink) -> None:
        self._control = control
        self._keeper = keeper
        self._running: dict[int, int] = {}
        """The pid of each worker that is not known to have ended, by its pidfd."""
        self._ended: set[int] = set()
        """Workers that have ended and are not reaped."""
        self._poll = select.poll()

    def serve(self) -> None:
        """Serve until the supervisor's end of the socket is closed and no descendant is left."""
        self._poll.register(self._control, select.POLLIN)
        self._notify(Serving(keeper=self._keeper.pid))
        while self._take_events(None):
            pass
        self._poll.unregister(self._control)
        self._control.close()
        self._run_out(GRACE_SECONDS)
        for pid in self._running.values():
            _kill_group(pid)
        self._run_out(_LAST_SECONDS)
        end_orphans((self._keeper.pid,), _LAST_SECONDS)
        self._keeper.dismiss()

    def _run_out(self, seconds: float) -> None:
        """Look after the workers until none is left, for ``seconds`` at most."""
        deadline = time.monotonic() + seconds
        while self._running and (left := deadline - time.monotonic()) > 0:
            self._take_events(left)

    def _take_events(self, timeout: float | None) -> bool:
        """Wait for something to happen, ``timeout`` seconds at most; False once the supervisor has gone."""
        is_served = True
        for descriptor, _ in self._poll.poll(None if timeout is None else timeout * 1000):
            if descriptor in self._running:
                self._see_end(descriptor)
            else:
                is_served = self._take_request()
        return is_served

    # -- requests -----------------------------------------------------------------------------------------------------

    def _take_request(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._control, MAX_MESSAGE_BYTES, SPAWN_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            return False
        try:
            if not data:
                return False
            match request_decoder.decode(data):
                case Spawn() as request:
                    self._notify(self._fork(request, descriptors))
                case Reap(pid=pid):
                    self._reap(pid)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _fork(self, request: Spawn, descriptors: list[int]) -> ForkNotice:
        if len(descriptors) != SPAWN_DESCRIPTORS:  # the system drops those that we have no room for
            return SpawnFailed(number=request.number, errno=errno.EMFILE)
        channel, stderr = descriptors
        from workers.fork_preload import preload_kind

        with suppress(ImportError):  # the worker, which tries it again, tells of it
            preload_kind(request.kind)
        try:
            pid = os.fork()
        except OSError as error:
            return SpawnFailed(number=request.number, errno=error.errno or errno.EAGAIN)
        if pid == 0:
            begin_forked_worker(request.entry, request.kind, channel, stderr)
        with suppress(OSError):  # it did it itself, or is dead already
            os.setpgid(pid, pid)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return SpawnFailed(number=request.number, errno=error.errno or errno.EMFILE)
        self._running[pidfd] = pid
        self._keeper.tell(pid)
        self._poll.register(pidfd, select.POLLIN)
        return Spawned(number=request.number, pid=pid)

    def _notify(self, notice: ForkNotice) -> None:
        with suppress(OSError):  # the supervisor has gone: the end of its requests says so next
            self._control.send(encode_fork_frame(notice))

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _see_end(self, pidfd: int) -> None:
        pid = self._running.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        self._ended.add(pid)
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        # Before it is reaped: until then nobody else can have a group of that number.
        _kill_group(pid)
        # The orphans of a dead worker have come to us by now.
        end_orphans({*self._running.values(), *self._ended, self._keeper.pid})
        assert end is not None  # it has ended
        has_exited = end.si_code == os.CLD_EXITED
        self._notify(
            Exited(pid=pid, code=end.si_status if has_exited else None, signal=None if has_exited else end.si_status)
        )

    def _reap(self, pid: int) -> None:
        if pid in self._ended:
            self._ended.discard(pid)
            os.waitpid(pid, 0)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _stand_alone(socket_fd: int) -> None:
    """Leave nothing of the supervisor's in this process that could matter to it, or to a terminal."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # by its terminal alone: the group is our own from here on
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, nobody would learn how a worker ended
    os.setpgid(0, 0)
    close_all_but(socket_fd)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    become_subreaper()
    name_process("corral-forks")
    forbid_inspection()  # it may have a copy of the settings, or of the environment as the supervisor got it


def _die_with(supervisor: int) -> None:
    """Be killed when the supervisor dies while we import and so can't see it."""
    _set_death_signal(signal.SIGKILL)
    if os.getppid() != supervisor:  # it died before that
        os._exit(1)


def _set_death_signal(number: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _check_one_thread() -> None:
    threads = os.listdir("/proc/self/task")  # noqa: PTH208 - names are enough
    if len(threads) != 1:
        raise RuntimeError(f"a process with {len(threads)} threads can't be forked safely")
