from __future__ import annotations

import mmap

import trio
import trio.testing

from protocol.codec import downward_decoder, upward_decoder
from protocol.frame_stream import FrameStream
from protocol.frames import DownwardFrame, Heartbeat, UpwardFrame
from workers.heartbeat import own_memory, send_heartbeats


async def test_heartbeats_come_at_once_and_then_at_their_interval(autojump_clock: trio.testing.MockClock) -> None:
    here, there = trio.testing.memory_stream_pair()
    worker: FrameStream[DownwardFrame] = FrameStream(here, downward_decoder)
    supervisor: FrameStream[UpwardFrame] = FrameStream(there, upward_decoder)
    beats: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run_writer)
        nursery.start_soon(send_heartbeats, worker, 5.0)
        while len(beats) < 4:
            for frame in await supervisor.receive():
                assert isinstance(frame, Heartbeat)
                assert frame.memory_bytes > 0
                beats.append(trio.current_time())
        nursery.cancel_scope.cancel()
    assert [beat - beats[0] for beat in beats] == [0.0, 5.0, 10.0, 15.0]


def test_the_memory_of_a_worker_counts_what_it_touches() -> None:
    before = own_memory()
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        for page in range(0, 64 << 20, 4096):
            block[page] = 1
        grown = own_memory() - before
    assert grown > 48 << 20
