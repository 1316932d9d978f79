"""How many calls an endpoint bears at once, found out by trying.

A pure machine for one endpoint, which all agents of all runs share. The limit starts at 4 and doubles with each clean
window, that is after as many clean calls as the limit, until the first rate limit. Each episode of rate limits cuts it
to four fifths; within 15 seconds there is no second cut, since the calls that were under way at the first one tell
nothing new. From then on 20 clean calls add one. Source: the batch contract, "Concurrency".
"""

from __future__ import annotations

import math
from typing import TypeAlias

FIRST_LIMIT = 4
MOST = 512
"""No limit grows over this."""
COOL_DOWN_SECONDS = 15.0
CLEAN_CALLS_FOR_ONE_MORE = 20

CallKey: TypeAlias = tuple[int, str, int]
"""A call: the run, the agent in it, the number of the agent's grant."""


class EndpointGate:
    """Lets calls through while fewer than ``limit`` are under way. ``now`` is in seconds on a monotonic clock.

    Every method returns the calls that may go now, in the order in which they came.
    """

    def __init__(self, limit: int = FIRST_LIMIT) -> None:
        self.limit = limit
        self._has_been_cut = False
        self._clean = 0
        self._cut_at = -math.inf
        # Dicts without values: sets that keep their order.
        self._open: dict[CallKey, None] = {}
        self._waiting: dict[CallKey, None] = {}

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self._waiting)

    @property
    def under_way(self) -> int:
        """How many calls are under way."""
        return len(self._open)

    def ask(self, key: CallKey) -> list[CallKey]:
        """A call wants to go; ``key`` is not in use. It is among those that may go, now or later."""
        self._waiting[key] = None
        return self._let_go()

    def clean(self, key: CallKey) -> list[CallKey]:
        """The call was answered."""
        if self._close(key):
            self._clean += 1
            if self._clean >= (CLEAN_CALLS_FOR_ONE_MORE if self._has_been_cut else self.limit):
                self._clean = 0
                self.limit = min(self.limit + 1 if self._has_been_cut else self.limit * 2, MOST)
        return self._let_go()

    def failed(self, key: CallKey) -> list[CallKey]:
        """The call failed for another reason than a rate limit: that stops growth, but cuts nothing."""
        if self._close(key):
            self._clean = 0
        return self._let_go()

    def limited(self, now: float, key: CallKey) -> list[CallKey]:
        """The endpoint refused the call as one too many.

        What is cut is the number of calls that were under way, if that is below the limit: a limit that nobody had
        reached says nothing.
        """
        under_way = self.under_way
        if self._close(key):
            self.cut(now, under_way)
        return self._let_go()

    def cut(self, now: float, under_way: int | None = None) -> None:
        """Cut the limit, unless it was cut a moment ago."""
        self._clean = 0
        if now - self._cut_at < COOL_DOWN_SECONDS:
            return
        self._has_been_cut = True
        self._cut_at = now
        reached = self.limit if under_way is None else min(self.limit, under_way)
        self.limit = max(1, reached * 4 // 5)

    def leave(self, key: CallKey) -> list[CallKey]:
        """Nobody wants the call any more, or its end will never be known."""
        self._waiting.pop(key, None)
        self._open.pop(key, None)
        return self._let_go()

    def is_waiting(self, key: CallKey) -> bool:
        """Whether the call has not gone yet."""
        return key in self._waiting

    def _close(self, key: CallKey) -> bool:
        if key not in self._open:
            return False
        del self._open[key]
        return True

    def _let_go(self) -> list[CallKey]:
        gone: list[CallKey] = []
        while self._waiting and len(self._open) < self.limit:
            key = next(iter(self._waiting))
            del self._waiting[key]
            self._open[key] = None
            gone.append(key)
        return gone
