"""Whether a worker that died is started again.

Source: design notes, State: at most 3 restarts in 60 s, none twice without a newly committed item, 10 in a life.
"""

from __future__ import annotations

from protocol.records import CrashCause

MOST_IN_A_WHILE = 3
WHILE_SECONDS = 60.0
MOST_IN_A_LIFE = 10

NEVER_RESTARTED: frozenset[CrashCause] = frozenset({"out_of_memory", "spawn_failed"})
"""The same would happen again: the ceiling and the machine are as they were."""


class RestartIntensity:
    """Counts the restarts of one agent. ``now`` is in seconds on a monotonic clock."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._committed_at_last: int | None = None

    def next(self, now: float, cause: CrashCause, committed: int) -> int | None:
        """The number of the restart, from 1, or None where there is none.

        ``committed`` is the number of commits the agent has had in its life. A worker that died twice without a new one
        in between is not started a third time: whatever kills it comes before all progress.
        """
        recent = sum(now - time < WHILE_SECONDS for time in self._times)
        if cause in NEVER_RESTARTED or recent >= MOST_IN_A_WHILE or len(self._times) >= MOST_IN_A_LIFE:
            return None
        if self._committed_at_last == committed:
            return None
        self._committed_at_last = committed
        self._times.append(now)
        return len(self._times)
