"""Signs of life: sent from the event loop, so that they end when it hangs."""

from __future__ import annotations

import resource

import trio

from protocol.frame_stream import FrameStream
from protocol.frames import DownwardFrame, Heartbeat


async def send_heartbeats(channel: FrameStream[DownwardFrame], seconds: float) -> None:
    """Send one now and then every ``seconds``, until cancelled."""
    while True:
        channel.put(Heartbeat(memory_bytes=own_memory(), taken=channel.messages_taken))
        await trio.sleep(seconds)


def own_memory() -> int:
    """Bytes of resident memory that this process shares with no file and no other worker.

    Source: proc(5), /proc/self/statm; the peak, where there is no such file.
    """
    try:
        with open("/proc/self/statm", encoding="ascii") as fields:  # noqa: PTH123 - read every few seconds
            _, resident, shared, *_ = map(int, fields.read().split())
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return (resident - shared) * resource.getpagesize()
