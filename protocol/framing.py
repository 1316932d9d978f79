"""Length-prefixed frames, without IO.

A frame is a 4-byte big-endian length and that many bytes of body. The length is checked against the limit before
anything is allocated for it.
"""

from __future__ import annotations

import struct

from protocol.errors import FrameTooLarge

PREFIX_BYTES = 4
MAX_FRAME_BYTES = 32 * 1024 * 1024

_read_prefix = struct.Struct(">I").unpack_from


def frame(body: bytes, limit: int = MAX_FRAME_BYTES) -> bytes:
    """``body`` with its length before it. Raises `FrameTooLarge`, with offset 0, for a body over ``limit``."""
    if len(body) > limit:
        raise FrameTooLarge(len(body), limit, 0)
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


class FrameSplitter:
    """Cuts a stream of bytes, fed in any pieces, into the bodies of its frames.

    After `FrameTooLarge` the splitter is of no more use: the place of the next frame is unknown.
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._offset = 0
        self._wanted = PREFIX_BYTES

    @property
    def offset(self) -> int:
        """Where the next frame begins, in bytes from the start of the stream."""
        return self._offset

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not whole yet; over 0 at the end of a stream: it was cut inside a frame."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray) -> list[tuple[int, bytes]]:
        """Take ``data`` and return the offset and body of each frame that is whole now.

        Raises `FrameTooLarge` for a length over the limit, once the frames before it have been returned. Takes time
        linear in the bytes fed, however small the pieces.
        """
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._wanted:
                return []
            data = self._buffer
        if not data:
            return []
        frames, rest = self._split(bytes(data))
        self._buffer = bytearray(rest)
        return frames

    def _split(self, data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
        """The whole frames at the start of ``data``, and what is behind them."""
        frames: list[tuple[int, bytes]] = []
        position, available, start = 0, len(data), self._offset
        self._wanted = PREFIX_BYTES
        while (body := position + PREFIX_BYTES) <= available:
            (size,) = _read_prefix(data, position)
            if size > self._limit:
                if frames:
                    break
                raise FrameTooLarge(size, self._limit, self._offset)
            end = body + size
            if end > available:
                self._wanted = PREFIX_BYTES + size
                break
            frames.append((start + position, data[body:end]))
            position = end
        self._offset = start + position
        return frames, data[position:]
