"""A reader of the stream that came later, at the other end of a socket: bounded, and never waited for."""

from __future__ import annotations

import math

import trio

from protocol.records import SubAgentEnd
from supervisor.live.messages import TailEnd, Tailing, line_of
from supervisor.sinks.sink import Event

QUEUE_BYTES = 4 * 1024 * 1024
LAST_SECONDS = 20.0
"""What a reader that was too slow has, to read what is queued and that it was too slow."""
RUN_END_SECONDS = 0.5
"""How long the end of a run waits for a reader to take the last lines."""


class TailSink:
    """Queues lines for one reader; ``run_writer`` sends them.

    It never pushes back. A reader that is `QUEUE_BYTES` behind gets what is queued, then a `TailEnd`, then nothing
    more. ``start`` goes before the first line; where it names a sub-agent, that one's end is the last.
    """

    def __init__(self, stream: trio.abc.SendStream, start: Tailing, limit: int = QUEUE_BYTES) -> None:
        self._stream = stream
        self._agent_id = start.agent_id
        self._limit = limit
        self._queue = bytearray(line_of(start))
        self._sending = 0
        self._wake = trio.Event()
        self._wake.set()
        self._is_complete = False
        self._scope = trio.CancelScope()
        self._written = trio.Event()

    def take(self, event: Event) -> None:
        """Queue the line."""
        if self._is_complete:
            return
        if len(self._queue) + self._sending + len(event.line) > self._limit:
            self._complete(TailEnd(reason="too_slow"), LAST_SECONDS)
            return
        self._queue += event.line
        self._wake.set()
        if isinstance(event.record, SubAgentEnd) and event.record.agent_id == self._agent_id:
            self._complete(TailEnd(reason="agent_ended"), LAST_SECONDS)

    async def room(self) -> None:
        """It never pushes back."""

    def release(self) -> None:
        """It never pushed back."""

    async def finish(self) -> None:
        """Return once the reader has all lines, or has gone, or took none of the time that it is given."""
        if not self._is_complete:
            self._complete(TailEnd(reason="run_ended"), RUN_END_SECONDS)
        with trio.move_on_after(RUN_END_SECONDS):
            await self._written.wait()

    async def run_writer(self) -> None:
        """Send what is queued; return after the last line, or when the reader has gone or may take no longer."""
        try:
            with self._scope:
                while self._queue or not self._is_complete:
                    await self._wake.wait()
                    self._wake = trio.Event()
                    data, self._queue = self._queue, bytearray()
                    self._sending = len(data)
                    await self._stream.send_all(data)
                    self._sending = 0
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the reader has gone
        finally:
            self._is_complete = True
            self._queue.clear()
            self._written.set()

    def _complete(self, end: TailEnd, seconds: float) -> None:
        self._is_complete = True
        self._queue += line_of(end)
        self._wake.set()
        if math.isinf(self._scope.deadline):
            self._scope.deadline = trio.current_time() + seconds
