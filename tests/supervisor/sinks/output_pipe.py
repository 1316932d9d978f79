"""A real pipe with a writer before it."""

from __future__ import annotations

import os

import trio

from supervisor.sinks.stdout_writer import StdoutWriter

BOUND = 20.0
"""Seconds after which a test has failed."""


class OutputPipe:
    """``writer`` writes into a pipe whose other end is read here, and only when a test reads."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        self._reader = trio.lowlevel.FdStream(self._read_end)
        self.writer = StdoutWriter(self._write_end)

    async def read_some(self, most: int = 65536) -> bytes:
        """What is there now, or comes next; empty once the writer's end is closed."""
        with trio.fail_after(BOUND):
            return await self._reader.receive_some(most)

    async def read_to_end(self) -> bytes:
        """All that is written until the writer has finished."""
        content = bytearray()
        with trio.fail_after(BOUND):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._finish)
                while data := await self._reader.receive_some(65536):
                    content += data
        return bytes(content)

    async def stop_reading(self) -> None:
        """Close the reader's end: the reader has gone."""
        await self._reader.aclose()

    async def aclose(self) -> None:
        """Close both ends, whatever the writer's thread is at."""
        await self._reader.aclose()
        with trio.fail_after(BOUND):
            await self.writer.finish()
        self._close_write_end()

    async def _finish(self) -> None:
        await self.writer.finish()
        self._close_write_end()

    def _close_write_end(self) -> None:
        descriptor, self._write_end = self._write_end, -1
        if descriptor >= 0:
            os.close(descriptor)
