"""Length-prefixed frames, without IO.

A frame is a 4-byte big-endian length and that many bytes of body. The length is checked against the limit before
anything is allocated for it.
"""

from __future__ import annotations

from protocol.errors import FrameTooLarge

PREFIX_BYTES = 4
MAX_FRAME_BYTES = 32 * 1024 * 1024


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

        Raises `FrameTooLarge` for a length over the limit, once the frames before it have been returned.
        """
        self._buffer += data
        frames: list[tuple[int, bytes]] = []
        buffer = self._buffer
        position = 0
        try:
            while len(buffer) - position >= PREFIX_BYTES:
                size = int.from_bytes(buffer[position : position + PREFIX_BYTES], "big")
                if size > self._limit:
                    if frames:
                        break
                    raise FrameTooLarge(size, self._limit, self._offset)
                end = position + PREFIX_BYTES + size
                if len(buffer) < end:
                    break
                frames.append((self._offset, bytes(memoryview(buffer)[position + PREFIX_BYTES : end])))
                self._offset += end - position
                position = end
        finally:
            del buffer[:position]
        return frames
