"""The supervisor's side of a fork server. See `protocol.fork_frames`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import trio

from protocol.fork_frames import (
    MAX_MESSAGE_BYTES,
    Exited,
    ForkRequest,
    Reap,
    Serving,
    Spawn,
    Spawned,
    SpawnFailed,
    encode_fork_frame,
    notice_decoder,
)
from supervisor.child_processes import Family, end_process
from supervisor.worker_process import Ends, ExitStatus, WorkerProcess, wait_for_exit

_SILENT_SECONDS = 15.0
"""A server that says nothing for so long though a worker was asked for is hung, or stopped: it is killed."""

_CLOSE_SECONDS = 3.0
"""What a fork server has to end by itself: half a second of it is its workers' own."""


class _Request:
    """A worker that was asked for: it comes, or an ``errno``, or neither if the server has died."""

    def __init__(self, ends: Ends) -> None:
        self.ends = ends
        self.answered = trio.Event()
        self.worker: WorkerProcess | None = None
        self.errno: int | None = None

    def abandon(self) -> None:
        """Nobody waits for it any more. A worker that still comes of it finds its channel closed."""
        if self.worker is None:
            self.ends.close_ours()
        else:
            self.worker.abandon()


class ServerLink:
    """Our end of one fork server. `serve` runs for as long as the server does."""

    def __init__(self, pid: int, control: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        control.setblocking(False)
        self.pid = pid
        self.process = process
        self.workers: dict[int, WorkerProcess] = {}
        """Those whose end is not known, by pid."""
        self.has_served = False
        self._keeper: int | None = None
        self._control = control
        self._requests: dict[int, _Request] = {}
        self._last_number = 0
        self._sending = trio.Lock()
        self._heard_at = float("-inf")

    async def spawn(self, entry: str, kind: str) -> WorkerProcess | None:
        """A new worker; None if the server died before there was one. Raises `OSError`."""
        self._last_number = number = self._last_number + 1
        self._requests[number] = request = _Request(Ends.open())
        try:
            try:
                await self._send(Spawn(number=number, entry=entry, kind=kind), request.ends.theirs)
            finally:
                request.ends.close_theirs()
            await self._see_answer(request)
        except BaseException:
            request.abandon()
            raise
        finally:
            del self._requests[number]
        if request.worker is None:
            request.ends.close_ours()
        if request.errno is not None:
            raise OSError(request.errno, os.strerror(request.errno))
        return request.worker

    async def _see_answer(self, request: _Request) -> None:
        asked_at = trio.current_time()
        while not request.answered.is_set():
            with trio.move_on_at(max(asked_at, self._heard_at) + _SILENT_SECONDS):
                await request.answered.wait()
                return
            if trio.current_time() >= max(asked_at, self._heard_at) + _SILENT_SECONDS:
                self._kill()
                await request.answered.wait()

    async def serve(self) -> None:
        """Take the server's notices until it is gone; cancellation loses none."""
        async with trio.open_nursery() as nursery:
            while data := await self._receive():
                self._heard_at = trio.current_time()
                match notice_decoder.decode(data):
                    case Serving(keeper=keeper):
                        self.has_served = True
                        self._keeper = keeper
                    case Spawned(number=number, pid=pid):
                        self._have_worker(number, pid)
                    case SpawnFailed(number=number, errno=number_of_error):
                        if number in self._requests:
                            self._requests[number].errno = number_of_error
                            self._requests[number].answered.set()
                    case Exited(pid=pid, code=code, signal=signal_number):
                        if pid in self.workers:
                            self.workers.pop(pid).report(ExitStatus(code, signal_number))
                        nursery.start_soon(self._send, Reap(pid=pid))

    def _have_worker(self, number: int, pid: int) -> None:
        request = self._requests.get(number)
        if request is not None:
            request.worker = self.workers[pid] = WorkerProcess(pid, request.ends, reap=None)
            request.answered.set()

    async def bury(self, family: Family) -> None:
        """The server is gone: reap it and take over its workers, which are our children by then."""
        self._kill()  # in case it has only closed its socket
        await wait_for_exit(self.pid)
        if self._keeper is not None:
            family.know(self._keeper)  # it looks after the workers that are left, and then ends
        for pid, worker in self.workers.items():
            family.know(pid)
            worker.adopt(partial(family.reap, pid))
        family.reap(self.pid, self.process)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # our child, which is reaped by `bury` and `close` alone

    def release(self) -> None:
        """No request will be answered any more, nor can be made."""
        trio.lowlevel.notify_closing(self._control)
        self._control.close()
        for request in self._requests.values():
            request.answered.set()

    def close(self) -> None:
        """Have the server end itself, and wait for that. One that is still importing has nothing to put in order."""
        self._control.close()
        code = end_process(self.pid, _CLOSE_SECONDS if self.has_served else 0.0)
        if self.process is not None:
            self.process.returncode = code

    async def _receive(self) -> bytes:
        while True:
            try:
                return self._control.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._control)
            except ConnectionResetError:
                continue  # it died with requests unread; what it said before that is still to come

    async def _send(self, message: ForkRequest, descriptors: Sequence[int] = ()) -> None:
        """Send ``message``; dropped if the server is gone, which `serve` gets to know."""
        data = encode_fork_frame(message)
        async with self._sending:
            while self._control.fileno() != -1:
                try:
                    socket.send_fds(self._control, [data], descriptors)
                except BlockingIOError:
                    with suppress(trio.ClosedResourceError):
                        await trio.lowlevel.wait_writable(self._control)
                except (BrokenPipeError, ConnectionResetError):
                    return
                else:
                    return
