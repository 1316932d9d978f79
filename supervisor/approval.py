"""Who is asked whether a call with a side effect may run, where the trust mode does not say so itself.

Source: the safety contract, rule 5: without anybody to ask the call is denied, in words that the model reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from protocol.content import ToolCall


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """May the open ``call`` of the agent run? ``denial`` is what the model is told if nobody is there to allow it."""

    agent_id: str
    call: ToolCall
    denial: str


class Approver(Protocol):
    """Answers questions for one run."""

    def ask(self, question: Question, answer: Callable[[str | None], None]) -> None:
        """See to it that ``answer`` is called once, now or later, with None for yes or with why not. Never blocks.

        A question whose agent has ended needs no answer.
        """
        ...


class NobodyThere:
    """The approver of a run that nobody attends."""

    def ask(self, question: Question, answer: Callable[[str | None], None]) -> None:
        """See `Approver.ask`: denied at once."""
        answer(question.denial)
