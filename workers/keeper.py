"""The keeper: the last one, for when all are gone that should have ended the others.

A worker sees for itself that its supervisor has gone, in a thread. One that is stuck in C code, with the interpreter's
lock held, does not; where the fork server died too, or where there was none, nobody else would end it. And what a
worker's commands left behind goes to whoever is above: if those are killed at the same time, to nobody. So there is a
process that does nothing but wait for the ends of the others. It then ends the workers that are left, with all they
started, and whatever carries its mark (see `protocol.process_tree.end_marked`).

The fork server forks one before the first worker; for workers that are started by exec the supervisor starts one. Each
tells its keeper of the workers through a pipe: the number of each in `KEEPER_PID_BYTES`, and a 0 once none is left.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from typing import NoReturn

from protocol.fork_frames import KEEPER_PID_BYTES
from protocol.process_tree import MARK_VARIABLE, end_marked, end_tree, name_process
from workers.fork_worker import close_all_but

GRACE_SECONDS = 0.5
"""What workers have to see the end of the supervisor for themselves."""

LINGER_SECONDS = 5.0
"""What a supervisor that outlives its fork server has to end what the last worker of that server left behind."""


class KeeperLink:
    """The fork server's end: tells the keeper of each worker. ``pid`` is the keeper's own."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self._pipe = pipe

    def tell(self, worker: int) -> None:
        """A worker was forked."""
        with suppress(OSError):  # somebody killed the keeper: the others are still there
            os.write(self._pipe, worker.to_bytes(KEEPER_PID_BYTES, "big"))

    def dismiss(self) -> None:
        """The server ends in order, and nothing is left; the keeper ends with it."""
        self.tell(0)
        os.close(self._pipe)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def fork_keeper(supervisor: int) -> KeeperLink:
    """Fork the keeper off this process, which has one thread; its commands are marked from now on.

    Raises `OSError` where the system can't.
    """
    mark = os.urandom(8).hex()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        run_keeper(str(supervisor), mark, reader)
    os.close(reader)
    os.environ[MARK_VARIABLE] = mark
    return KeeperLink(pid, writer)


def run_keeper(supervisor: str, mark: str, pipe: int) -> NoReturn:
    """Be the keeper; never returns. ``pipe`` is where it is told of workers."""
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        close_all_but(pipe)
        name_process("corral-keeper")
        Keeper(int(supervisor), mark, pipe).run()
    finally:
        os._exit(0)


class Keeper:
    """Waits for the end of the process ``supervisor`` and for the end of ``pipe``."""

    def __init__(self, supervisor: int, mark: str, pipe: int) -> None:
        self._mark = mark
        self._pipe = pipe
        self._workers: dict[int, int] = {}
        """The pid of each worker that lives, by its pidfd."""
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)
        self._supervisor = _open_pidfd(supervisor)
        if self._supervisor is not None:
            self._poll.register(self._supervisor, select.POLLIN)
        self._is_told = True
        self._is_dismissed = False

    def run(self) -> None:
        """Return once there is nothing left to keep; every worker and command that outlived the others is ended."""
        while self._is_told or self._supervisor is not None:
            is_idle = not self._is_told and not self._workers
            if not self._take_events(LINGER_SECONDS if is_idle else None) or self._is_dismissed:
                return
        deadline = time.monotonic() + GRACE_SECONDS
        while self._workers and (left := deadline - time.monotonic()) > 0:
            self._take_events(left)
        for pid in list(self._workers.values()):
            end_tree(pid)
        end_marked(self._mark)

    def _take_events(self, timeout: float | None) -> bool:
        """Wait for something to happen, ``timeout`` seconds at most; False if nothing has."""
        events = self._poll.poll(None if timeout is None else timeout * 1000)
        for descriptor, _ in events:
            if descriptor == self._pipe:
                self._listen()
            elif descriptor == self._supervisor:
                self._forget(descriptor)
                self._supervisor = None
            else:
                self._forget(descriptor)
                del self._workers[descriptor]
        return bool(events)

    def _listen(self) -> None:
        told = os.read(self._pipe, KEEPER_PID_BYTES)
        if not told:
            self._forget(self._pipe)
            self._is_told = False
            return
        pid = int.from_bytes(told, "big")
        if pid == 0:
            self._is_dismissed = True
            return
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
