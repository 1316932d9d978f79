"""Stdout on a thread of its own, with blocking writes.

Non-blocking mode would be shared with whatever else has the terminal open, and epoll takes no regular files: so a
thread writes, and the event loop waits only when the queue is full. Nothing is lost, memory is bounded.
"""

from __future__ import annotations

import os
import threading
from collections import deque
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
        # A line costs the event loop one append: no lock is taken unless the thread waits for work. Each of the two
        # counts is changed by one thread only, the event loop's and the writing one's.
        self._pieces: deque[bytes] = deque()
        self._put_bytes = 0
        self._done_bytes = 0
        self._is_waiting = False
        self._closing = False
        self._wake = threading.Condition()
        self._written = trio.Event()
        self.broken = trio.Event()
        self._is_broken = False
        self._pushes_back = True
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(target=self._write_all, name="stdout", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Queue ``data``; never blocks."""
        if self._is_broken or not data:
            return
        self._pieces.append(data)
        self._put_bytes += len(data)
        if self._is_waiting:
            self._notify()

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
        self._closing = True
        self._notify()

    async def _wait_for_a_write(self, enough: int) -> None:
        # The event is taken before the backlog is looked at again: a write that ends between the two is not missed.
        written = self._written
        if self._backlog() > enough:
            await written.wait()

    def _backlog(self) -> int:
        return 0 if self.broken.is_set() else self._put_bytes - self._done_bytes

    def _notify(self) -> None:
        with self._wake:
            self._is_waiting = False
            self._wake.notify()

    def _write_all(self) -> None:
        while data := self._all_pieces():
            self._is_broken = not self._write(data)
            if self._is_broken:
                # What is not written stays counted until the event loop knows why: who waits for it sees that first.
                self._pieces.clear()
                self._tell(is_broken=True)
                return
            self._done_bytes += len(data)
            self._tell(is_broken=False)

    def _all_pieces(self) -> bytes:
        """All that is queued, once there is something; nothing once all is written and no more will come."""
        with self._wake:
            while True:
                # First the sign, then the look: who puts a line after the look sees the sign, and waits for the lock.
                self._is_waiting = True
                if self._pieces or self._closing:
                    break
                self._wake.wait()
            self._is_waiting = False
        return b"".join([self._pieces.popleft() for _ in range(len(self._pieces))])

    def _write(self, data: bytes) -> bool:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            return False
        return True

    def _tell(self, *, is_broken: bool) -> None:
        def wake_loop() -> None:
            if is_broken:
                self.broken.set()
            written, self._written = self._written, trio.Event()
            written.set()

        with suppress(trio.RunFinishedError):  # the run did not wait for the rest
            self._token.run_sync_soon(wake_loop)
