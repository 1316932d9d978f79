"""The state of a session's prompts, and how each is answered."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.frames import Finished
from protocol.jsonrpc import ErrorObject, RequestId
from supervisor.acp_agent.core.messages import StopReason
from supervisor.acp_agent.core.prompt_turn import PromptTurns, answer_of


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (Finished(outcome="complete"), "end_turn"),
        (Finished(outcome="complete", is_cut_off=True), "max_tokens"),
        (Finished(outcome="limit", code="max_tokens_total"), "max_tokens"),
        (Finished(outcome="limit", code="max_turns"), "max_turn_requests"),
        (Finished(outcome="limit", code="max_iterations"), "max_turn_requests"),
        (Finished(outcome="limit", code="timeout"), "max_turn_requests"),
        (Finished(outcome="cancelled"), "cancelled"),
        (Finished(outcome="error", code="content_filter"), "refusal"),
    ],
)
def test_an_ending_has_a_stop_reason(ending: Finished, reason: StopReason) -> None:
    assert answer_of(ending) == reason


@pytest.mark.parametrize("outcome", ["error", "crashed"])
def test_a_failure_is_an_error_with_its_sentence(outcome: str) -> None:
    ending = Finished(outcome="error" if outcome == "error" else "crashed", message="it broke")
    assert answer_of(ending) == ErrorObject(code=-32603, message="it broke")
    assert isinstance(answer_of(None), ErrorObject)


def test_the_open_prompt_is_known_by_its_id_type_and_all() -> None:
    turns = PromptTurns()
    assert not turns.is_of(None)
    turns.begin(1)
    assert turns.is_of(1) and not turns.is_of("1") and not turns.is_of(True) and not turns.is_of(None)


class Prompts(RuleBasedStateMachine):
    """One prompt at a time, each answered once under its own id, a cancelled one as cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = PromptTurns()
        self.open: list[RequestId] = []
        self.is_cancelled = False

    @rule(request=st.none() | st.integers() | st.text())
    def prompt(self, request: RequestId) -> None:
        assert self.turns.begin(request) == (not self.open)
        if not self.open:
            self.open, self.is_cancelled = [request], False

    @rule()
    def cancel(self) -> None:
        assert self.turns.cancel() == (bool(self.open) and not self.is_cancelled)
        self.is_cancelled = bool(self.open)

    @precondition(lambda self: self.open)
    @rule(ending=st.sampled_from([None, Finished(outcome="complete"), Finished(outcome="error", message="x")]))
    def end(self, ending: Finished | None) -> None:
        expected = "cancelled" if self.is_cancelled else answer_of(ending)
        assert self.turns.end(ending) == (self.open.pop(), expected)
        self.is_cancelled = False

    @invariant()
    def it_knows_what_is_open(self) -> None:
        assert self.turns.is_open == bool(self.open)
        assert self.turns.is_cancelled == self.is_cancelled


TestPrompts = Prompts.TestCase
