from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio

from protocol.codec import downward_decoder, encode_frame_body, upward_decoder
from protocol.errors import FrameCutOff, FrameTooLarge, FrameUndecodable, HandshakeMismatch
from protocol.frame_stream import HIGH_WATER_BYTES, FrameStream
from protocol.frames import Cancel, DownwardFrame, UpwardFrame
from protocol.framing import frame
from protocol.handshake import check_ready
from protocol.records import Info, TextDelta


@asynccontextmanager
async def a_channel() -> AsyncGenerator[tuple[FrameStream[UpwardFrame], FrameStream[DownwardFrame]], None]:
    """The supervisor's and the worker's end, both with a running writer."""
    ours, theirs = trio.socket.socketpair()
    supervisor: FrameStream[UpwardFrame] = FrameStream(trio.SocketStream(ours), upward_decoder)
    worker: FrameStream[DownwardFrame] = FrameStream(trio.SocketStream(theirs), downward_decoder)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run_writer)
            nursery.start_soon(worker.run_writer)
            yield supervisor, worker
            nursery.cancel_scope.cancel()
    await supervisor.aclose()
    await worker.aclose()


async def test_what_is_put_arrives_in_order_in_both_directions() -> None:
    async with a_channel() as (supervisor, worker):
        for number in range(1000):
            worker.put(TextDelta(text=str(number)))
        supervisor.put(Cancel(reason="enough"))
        received: list[UpwardFrame] = []
        while len(received) < 1000:
            received += await supervisor.receive()
        assert received == [TextDelta(text=str(number)) for number in range(1000)]
        assert await worker.receive() == [Cancel(reason="enough")]


async def test_all_that_is_whole_comes_with_one_wake_up() -> None:
    async with a_channel() as (supervisor, worker):
        for number in range(50):
            worker.put(Info(message=str(number)))
        await worker.flush()
        assert len(await supervisor.receive()) == 50


async def test_the_end_of_the_stream_is_an_empty_list() -> None:
    async with a_channel() as (supervisor, worker):
        worker.put(Info(message="last words"))
        await worker.flush()
        await worker.aclose()
        assert await supervisor.receive() == [Info(message="last words")]
        assert await supervisor.receive() == []


async def test_a_stream_that_ends_inside_a_frame_is_an_error() -> None:
    ours, theirs = trio.socket.socketpair()
    supervisor: FrameStream[UpwardFrame] = FrameStream(trio.SocketStream(ours), upward_decoder)
    with trio.fail_after(10):
        await trio.SocketStream(theirs).send_all(frame(encode_frame_body(Info(message="x")))[:-1])
        theirs.close()
        with pytest.raises(FrameCutOff):
            await supervisor.receive()
    await supervisor.aclose()


async def test_the_messages_before_a_bad_frame_are_not_lost() -> None:
    ours, theirs = trio.socket.socketpair()
    supervisor: FrameStream[UpwardFrame] = FrameStream(trio.SocketStream(ours), upward_decoder)
    good = frame(encode_frame_body(Info(message="good")))
    with trio.fail_after(10):
        await trio.SocketStream(theirs).send_all(good + frame(b"\xc1garbage") + good)
        assert await supervisor.receive() == [Info(message="good")]
        for _ in range(2):
            with pytest.raises(FrameUndecodable) as caught:
                await supervisor.receive()
            assert caught.value.offset == len(good)
    theirs.close()
    await supervisor.aclose()


async def test_a_length_over_the_limit_is_refused() -> None:
    ours, theirs = trio.socket.socketpair()
    supervisor: FrameStream[UpwardFrame] = FrameStream(trio.SocketStream(ours), upward_decoder, limit=100)
    with trio.fail_after(10):
        await trio.SocketStream(theirs).send_all((2**31).to_bytes(4, "big"))
        with pytest.raises(FrameTooLarge):
            await supervisor.receive()
    theirs.close()
    await supervisor.aclose()


async def test_whoever_waits_for_room_waits_until_the_peer_has_read() -> None:
    async with a_channel() as (supervisor, worker):
        await worker.room()  # nothing is queued: it returns at once
        piece = TextDelta(text="x" * 1000)
        puts = 2 * HIGH_WATER_BYTES // 1000
        for _ in range(puts):
            worker.put(piece)
        with trio.move_on_after(0.05) as scope:
            await worker.room()
        assert scope.cancelled_caught, "there was room although nobody read"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.room)
            count = 0
            while count < puts:
                count += len(await supervisor.receive())
        assert count == puts


async def test_what_is_put_after_the_peer_has_gone_is_dropped() -> None:
    async with a_channel() as (supervisor, worker):
        await supervisor.aclose()
        for _ in range(3):
            worker.put(Info(message="x" * 100_000))
            await worker.flush()
        assert worker.broken
        await worker.room()


def test_a_greeting_of_another_version_or_kind_is_refused() -> None:
    with pytest.raises(HandshakeMismatch):
        check_ready(Info(message="hello"))
