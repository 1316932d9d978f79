from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
import trio
import trio.testing

from supervisor.sinks.stdout_writer import QUEUE_BYTES, StdoutWriter
from tests.supervisor.sinks.output_pipe import BOUND, OutputPipe

PIECE = b"x" * 65535 + b"\n"


def pipe_capacity() -> int:
    """What the system keeps between a writer and a reader."""
    read_end, write_end = os.pipe()
    try:
        return fcntl.fcntl(write_end, fcntl.F_GETPIPE_SZ) if hasattr(fcntl, "F_GETPIPE_SZ") else 1024 * 1024
    finally:
        os.close(read_end)
        os.close(write_end)


async def test_many_small_writes_keep_their_order(pipe: OutputPipe) -> None:
    lines = [b"%d\n" % number for number in range(20_000)]
    for line in lines:
        pipe.writer.write(line)
    assert await pipe.read_to_end() == b"".join(lines)


async def test_a_slow_reader_gets_everything_and_holds_the_source_back(pipe: OutputPipe) -> None:
    pieces = 64
    bound = QUEUE_BYTES + len(PIECE) + pipe_capacity()
    produced = consumed = furthest = 0

    async def produce() -> None:
        nonlocal produced, furthest
        for _ in range(pieces):
            pipe.writer.write(PIECE)
            produced += len(PIECE)
            furthest = max(furthest, produced - consumed)
            await pipe.writer.room()

    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            await trio.testing.wait_all_tasks_blocked()
            assert QUEUE_BYTES < produced <= bound
            while consumed < pieces * len(PIECE):
                consumed += len(await pipe.read_some(4096))
    assert consumed == produced == pieces * len(PIECE)
    assert furthest <= bound + 4096, "what the test had read, but not yet counted, is no part of the backlog"


async def test_room_is_there_at_once_while_little_is_queued(pipe: OutputPipe) -> None:
    pipe.writer.write(PIECE)
    with trio.fail_after(BOUND):
        await pipe.writer.room()
    assert await pipe.read_to_end() == PIECE


async def test_a_wait_for_room_that_is_cancelled_loses_nothing(pipe: OutputPipe) -> None:
    content = PIECE * (2 * QUEUE_BYTES // len(PIECE))
    pipe.writer.write(content)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipe.writer.room)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert await pipe.read_to_end() == content


async def test_release_lets_go_whoever_waits_for_room_and_nobody_waits_after_it(pipe: OutputPipe) -> None:
    pipe.writer.write(b"x" * (2 * QUEUE_BYTES + pipe_capacity()))
    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipe.writer.room)
            nursery.start_soon(pipe.writer.room)
            await trio.testing.wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 2, "nobody reads, so both wait"
            pipe.writer.release()
        pipe.writer.write(PIECE)
        await pipe.writer.room()


async def test_a_reader_that_goes_away_is_noticed_and_frees_whoever_waits(pipe: OutputPipe) -> None:
    pipe.writer.write(b"x" * (2 * QUEUE_BYTES + pipe_capacity()))
    assert await pipe.read_some(1), "the thread writes the first piece by now"
    pipe.writer.write(PIECE)
    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipe.writer.room)
            nursery.start_soon(pipe.writer.finish)
            await trio.testing.wait_all_tasks_blocked()
            assert not pipe.writer.broken.is_set()
            await pipe.stop_reading()
            await pipe.writer.broken.wait()


async def test_what_is_written_for_a_reader_that_has_gone_is_dropped(pipe: OutputPipe) -> None:
    await pipe.stop_reading()
    pipe.writer.write(b"x")
    with trio.fail_after(BOUND):
        await pipe.writer.broken.wait()
        pipe.writer.write(b"x" * (2 * QUEUE_BYTES))
        await pipe.writer.room()
        await pipe.writer.finish()


async def test_finish_returns_only_once_the_last_byte_is_taken(pipe: OutputPipe) -> None:
    content = b"x" * (3 * pipe_capacity())
    pipe.writer.write(content)
    read = len(await pipe.read_some(1))  # nothing is queued any more: all of it is being written
    finished = False

    async def finish() -> None:
        nonlocal finished
        await pipe.writer.finish()
        finished = True

    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish)
            await trio.testing.wait_all_tasks_blocked()
            assert not finished
            while read < len(content):
                read += len(await pipe.read_some())
    assert finished


async def test_a_regular_file_takes_it_too(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("wb") as file, trio.fail_after(BOUND):
        writer = StdoutWriter(file.fileno())
        for _ in range(3):
            writer.write(PIECE)
        await writer.finish()
    assert path.read_bytes() == PIECE * 3


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")  # noqa: PTH110 - a device
async def test_a_full_disk_is_an_end_like_a_reader_that_has_gone() -> None:
    with open("/dev/full", "wb", buffering=0) as full, trio.fail_after(BOUND):  # noqa: PTH123 - a device
        writer = StdoutWriter(full.fileno())
        writer.write(b"x")
        await writer.broken.wait()
        await writer.finish()
