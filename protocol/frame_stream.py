"""Frames over a trio stream: the adapter between the contract and the event loop.

The cost of a frame lies in the awaits, not in the codec: so `receive` returns all that is whole at a wake-up, and
`put` only appends to a buffer that `run_writer` writes once in a turn of the event loop.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec
import trio

from protocol.codec import decode_frames, encode_frame_body
from protocol.errors import FrameCutOff, FrameUndecodable
from protocol.framing import MAX_FRAME_BYTES, FrameSplitter, frame

Incoming = TypeVar("Incoming")

RECEIVE_BYTES = 256 * 1024
SEND_BYTES = 256 * 1024
HIGH_WATER_BYTES = 1024 * 1024


class FrameStream(Generic[Incoming]):
    """One end of the channel between the supervisor and a worker.

    One task may call `receive`, one runs `run_writer`; `put` may be called from anywhere in the same thread.
    ``messages_put`` and ``messages_taken`` count over the life of the stream.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        decoder: msgspec.msgpack.Decoder[Incoming],
        limit: int = MAX_FRAME_BYTES,
    ) -> None:
        self._stream = stream
        self._decoder = decoder
        self._splitter = FrameSplitter(limit)
        self._limit = limit
        self._bad_frame: FrameUndecodable | None = None
        self._outgoing = bytearray()
        self._writing = 0
        self._progress_at = float("inf")
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self.broken = False
        self.messages_put = 0
        self.messages_taken = 0

    async def receive(self) -> list[Incoming]:
        """All messages that are whole now, at least one; an empty list is the end of the stream.

        Raises `FrameTooLarge`, `FrameUndecodable`, or `FrameCutOff` where the stream ends inside a frame. No message
        of a batch with a bad frame after it is lost: the error comes with the next call. Cancellation loses nothing.
        """
        if self._bad_frame is not None:
            raise self._bad_frame
        frames = self._splitter.feed(b"")
        while not frames:
            try:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                if self._splitter.pending:
                    raise FrameCutOff(self._splitter.pending, self._splitter.offset)
                return []
            frames = self._splitter.feed(data)
        return self._decode(frames)

    def _decode(self, frames: list[tuple[int, bytes]]) -> list[Incoming]:
        messages: list[Incoming] = []
        try:
            decode_frames(self._decoder, frames, messages)
        except FrameUndecodable as error:
            if not messages:
                raise
            self._bad_frame = error
        self.messages_taken += len(messages)
        return messages

    def put(self, message: msgspec.Struct) -> None:
        """Queue ``message``; never blocks. What is put after the peer has gone is dropped: `receive` tells of its end.

        Raises `FrameTooLarge` for a message over the limit; nothing of it is sent then.
        """
        if self.broken:
            return
        self.messages_put += 1
        self._outgoing += frame(encode_frame_body(message), self._limit)
        self._wake.set()
        if self._idle.is_set():
            self._idle = trio.Event()

    async def room(self) -> None:
        """Return at once while less than `HIGH_WATER_BYTES` are queued, else once all of it is written."""
        if len(self._outgoing) + self._writing > HIGH_WATER_BYTES:
            await self._idle.wait()

    async def flush(self) -> None:
        """Return once all that was put is written, or the peer has gone."""
        await self._idle.wait()

    async def run_writer(self) -> None:
        """Write what is put until cancelled or the peer has gone. A cancelled write may leave half a frame behind."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            data, self._outgoing = memoryview(self._outgoing), bytearray()
            self._writing = len(data)
            try:
                while data:
                    self._progress_at = trio.current_time()
                    await self._stream.send_all(data[:SEND_BYTES])
                    data = data[SEND_BYTES:]
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.broken = True
                self._outgoing.clear()
                return
            finally:
                self._writing = 0
                self._progress_at = float("inf")
                if not self._outgoing:
                    self._idle.set()

    async def stalled(self, seconds: float) -> None:
        """Return once the peer has taken nothing for ``seconds`` of what is being written; else never."""
        while True:
            await trio.sleep(seconds / 2)
            if trio.current_time() - self._progress_at >= seconds:
                # After a pause of our own process the peer must get the chance to read.
                await trio.sleep(seconds / 20)
                if trio.current_time() - self._progress_at >= seconds:
                    return

    async def aclose(self) -> None:
        """Close the stream; what was not flushed is lost."""
        self.broken = True
        await self._stream.aclose()
