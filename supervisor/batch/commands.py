"""Commands of the batch itself (checks, git, copies), each run by a worker of its own."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio

from protocol.command_frames import COMMAND_KIND, CommandEnded, RunCommand, ended_decoder
from protocol.errors import ProtocolError
from protocol.frame_stream import FrameStream
from supervisor.spawn import Spawner

END_SECONDS = 1.0
"""What a worker has to end its command when it is cancelled, before it is killed itself."""

_WORDS_FOR_NO_ROOM = (b"No space left on device", b"Disk quota exceeded", b"Too many open files")
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})


class Commands:
    """Runs commands as workers of ``spawner``, whose `Spawner.run` must be running."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner

    async def run(
        self, argv: Sequence[str], cwd: Path, environment: Mapping[str, str], timeout: float | None = None
    ) -> CommandEnded:
        """Run ``argv`` to its end; cancelling kills it with all it started.

        Raises `OSError` where no process can be started. A worker that dies by itself gives an exit code of -9.
        """
        request = RunCommand(argv=tuple(argv), cwd=str(cwd), environment=dict(environment), timeout=timeout)
        process = await self._spawner.spawn(COMMAND_KIND)
        channel: FrameStream[CommandEnded] = FrameStream(process.stream, ended_decoder)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.run_writer)
                nursery.start_soon(process.collect_stderr)
                channel.put(request)
                try:
                    answers = await channel.receive()
                except ProtocolError:
                    answers = []
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await channel.aclose()  # its lifeline: a worker that has not finished ends what it started
                with trio.move_on_after(END_SECONDS):
                    await process.wait()
                process.kill()
                await process.wait()
        return answers[0] if answers else CommandEnded(exit_code=-9, stderr=b"its process was killed")


def is_out_of_room(ended: CommandEnded) -> bool:
    """Whether the command failed because the machine has no room left, for files or for descriptors."""
    return ended.errno in _NO_ROOM or any(words in ended.stderr for words in _WORDS_FOR_NO_ROOM)


def words_of(ended: CommandEnded) -> str:
    """What the command said last, for a person."""
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else f"exit code {ended.exit_code}"


def plain_environment(also: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command of ours: this process's, which has no keys in it any more, and ``also``."""
    return {**os.environ, **(also or {})}
