"""Programs in a folder of this machine, with the rights of whoever runs us: no walls, but nobody is left behind."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio
from trio.abc import ReceiveStream, SendStream

from workers.sandbox.process import Child, start_child
from workers.sandbox.process_group import wait_until_gone

_LAST_WAIT = 5.0  # seconds for killed processes to go; one in an uninterruptible wait for a disk may not


class LocalSandbox:
    """``root`` is the folder that a relative working directory starts from."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def open_stdio(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> LocalProcess:
        """Start ``argv`` in a session and process group of its own; to be called in the main thread.

        Raises `OSError` with the name of what is missing: the program or the folder.
        """
        await trio.lowlevel.checkpoint()
        return LocalProcess(start_child(argv, cwd=self.root / cwd, env=env))


class LocalProcess:
    """A process of this machine; whoever opened it calls `end_group` and then `release`.

    ``terminate`` and ``kill`` reach its group: all it started and that did not leave on purpose.
    """

    def __init__(self, child: Child) -> None:
        assert child.stdin is not None and child.stdout is not None
        self.pid = child.pid
        self.stdin: SendStream = child.stdin
        self.stdout: ReceiveStream = child.stdout
        self.stderr: ReceiveStream | None = child.stderr
        self._child = child

    async def wait(self) -> int:
        """Wait for the process itself; its exit code, or the negative number of the signal that ended it."""
        return await self._child.wait()

    def terminate(self) -> None:
        """Send SIGTERM to the group."""
        self._child.signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the group."""
        self._child.signal_group(signal.SIGKILL)

    async def end_group(self, grace: float) -> None:
        """End the process and its group, in ``grace`` and 5 seconds at most; returns when only zombies are left.

        Not cancellable. The group has ``grace`` seconds after a SIGTERM; where the process itself had exited before,
        what it left in its group is killed at once.
        """
        with trio.CancelScope(shield=True):
            if self._child.exit_code() is None:
                self.terminate()
                with trio.move_on_after(grace):
                    await wait_until_gone(self.pid)
            self.kill()
            with trio.move_on_after(_LAST_WAIT):
                await wait_until_gone(self.pid)

    def release(self) -> None:
        """Reap the process and close its streams."""
        self._child.release()
