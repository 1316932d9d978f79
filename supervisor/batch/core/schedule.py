"""Which job starts next, and what becomes of one whose attempt has ended.

A pure machine over the jobs of one run of a batch. A job is pending, running or done. Jobs with the same lane never run
at once. ``now`` is in seconds on a monotonic clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

import msgspec

from supervisor.batch.core.outcome import Again, AttemptEnd, Verdict, backoff, what_follows
from supervisor.batch.core.words import HaltReason, HaltWhen, RetryClass


class ScheduledJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job without a verdict. Higher ``priority`` goes first, then the order in the file, ``index``.

    ``retries`` is how many extra attempts it may have, ``retries_used`` how many it has had; ``delay`` is in seconds
    from the start of the run. Jobs of the same ``lane`` run one after the other; None: with any other.
    """

    id: str
    index: int
    priority: float
    retries: int
    retries_used: int = 0
    attempts: int = 0
    delay: float = 0.0
    lane: str | None = None


class Halt(msgspec.Struct, frozen=True, kw_only=True):
    """The batch starts nothing any more; with ``now`` what runs is to be stopped."""

    when: HaltWhen
    reason: HaltReason


class _State:
    """What changes of a job."""

    def __init__(self, job: ScheduledJob) -> None:
        self.job = job
        self.attempts = job.attempts
        self.retries_used = job.retries_used
        self.throttled = 0

    @property
    def rank(self) -> tuple[float, int]:
        return -self.job.priority, self.job.index


class Schedule:
    """The jobs that have no verdict yet."""

    def __init__(self, jobs: Iterable[ScheduledJob], *, retry_on: frozenset[RetryClass], started_at: float) -> None:
        """``started_at`` is the time from which the jobs' delays count."""
        self._retry_on = retry_on
        self._states = {job.id: _State(job) for job in jobs}
        self._ready: list[tuple[tuple[float, int], str]] = []
        self._delayed: list[tuple[float, str]] = []
        self._parked: dict[str, list[tuple[tuple[float, int], str]]] = {}
        """By lane: jobs that wait for another one to leave it."""
        self._taken_lanes: set[str] = set()
        self._running: dict[str, None] = {}
        self._retries: dict[str, int] = {}
        """Of jobs that have their verdict."""
        self.halt: Halt | None = None
        for state in self._states.values():
            self._wait(state.job.id, started_at + state.job.delay)

    @property
    def running(self) -> tuple[str, ...]:
        """The jobs that run, in the order of their start."""
        return tuple(self._running)

    @property
    def pending(self) -> int:
        """How many jobs have neither a verdict nor run."""
        return len(self._states) - len(self._running)

    @property
    def is_over(self) -> bool:
        """Nothing runs, and nothing will start."""
        return not self._running and (self.halt is not None or not self._states)

    def start_next(self, now: float, *, slots: int) -> tuple[str, int] | None:
        """The job to start now and the number of its attempt, None: none. It is running from then on.

        ``slots`` is how many jobs may run at once, as things are now.
        """
        if self.halt is not None or len(self._running) >= slots:
            return None
        self._wake(now)
        while self._ready:
            rank, job_id = heapq.heappop(self._ready)
            state = self._states[job_id]
            lane = state.job.lane
            if lane is not None and lane in self._taken_lanes:
                heapq.heappush(self._parked.setdefault(lane, []), (rank, job_id))
                continue
            if lane is not None:
                self._taken_lanes.add(lane)
            state.attempts += 1
            self._running[job_id] = None
            return job_id, state.attempts
        return None

    def end(self, now: float, job_id: str, end: AttemptEnd) -> Verdict | Again:
        """The attempt of a running job ended: its verdict, or that it is pending again."""
        state = self._states[job_id]
        del self._running[job_id]
        self._free_lane(state.job.lane)
        follows = what_follows(
            end,
            retries_left=state.job.retries - state.retries_used,
            retries_used=state.retries_used,
            retry_on=self._retry_on,
        )
        if isinstance(follows, Verdict):
            self._retries[job_id] = state.retries_used
            del self._states[job_id]
            return follows
        if follows.retry is not None:
            state.retries_used += 1
        if end.outcome == "throttle":
            follows = Again(delay=backoff(state.throttled), retry=None)
            state.throttled += 1
        self._wait(job_id, now + follows.delay)
        return follows

    def retries_used(self, job_id: str) -> int:
        """How many extra attempts a job has had, by its own fault."""
        state = self._states.get(job_id)
        return self._retries[job_id] if state is None else state.retries_used

    def stop(self, when: HaltWhen, reason: HaltReason) -> bool:
        """Start nothing any more; True if that is news. What is over at once stays so, but the first reason counts."""
        if self.halt is None:
            self.halt = Halt(when=when, reason=reason)
            return True
        if when == "now" and self.halt.when == "soon":
            self.halt = Halt(when="now", reason=self.halt.reason)
            return True
        return False

    def next_deadline(self, now: float) -> float:
        """When a job that waits for its next try may start; infinity: none waits, or none may start."""
        if self.halt is not None or not self._delayed:
            return math.inf
        return max(self._delayed[0][0], now)

    def _wait(self, job_id: str, until: float) -> None:
        heapq.heappush(self._delayed, (until, job_id))

    def _wake(self, now: float) -> None:
        while self._delayed and self._delayed[0][0] <= now:
            _, job_id = heapq.heappop(self._delayed)
            heapq.heappush(self._ready, (self._states[job_id].rank, job_id))

    def _free_lane(self, lane: str | None) -> None:
        if lane is None:
            return
        self._taken_lanes.discard(lane)
        for entry in self._parked.pop(lane, ()):
            heapq.heappush(self._ready, entry)
