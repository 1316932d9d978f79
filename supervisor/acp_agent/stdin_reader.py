"""Standard input on a thread of its own, with blocking reads.

Non-blocking mode would be shared with whoever else has the other end of our descriptor, and epoll takes no regular
files: so a thread reads, and waits until what it read is taken.
"""

from __future__ import annotations

import os
import threading

import trio

READ_BYTES = 256 * 1024


class StdinReader:
    """Pieces of what comes in on a file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._token = trio.lowlevel.current_trio_token()
        self._send, self._pieces = trio.open_memory_channel[bytes](0)
        # A read that never returns must not keep the process: the thread is a daemon.
        threading.Thread(target=self._read_all, name="stdin", daemon=True).start()

    async def receive(self) -> bytes:
        """The next piece; empty at the end, which an error is too. To be called no more after that."""
        return await self._pieces.receive()

    def _read_all(self) -> None:
        data = b"-"
        while data:
            try:
                data = os.read(self._fd, READ_BYTES)
            except OSError:
                data = b""
            try:
                trio.from_thread.run(self._send.send, data, trio_token=self._token)
            except (trio.RunFinishedError, trio.Cancelled, trio.BrokenResourceError):
                return
