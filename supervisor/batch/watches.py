"""What a batch does beside its jobs, now and then: summaries, heartbeats, drawing, patience with rate limits."""

from __future__ import annotations

from collections.abc import Callable

import trio

from supervisor.batch.books import Books
from supervisor.batch.core.words import HaltReason, HaltWhen
from supervisor.batch.progress import Snapshot
from supervisor.endpoints import Endpoints

SUMMARY_SECONDS = 5.0
PATIENCE_LOOK_SECONDS = 1.0


class Watches:
    """Tasks that run until they are cancelled. ``snapshot`` is the batch as it is when it is asked for."""

    def __init__(self, books: Books, snapshot: Callable[[], Snapshot]) -> None:
        self._books = books
        self._snapshot = snapshot

    async def keep_summary(self) -> None:
        """Write ``summary.json`` every five seconds, the first time at once."""
        while True:
            await trio.to_thread.run_sync(self._books.write_summary)
            await trio.sleep(SUMMARY_SECONDS)

    async def beat(self, seconds: float) -> None:
        """Tell where the batch stands."""
        while True:
            await trio.sleep(seconds)
            self._books.beat(self._snapshot())

    async def draw(self) -> None:
        """Draw the live block, where there is one."""
        seconds = self._books.progress.redraw_seconds
        while seconds is not None:
            self._books.progress.draw(self._snapshot())
            await trio.sleep(seconds)

    async def be_patient(
        self, seconds: float, endpoints: Endpoints, halt: Callable[[HaltWhen, HaltReason], None]
    ) -> None:
        """Halt once rate limits have let no call through for so long."""
        while endpoints.limited_for() < seconds:
            await trio.sleep(min(PATIENCE_LOOK_SECONDS, seconds / 4))
        self._books.progress.note(f"rate limits have let no model call through for {seconds:g} s")
        halt("now", "rate_limited")
