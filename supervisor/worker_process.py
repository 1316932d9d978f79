"""A worker's process, seen from the supervisor: its channel, its stderr, its signals and its end."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

import msgspec
import trio

STDERR_TAIL_BYTES = 4096


class ExitStatus(msgspec.Struct, frozen=True):
    """How a process ended: ``signal`` its number where one ended it, else ``code``; both None where nobody knows."""

    code: int | None
    signal: int | None


class WorkerProcess:
    """A worker's process, seen from the supervisor. ``stream`` is our end of its channel."""

    def __init__(self, pid: int, ends: Ends, *, reap: Callable[[], ExitStatus] | None) -> None:
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

        To be called once, for every worker that is not abandoned: it closes our end of the pipe. What a worker said
        before it died is still there afterwards.
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
            await wait_for_exit(self.pid)
            if self._status is None:  # else another task was quicker
                self.kill()
                self._status = self._reap_child()
        return self._status

    def report(self, status: ExitStatus) -> None:
        """The parent of the process says how it ended."""
        self._status = status
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

    def abandon(self) -> None:
        """Nobody wants the worker any more: it is killed, what is open of it is closed."""
        self.kill()
        self.stream.socket.close()
        descriptor, self._stderr = self._stderr, None
        if descriptor is not None:
            os.close(descriptor)

    def _signal_group(self, number: int) -> None:
        if self._status is None:
            with suppress(ProcessLookupError):  # nothing of the group is left but a process that has ended
                os.killpg(self.pid, number)


async def wait_for_exit(pid: int) -> None:
    """Return once ``pid``, a child of ours, has ended; it is left to be reaped."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:  # no child of ours, and reaped by whoever's it was
        return
    except (AttributeError, OSError):  # not Linux, an old kernel, or no descriptor left
        with suppress(ChildProcessError):
            await trio.to_thread.run_sync(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT, abandon_on_cancel=True)
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


class Ends(msgspec.Struct, frozen=True):
    """Our ends of a worker's channel and stderr, and the worker's."""

    channel: socket.socket
    stderr: int
    their_channel: socket.socket
    their_stderr: int

    @classmethod
    def open(cls) -> Ends:
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
