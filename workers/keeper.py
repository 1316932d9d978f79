"""The keeper: the last one, for when supervisor and fork server are both gone.

A worker sees for itself that its supervisor has gone, in a thread. One that is stuck in C code, with the interpreter's
lock held, does not; and where the fork server died too nobody else would end it. So the fork server forks a process
that does nothing but wait for the ends of both, and then ends the workers that are left, with all they started.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from typing import NoReturn

from protocol.process_tree import end_tree, name_process
from workers.fork_worker import close_all_but

GRACE_SECONDS = 0.5
"""What workers have to see the end of the supervisor for themselves."""

_PID_BYTES = 4


class KeeperLink:
    """The fork server's end: tells the keeper of each worker. ``pid`` is the keeper's own."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self._pipe = pipe

    def tell(self, worker: int) -> None:
        """A worker was forked."""
        with suppress(OSError):  # somebody killed the keeper: the others are still there
            os.write(self._pipe, worker.to_bytes(_PID_BYTES, "big"))

    def dismiss(self) -> None:
        """The server ends in order, and no worker is left; the keeper ends with it."""
        os.close(self._pipe)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def fork_keeper(supervisor: int) -> KeeperLink:
    """Fork the keeper off this process, which has one thread. Raises `OSError` where the system can't."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _keep(supervisor, reader)
    os.close(reader)
    return KeeperLink(pid, writer)


def _keep(supervisor: int, pipe: int) -> NoReturn:
    try:
        os.setpgid(0, 0)
        name_process("corral-keeper")
        close_all_but(pipe)
        Keeper(supervisor, pipe).run()
    finally:
        os._exit(0)


class Keeper:
    """Waits for the end of the process ``supervisor`` and for the end of ``pipe``, which the fork server holds."""

    def __init__(self, supervisor: int, pipe: int) -> None:
        self._pipe = pipe
        self._workers: dict[int, int] = {}
        """The pid of each worker that lives, by its pidfd."""
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)
        self._supervisor = _open_pidfd(supervisor)
        if self._supervisor is not None:
            self._poll.register(self._supervisor, select.POLLIN)
        self._has_server = True

    def run(self) -> None:
        """Return once there is nobody left to keep; every worker that outlived both has been ended then."""
        while self._has_server or (self._workers and self._supervisor is not None):
            self._take_events(None)
        deadline = time.monotonic() + GRACE_SECONDS
        while self._workers and (left := deadline - time.monotonic()) > 0:
            self._take_events(left * 1000)
        for pid in list(self._workers.values()):
            end_tree(pid)

    def _take_events(self, milliseconds: float | None) -> None:
        for descriptor, _ in self._poll.poll(milliseconds):
            if descriptor == self._pipe:
                self._hear_of_worker()
            elif descriptor == self._supervisor:
                self._forget(descriptor)
                self._supervisor = None
            else:
                self._forget(descriptor)
                del self._workers[descriptor]

    def _hear_of_worker(self) -> None:
        told = os.read(self._pipe, _PID_BYTES)
        if not told:
            self._forget(self._pipe)
            self._has_server = False
            return
        pid = int.from_bytes(told, "big")
        pidfd = _open_pidfd(pid)
        if pidfd is not None:
            self._workers[pidfd] = pid
            self._poll.register(pidfd, select.POLLIN)

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        os.close(descriptor)


def _open_pidfd(pid: int) -> int | None:
    """A descriptor for the process; None if it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except OSError:
        os.close(pidfd)
        return None
    return pidfd
