"""When a failed model call is sent again.

A pure machine: it names the delay, the shell waits it out.
"""

from __future__ import annotations

import math

import msgspec

LONGEST_RETRY_AFTER = 120.0
"""The most of a server's wish that is granted, in seconds. Source: the v1 wire contract, "How the model is called"."""


class RetryStep(msgspec.Struct, frozen=True, kw_only=True):
    """One resend: number ``attempt`` (from 1) of at most ``max_attempts``, after ``delay_ms`` milliseconds."""

    attempt: int
    max_attempts: int
    delay_ms: int


class RetrySchedule:
    """The delays between the attempts at one model call.

    The first is ``first_delay`` seconds, each later one twice the one before, none over ``ceiling``. A time that the
    server asked for takes the place of the delay it meets; the doubling goes on behind it.
    """

    def __init__(self, first_delay: float = 1.0, max_attempts: int = 5, ceiling: float = 32.0) -> None:
        """``max_attempts`` counts resends, the first sending not among them. Raises ValueError for negative numbers."""
        if not (0 <= first_delay < math.inf and 0 <= ceiling < math.inf and max_attempts >= 0):
            raise ValueError(f"not a schedule: {first_delay} s, {max_attempts} attempts, ceiling {ceiling} s")
        self._first_delay = first_delay
        self._max_attempts = max_attempts
        self._ceiling = ceiling
        self._attempt = 0

    def next(self, retry_after: float | None) -> RetryStep | None:
        """The next resend, or None when all attempts are used up.

        ``retry_after`` is what the server asked for, in seconds, None where it asked for nothing. It wins, held
        within 0 and `LONGEST_RETRY_AFTER`; what is not a number is ignored.
        """
        if self._attempt >= self._max_attempts:
            return None
        delay = self._own_delay()
        if retry_after is not None and not math.isnan(retry_after):
            delay = min(max(retry_after, 0.0), LONGEST_RETRY_AFTER)
        self._attempt += 1
        return RetryStep(attempt=self._attempt, max_attempts=self._max_attempts, delay_ms=round(delay * 1000))

    def reset(self) -> None:
        """Begin again at the first attempt: a call succeeded."""
        self._attempt = 0

    def _own_delay(self) -> float:
        # The exponent is held: 2.0**1024 overflows long after every sane ceiling.
        return min(self._first_delay * 2.0 ** min(self._attempt, 64), self._ceiling)
