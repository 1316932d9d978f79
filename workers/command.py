"""The worker that runs one command for the supervisor: a check, git, a copy.

The supervisor itself starts no commands: what it starts would outlive it when it is killed, and could leave orphans
that nobody knows. A worker ends with its supervisor, and with it everything it started.
"""

from __future__ import annotations

from pathlib import Path

import trio
from trio.lowlevel import FdStream

from protocol.command_frames import MOST_STDERR_BYTES, MOST_STDOUT_BYTES, CommandEnded, RunCommand, run_decoder
from protocol.frame_stream import FrameStream
from workers.sandbox.process import Child, open_process

KILL_GRACE = 0.5
DRAIN_SECONDS = 0.5
"""How long output is awaited after the command itself has ended: something it left may hold the pipe."""


async def run_command(stream: trio.SocketStream) -> None:
    """Take one `RunCommand`, run it, answer, end."""
    channel: FrameStream[RunCommand] = FrameStream(stream, run_decoder)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run_writer)
        if requests := await channel.receive():
            channel.put(await _run(requests[0]))
            await channel.flush()
        nursery.cancel_scope.cancel()


async def _run(request: RunCommand) -> CommandEnded:
    try:
        async with open_process(
            request.argv, cwd=Path(request.cwd), env=request.environment, grace=KILL_GRACE
        ) as child:
            return await _see_end(child, request.timeout)
    except OSError as error:
        return CommandEnded(exit_code=127, stderr=str(error).encode(errors="replace"), errno=error.errno or 0)


async def _see_end(child: Child, timeout: float | None) -> CommandEnded:
    assert child.stdout is not None
    assert child.stderr is not None
    stdout, stderr = bytearray(), bytearray()
    async with trio.open_nursery() as readers:
        readers.start_soon(_read, child.stdout, stdout, MOST_STDOUT_BYTES)
        readers.start_soon(_read, child.stderr, stderr, MOST_STDERR_BYTES)
        with trio.move_on_after(float("inf") if timeout is None else timeout) as limit:
            await child.wait()
        if limit.cancelled_caught:
            await child.end(KILL_GRACE)
        readers.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
    exit_code = None if limit.cancelled_caught else child.exit_code()
    return CommandEnded(exit_code=exit_code, stdout=bytes(stdout), stderr=bytes(stderr))


async def _read(stream: FdStream, kept: bytearray, most: int) -> None:
    while data := await stream.receive_some(65_536):
        kept += data
        del kept[:-most]
