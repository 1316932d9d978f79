"""The cap of model calls in one turn, and how a run answers itself when it is reached.

Source: the wire contract, "Loop guard, cap, compaction".
"""

from __future__ import annotations

from typing import Literal

EXTENSION = 200
"""Model calls that a one-shot run gives itself, once, when its main agent reaches the cap."""

_LAST_WORDS = (
    "You have reached the limit of {cap} model calls. Tools are no longer available: "
    "answer now with what you have found so far and what is still open."
)


class CallCap:
    """A main agent's cap is extended once, then ends the turn; a sub-agent gets one last call without tools."""

    def __init__(self, cap: int, *, is_main: bool) -> None:
        self.cap = cap
        self.is_last_call = False
        self._is_main = is_main
        self._is_extended = False

    def restore(self, iterations: int) -> None:
        """Take up the state that ``iterations`` calls led to in an earlier worker."""
        if iterations <= self.cap:
            return
        if self._is_main:
            self._extend()
        else:
            self.is_last_call = True

    def is_reached(self, iterations: int) -> bool:
        """Whether the next call would be one too many."""
        return iterations >= self.cap

    def answer(self) -> Literal["extended", "last_call", "end"]:
        """The cap is reached: what now."""
        if not self._is_main:
            self.is_last_call = True
            return "last_call"
        if self._is_extended:
            return "end"
        self._extend()
        return "extended"

    def last_words(self) -> str:
        """What a sub-agent is told before its last call."""
        return _LAST_WORDS.format(cap=self.cap)

    def _extend(self) -> None:
        self._is_extended = True
        self.cap += EXTENSION
