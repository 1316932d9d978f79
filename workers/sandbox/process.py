"""The one way in which a worker starts another process: a command of Bash, an external agent.

The process leads a session and a process group of its own, so that a signal to the group reaches what it starts and no
terminal reaches any of them. Its leader is reaped only after the group was dealt with: as long as the leader is
unreaped the kernel gives its number to nobody else, so a signal to the group can't hit a stranger.
Source: POSIX.1-2017, `kill`, `waitid`, and the definition of a process group's lifetime.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

import trio
from trio.lowlevel import FdStream

from protocol.process_tree import mark_of_ours
from workers.ceilings import memory_lifted

EXIT_LOST = 255
"""The exit code of a process whose status somebody else took."""

_LAST_WAIT = 5.0  # seconds for a killed process to go; one in an uninterruptible wait for a disk may not
_HAS_WAITID = hasattr(os, "waitid")  # macOS has it from Python 3.13 on


class Child:
    """A process that `open_process` started. ``pid`` is also the id of its process group and session.

    ``stdin``, ``stdout`` and ``stderr`` are our ends of its pipes, None for what was not asked for.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process
        self._pidfd = _open_pidfd(process.pid)
        self._exit_code: int | None = None
        self._released = False
        self._one_waiter = trio.Lock()
        self.stdin = _stream(process.stdin)
        self.stdout = _stream(process.stdout)
        self.stderr = _stream(process.stderr)

    def exit_code(self) -> int | None:
        """The exit code, or the negative number of the signal that ended it; None while it runs. Does not reap."""
        if self._exit_code is None:
            self._exit_code = self._look()
        return self._exit_code

    async def wait(self) -> int:
        """Wait for the process itself, not for its children, and return its `exit_code`.

        Any number of tasks may wait. Cancelling leaves the process alone.
        """
        # A descriptor takes one waiter at a time: when that one is cancelled the next takes over.
        async with self._one_waiter:
            while (code := self.exit_code()) is None:
                await self._wait_for_notice()
        return code

    def signal_group(self, number: int) -> None:
        """Send signal ``number`` to the process and to all of its group; nothing once it is released."""
        if not self._released:
            with suppress(ProcessLookupError, PermissionError):  # macOS forbids signals to a group of zombies
                os.killpg(self.pid, number)

    async def end(self, grace: float) -> None:
        """End the process and its group: SIGTERM, and SIGKILL as soon as it is gone, ``grace`` seconds later at most.

        Not cancellable, takes ``grace`` and 5 seconds at most. The whole group gets the SIGKILL, even if the process
        itself had exited before.
        """
        with trio.CancelScope(shield=True):
            if self.exit_code() is None and grace > 0:
                self.signal_group(signal.SIGTERM)
                with trio.move_on_after(grace):
                    await self.wait()
            self.signal_group(signal.SIGKILL)
            with trio.move_on_after(_LAST_WAIT):
                await self.wait()

    def release(self) -> None:
        """Reap the process if it has exited, and close what is open of it. Streams that were taken away stay open."""
        code = self.exit_code()
        self._released = True
        if code is not None:
            if _HAS_WAITID:
                with suppress(ChildProcessError):
                    os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG)
            self._process.returncode = code
        if self._pidfd is not None:
            trio.lowlevel.notify_closing(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def take_output(self) -> tuple[FdStream, ...]:
        """Our ends of stdout and stderr, which are the caller's to close from now on."""
        taken = tuple(stream for stream in (self.stdout, self.stderr) if stream is not None)
        self.stdout = self.stderr = None
        return taken

    def _look(self) -> int | None:
        if not _HAS_WAITID:
            return self._process.poll()
        try:
            # By number, not by descriptor: a child's number is its own until it is reaped, and older kernels can too.
            seen = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return EXIT_LOST
        if seen is None:
            return None
        return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status

    async def _wait_for_notice(self) -> None:
        if self._pidfd is not None:
            await trio.lowlevel.wait_readable(self._pidfd)
        elif _HAS_WAITID:
            await trio.to_thread.run_sync(_wait_in_thread, self.pid, abandon_on_cancel=True)
        else:
            await trio.sleep(0.02)


@asynccontextmanager
async def open_process(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: bool = False,
    stdout: bool = True,
    stderr: bool = True,
    grace: float = 0.5,
) -> AsyncGenerator[Child, None]:
    """Start ``argv`` for the length of the block; to be entered in the main thread.

    ``stdin``, ``stdout``, ``stderr`` say for which of them there is a pipe; what has none is ``/dev/null``. ``env`` is
    the whole environment, but for the mark by which the keeper finds the process (see
    `protocol.process_tree.end_marked`). Raises `OSError` when ``argv`` can't be started, with the name of what is
    missing.

    At the end of the block a process that still runs is ended, with ``grace`` seconds as in `Child.end`. When the block
    is left by an exception or by cancellation, so is its whole group; what a process left in its group before it exited
    by itself stays. Main thread, because a parent-death signal, where ``argv`` sets one, is bound to the thread that
    started the process, and trio's threads end when they are idle.
    """
    child = start_child(argv, cwd=cwd, env=env, pipes=(stdin, stdout, stderr))
    try:
        yield child
        if child.exit_code() is None:
            await child.end(grace)
    except BaseException:
        await child.end(grace)
        raise
    finally:
        child.release()


def start_child(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], pipes: tuple[bool, bool, bool] = (True, True, True)
) -> Child:
    """Start ``argv`` as `open_process` does, for whoever ends and releases it; ``pipes``: stdin, stdout, stderr."""
    ends = [subprocess.PIPE if pipe else subprocess.DEVNULL for pipe in pipes]
    with memory_lifted():
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**env, **mark_of_ours()},
            stdin=ends[0],
            stdout=ends[1],
            stderr=ends[2],
            bufsize=0,
            start_new_session=True,
        )
    return Child(process)


def _stream(pipe: IO[bytes] | None) -> FdStream | None:
    """A stream over a descriptor of its own, so that it is closed once, by one owner."""
    if pipe is None:
        return None
    stream = FdStream(os.dup(pipe.fileno()))
    pipe.close()
    return stream


def _open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process exits; None where there is no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, an old kernel, or no descriptor left
        return None


def _wait_in_thread(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
