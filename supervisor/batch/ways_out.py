"""The ways in which a batch ends before its last job: halts, limits, signals, a full disk."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Mapping

import trio

from protocol.frames import Finished
from supervisor.batch.books import Books
from supervisor.batch.core.schedule import Schedule
from supervisor.batch.core.words import HaltReason, HaltWhen
from supervisor.batch.report import RunningAttempt

SECONDS_AFTER_SECOND_SIGNAL = 1.5


class WaysOut:
    """Ends the batch early. ``changed`` is called when the schedule should be looked at again.

    ``live`` are the attempts that run, by job, as they come and go. ``signals`` are the numbers of those that came;
    ``storage_failure`` says what could not be written, empty: nothing.
    """

    def __init__(
        self,
        schedule: Schedule,
        books: Books,
        live: Mapping[str, tuple[RunningAttempt, float]],
        changed: Callable[[], None],
    ) -> None:
        self._schedule = schedule
        self._books = books
        self._live = live
        self._changed = changed
        self.signals: list[int] = []
        self.storage_failure = ""

    def halt(self, when: HaltWhen, reason: HaltReason) -> None:
        """Start nothing any more; ``now``: stop what runs too. What was stopped runs again in the next run."""
        if not self._schedule.stop(when, reason):
            return
        self._changed()
        if when == "now":
            self._stop_all(reason, f"the batch was halted ({reason})")

    def storage_failed(self, message: str) -> None:
        """Something can't be written: nothing more can be promised."""
        if not self.storage_failure:
            self.storage_failure = message or "the disk is full"
            self._books.progress.note(self.storage_failure)
        self.halt("now", "storage")

    def check_budget(self, limit: int | None, when: HaltWhen) -> None:
        """Halt if all jobs together have used ``limit`` tokens."""
        if limit is not None and self._books.tally.usage.total_tokens >= limit:
            self.halt(when, "budget")

    async def watch_time(self, seconds: float) -> None:
        """Halt after so many seconds."""
        await trio.sleep(seconds)
        self.halt("now", "batch_timeout")

    async def obey_signals(
        self, signals: AsyncIterator[int], drain: float, attempts: trio.CancelScope, nursery: trio.Nursery
    ) -> None:
        """The first signal lets what runs end within ``drain`` seconds; a second one kills it.

        ``attempts`` is cancelled shortly after the second one: then whatever still holds is given up.
        """
        async for number in signals:
            self.signals.append(number)
            name = signal.Signals(number).name
            if len(self.signals) == 1:
                self._books.progress.note(f"{name}: no job starts any more; what runs has {drain:g} s to end")
                self.halt("soon", "signal")
                nursery.start_soon(self._drain, drain, name)
            else:
                self._schedule.stop("now", "signal")
                self._stop_all(name.lower(), f"ended by {name}", kill=True)
                attempts.deadline = trio.current_time() + SECONDS_AFTER_SECOND_SIGNAL

    async def _drain(self, seconds: float, name: str) -> None:
        await trio.sleep(seconds)
        self._schedule.stop("now", "signal")
        self._stop_all(name.lower(), f"ended by {name}")

    def _stop_all(self, code: str, message: str, *, kill: bool = False) -> None:
        self._books.output.release()
        ending = Finished(outcome="cancelled", code=code, message=message)
        for attempt, _ in tuple(self._live.values()):
            attempt.stop(ending, kill=kill)
