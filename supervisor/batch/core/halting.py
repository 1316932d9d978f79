"""When a batch stops before its last job: the rule of ``--halt`` and the breaker.

Pure machines, fed with the verdicts of this run of the batch. Source: the batch contract, "Command line".
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, cast

import msgspec

from supervisor.batch.core.words import HaltWhen, Status

VERDICTS_FOR_PERCENT = 10
"""A share is judged from so many verdicts on."""

HaltWhy: TypeAlias = Literal["fail", "success", "done"]
_RULE = re.compile(r"(now|soon),(fail|success|done)=([0-9]{1,9})(%?)")


class HaltRule(msgspec.Struct, frozen=True, kw_only=True):
    """``when`` to halt once ``why`` has come to ``number``: a count, or the share of the verdicts in percent.

    For ``done`` the share is that of all jobs.
    """

    when: HaltWhen
    why: HaltWhy
    number: int
    is_percent: bool


def parse_halt_rule(text: str) -> HaltRule | None:
    """``WHEN,WHY=N`` or ``WHEN,WHY=N%``; None for ``never``. Raises ValueError for anything else."""
    if text == "never":
        return None
    match = _RULE.fullmatch(text)
    number = int(match[3]) if match else 0
    if match is None or number < 1 or (match[4] and number > 100):
        raise ValueError(f"no rule to halt by: {text!r}")
    return HaltRule(
        when=cast("HaltWhen", match[1]), why=cast("HaltWhy", match[2]), number=number, is_percent=bool(match[4])
    )


class HaltJudge:
    """Counts verdicts and says when the rule is met."""

    def __init__(self, rule: HaltRule | None, total: int) -> None:
        """``total`` is the number of jobs in the batch."""
        self._rule = rule
        self._total = total
        self._verdicts = 0
        self._counts: dict[HaltWhy, int] = {"fail": 0, "success": 0, "done": 0}

    def take(self, status: Status) -> HaltWhen | None:
        """A verdict came; when to halt because of it, None: not at all."""
        self._verdicts += 1
        self._counts["success" if status == "ok" else "fail"] += 1
        self._counts["done"] += 1
        rule = self._rule
        if rule is None:
            return None
        count = self._counts[rule.why]
        if not rule.is_percent:
            return rule.when if count >= rule.number else None
        whole = self._total if rule.why == "done" else self._verdicts
        is_met = self._verdicts >= VERDICTS_FOR_PERCENT and count * 100 >= rule.number * whole
        return rule.when if is_met else None


class Breaker:
    """Opens where the first ``limit`` verdicts are all the same, and none of them ok: then something else is wrong."""

    def __init__(self, limit: int) -> None:
        """0: never opens."""
        self._limit = limit
        self._seen: tuple[Status, str] | None = None
        self._count = 0
        self._is_off = limit == 0

    def take(self, status: Status, reason: str) -> bool:
        """A verdict came; True if the breaker opens with it."""
        if self._is_off:
            return False
        self._count += 1
        if status == "ok" or (self._seen is not None and self._seen != (status, reason)):
            self._is_off = True
            return False
        self._seen = (status, reason)
        return self._count == self._limit
