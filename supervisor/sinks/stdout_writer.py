"""Stdout on a thread of its own, with blocking writes.

Non-blocking mode would be shared with whatever else has the terminal open, and epoll takes no regular files: so a
thread writes, and the event loop waits only when the queue is full. Nothing is lost, memory is bounded.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import trio

QUEUE_BYTES = 1024 * 1024


class StdoutWriter:
    """A lossless queue of bytes before a file descriptor.

    ``broken`` is set once the reader has gone; what is written after that is dropped.
    """

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self.is_terminal = os.isatty(fd)
        self._lock = threading.Lock()
        self._queued = bytearray()
        self._writing = 0
        self._closing = False
        self._wake = threading.Condition(self._lock)
        self._written = trio.Event()
        self.broken = trio.Event()
        self._is_broken = False
        self._pushes_back = True
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(target=self._write_all, name="stdout", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Queue ``data``; never blocks."""
        with self._wake:
            if self._is_broken:
                return
            self._queued += data
            self._wake.notify()

    async def room(self) -> None:
        """Return at once while less than `QUEUE_BYTES` are queued, else once they are written."""
        while self._pushes_back and self._backlog() > QUEUE_BYTES:
            await self._wait_for_a_write(QUEUE_BYTES)

    def release(self) -> None:
        """Never wait for room any more."""
        self._pushes_back = False
        self._written.set()

    async def finish(self) -> None:
        """Return once all is written or the reader has gone."""
        while self._backlog():
            await self._wait_for_a_write(0)
        with self._wake:
            self._closing = True
            self._wake.notify()

    async def _wait_for_a_write(self, enough: int) -> None:
        # The event is taken before the backlog is looked at again: a write that ends between the two is not missed.
        written = self._written
        if self._backlog() > enough:
            await written.wait()

    def _backlog(self) -> int:
        with self._lock:
            return len(self._queued) + self._writing

    def _write_all(self) -> None:
        while True:
            with self._wake:
                while not self._queued and not self._closing:
                    self._wake.wait()
                if not self._queued:
                    return
                data = bytes(self._queued)
                self._queued.clear()
                self._writing = len(data)
            is_broken = not self._write(data)
            with self._lock:
                self._writing = 0
                self._is_broken = is_broken
                if is_broken:
                    self._queued.clear()
            self._tell(is_broken)
            if is_broken:
                return

    def _write(self, data: bytes) -> bool:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            return False
        return True

    def _tell(self, is_broken: bool) -> None:
        def wake_loop() -> None:
            written, self._written = self._written, trio.Event()
            written.set()
            if is_broken:
                self.broken.set()

        with suppress(trio.RunFinishedError):  # the run did not wait for the rest
            self._token.run_sync_soon(wake_loop)
