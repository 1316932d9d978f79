"""Notices that a model makes the same tool call again and again.

A pure machine: the shell shows it every call before it runs, and it says whether to run it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Literal, TypeAlias

from protocol.content import ToolCall

GuardVerdict: TypeAlias = Literal["run", "feedback", "stop"]

_Fingerprint: TypeAlias = tuple[str, str, bool]


class LoopGuard:
    """Counts equal tool calls in a row.

    Two calls are equal when name and arguments are, whatever the order of the keys and the white space in the text of
    the arguments. The calls of one reply count in call order, so a reply with ten equal calls is stopped as well. Any
    other call starts the count again.

    Source: the v1 wire contract, "Loop guard, cap, compaction".
    """

    def __init__(self, feedback_at: int = 5, stop_at: int = 10) -> None:
        """``feedback_at`` and ``stop_at`` count calls in a row; raises ValueError unless 1 <= feedback_at < stop_at."""
        if not 1 <= feedback_at < stop_at:
            raise ValueError(f"need 1 <= feedback_at < stop_at, got {feedback_at} and {stop_at}")
        self._feedback_at = feedback_at
        self._stop_at = stop_at
        self._last: _Fingerprint | None = None
        self._count = 0

    @property
    def count(self) -> int:
        """How many equal calls came last, in a row; 0 before the first call."""
        return self._count

    def observe(self, call: ToolCall) -> GuardVerdict:
        """Take in the next call and say what to do about it.

        ``run``: nothing is wrong. ``feedback``: this is the call number ``feedback_at`` in a row; run it and tell the
        model that it repeats itself (said once in each row of equal calls). ``stop``: call number ``stop_at`` or a
        later one; do not run it, the turn ends.
        """
        fingerprint = _fingerprint(call)
        self._count = self._count + 1 if fingerprint == self._last else 1
        self._last = fingerprint
        if self._count >= self._stop_at:
            return "stop"
        return "feedback" if self._count == self._feedback_at else "run"

    def restore(self, calls: Iterable[ToolCall]) -> None:
        """Take up the count where another process left it: ``calls`` are the calls of the turn so far, in order.

        What the model was already told about them is not said again.
        """
        self._last = None
        self._count = 0
        for call in calls:
            self.observe(call)


def _fingerprint(call: ToolCall) -> _Fingerprint:
    """What makes two calls the same call. An unusable call (its arguments read ``{}``) differs from a usable one."""
    return call.name, _canonical(call.arguments), bool(call.fault)


def _canonical(arguments: str) -> str:
    """The same text for all spellings of the same JSON value; ``arguments`` itself where it can't be read."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
