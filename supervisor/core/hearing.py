"""Whether a worker takes what it is told: a process can send heartbeats and have stopped to listen."""

from __future__ import annotations


class Hearing:
    """Compares what was sent with what the worker says it has taken. ``now`` is in seconds on a monotonic clock."""

    def __init__(self) -> None:
        self._taken = 0
        self._behind_since: float | None = None

    def report(self, now: float, sent: int, taken: int) -> float:
        """The worker has taken ``taken`` of the ``sent`` messages; returns for how long it has taken none, in seconds.

        0 while it takes some between two reports, or has taken all.
        """
        if taken >= sent:
            self._behind_since = None
        elif taken > self._taken or self._behind_since is None:
            self._behind_since = now
        self._taken = taken
        return 0.0 if self._behind_since is None else now - self._behind_since
