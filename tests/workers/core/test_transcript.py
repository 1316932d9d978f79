from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.content import AssistantMessage, Message, Outcome, Summary, ToolCall, ToolResult, UserMessage
from tests.workers.core.histories import assert_every_call_is_answered, exchanges, histories
from workers.core.transcript import Transcript


def reply(*ids: str) -> AssistantMessage:
    return AssistantMessage(tool_calls=tuple(ToolCall(id=call_id, name=f"Tool-{call_id}") for call_id in ids))


def result(call_id: str, output: str = "") -> ToolResult:
    return ToolResult(call_id=call_id, name=f"Tool-{call_id}", outcome="success", output=output)


def user(text: str = "go") -> UserMessage:
    return UserMessage(text=text)


stray_results: st.SearchStrategy[list[Message]] = st.sampled_from([[result(call_id)] for call_id in "abcd"])


@given(histories())
def test_a_whole_history_is_its_own_view(history: list[Message]) -> None:
    transcript = Transcript(history)
    assert transcript.view() == transcript.items == tuple(history)
    assert transcript.unanswered == ()
    assert transcript.repair() == ()


@given(histories(), st.data())
def test_a_history_cut_anywhere_has_every_call_answered_once_after_a_repair(
    history: list[Message], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(history)))
    stored = history[:cut]
    transcript = Transcript(stored)
    missing = transcript.unanswered
    repaired = transcript.repair()
    assert_every_call_is_answered(transcript.view())
    assert [(r.call_id, r.name, r.outcome) for r in repaired] == [(c.id, c.name, "interrupted") for c in missing]
    assert all(r.output for r in repaired)
    assert transcript.items == (*stored, *repaired)
    assert Transcript(transcript.items).view() == transcript.view()


@given(st.lists(st.one_of(exchanges(), stray_results)), st.data())
def test_even_a_damaged_history_gives_a_view_that_a_server_takes(
    parts: list[list[Message]], data: st.DataObject
) -> None:
    history = [message for part in parts for message in part]
    kept = [message for message in history if data.draw(st.booleans())]
    transcript = Transcript(kept)
    transcript.repair()
    assert_every_call_is_answered(transcript.view())


def test_results_may_come_in_any_order_and_are_viewed_in_call_order() -> None:
    transcript = Transcript([user(), reply("a", "b", "c")])
    transcript.append(result("c"), result("a"))
    assert [call.id for call in transcript.unanswered] == ["b"]
    transcript.append(result("b"))
    assert transcript.view()[2:] == (result("a"), result("b"), result("c"))
    assert transcript.items[2:] == (result("c"), result("a"), result("b"))


@pytest.mark.parametrize("outcome", ["interrupted", "cancelled", "denied", "error"])
def test_a_repair_names_the_outcome_that_it_was_given(outcome: Outcome) -> None:
    transcript = Transcript([user(), reply("a", "b"), result("b")])
    (repaired,) = transcript.repair(outcome)
    assert (repaired.call_id, repaired.outcome) == ("a", outcome)
    assert transcript.view()[2:] == (repaired, result("b"))


def test_a_repair_answers_only_what_the_supervisor_has_not_answered() -> None:
    transcript = Transcript([user(), reply("a", "b")])
    transcript.append(result("a", "what the sub-agent found"))
    assert [r.call_id for r in transcript.repair()] == ["b"]


def test_a_call_that_the_stored_history_goes_on_without_counts_as_interrupted() -> None:
    transcript = Transcript([user(), reply("a"), user("next prompt")])
    answer = transcript.view()[2]
    assert isinstance(answer, ToolResult)
    assert answer.outcome == "interrupted"
    assert transcript.view()[3] == user("next prompt")
    assert transcript.items == (user(), reply("a"), user("next prompt"))


@pytest.mark.parametrize(
    "message",
    [user(), reply("z"), Summary(text="s", replaces=1), result("other")],
    ids=["prompt", "reply", "summary", "strange result"],
)
def test_nothing_but_its_result_may_follow_a_call(message: Message) -> None:
    transcript = Transcript([user(), reply("a")])
    with pytest.raises(ValueError, match="result"):
        transcript.append(message)
    assert transcript.items == (user(), reply("a"))


def test_a_second_result_of_a_call_is_refused() -> None:
    transcript = Transcript([user(), reply("a"), result("a")])
    with pytest.raises(ValueError, match="no open call"):
        transcript.append(result("a"))


def test_an_id_that_an_earlier_reply_used_is_a_call_of_its_own() -> None:
    transcript = Transcript([user(), reply("a"), result("a", "one"), reply("a")])
    transcript.append(result("a", "two"))
    assert transcript.view() == (user(), reply("a"), result("a", "one"), reply("a"), result("a", "two"))


def test_a_summary_stands_first_in_place_of_what_it_replaces() -> None:
    transcript = Transcript([user("one"), reply("a"), result("a"), user("two")])
    summary = Summary(text="s", replaces=3)
    transcript.append(summary)
    assert transcript.view() == (summary, user("two"))
    assert transcript.items[-1] == summary
    transcript.append(AssistantMessage(text="done"))
    assert transcript.view() == (summary, user("two"), AssistantMessage(text="done"))


def test_a_later_summary_replaces_the_earlier_one_too() -> None:
    first, second = Summary(text="first", replaces=2), Summary(text="second", replaces=2)
    transcript = Transcript([user("one"), user("two"), user("three"), first, user("four")])
    assert transcript.view() == (first, user("three"), user("four"))
    transcript.append(second)
    assert transcript.view() == (second, user("four"))
    assert Transcript(transcript.items).view() == transcript.view()


@pytest.mark.parametrize("replaces", [-1, 0, 2, 5])
def test_a_summary_whose_border_is_not_between_two_exchanges_is_refused(replaces: int) -> None:
    transcript = Transcript([user(), reply("a"), result("a"), user()])
    with pytest.raises(ValueError, match="can't replace"):
        transcript.append(Summary(text="s", replaces=replaces))


@pytest.mark.parametrize(("replaces", "left"), [(-1, 3), (2, 1), (99, 0)])
def test_a_stored_summary_whose_border_is_wrong_is_taken_at_the_next_right_one(replaces: int, left: int) -> None:
    transcript = Transcript([user(), reply("a"), result("a"), user(), Summary(text="s", replaces=replaces)])
    assert len(transcript.view()) == 1 + left
    assert_every_call_is_answered(transcript.view())


def test_a_stored_summary_of_nothing_is_kept() -> None:
    assert Transcript([Summary(text="s", replaces=4)]).view() == (Summary(text="s", replaces=4),)


def test_recent_tools_are_the_last_ones_oldest_first() -> None:
    transcript = Transcript([user(), reply("a", "b"), result("a"), result("b"), reply("c"), result("c")])
    assert transcript.recent_tools(2) == ("Tool-b", "Tool-c")
    assert transcript.recent_tools(9) == ("Tool-a", "Tool-b", "Tool-c")
    assert transcript.recent_tools(0) == ()


class TranscriptMachine(RuleBasedStateMachine):
    """A life of appends, summaries, crashes and restarts."""

    @initialize()
    def begin(self) -> None:
        self.transcript = Transcript()

    @precondition(lambda self: not self.transcript.unanswered)
    @rule(messages=exchanges())
    def say(self, messages: list[Message]) -> None:
        self.transcript.append(*messages)

    @precondition(lambda self: not self.transcript.unanswered)
    @rule(ids=st.lists(st.sampled_from("abc"), min_size=1, unique=True))
    def call(self, ids: list[str]) -> None:
        self.transcript.append(reply(*ids))

    @precondition(lambda self: self.transcript.unanswered)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.transcript.unanswered))
        self.transcript.append(result(call.id))

    @precondition(lambda self: not self.transcript.unanswered and self.transcript.view())
    @rule(data=st.data())
    def sum_up(self, data: st.DataObject) -> None:
        view = self.transcript.view()
        borders = [i for i in range(1, len(view) + 1) if i == len(view) or not isinstance(view[i], ToolResult)]
        border = data.draw(st.sampled_from(borders))
        summary = Summary(text="s", replaces=border)
        self.transcript.append(summary)
        assert self.transcript.view() == (summary, *view[border:])

    @rule()
    def restart(self) -> None:
        view, unanswered = self.transcript.view(), self.transcript.unanswered
        self.transcript = Transcript(self.transcript.items)
        assert (self.transcript.view(), self.transcript.unanswered) == (view, unanswered)

    @rule()
    def crash_and_repair(self) -> None:
        self.transcript.repair()
        assert self.transcript.unanswered == ()

    @invariant()
    def all_calls_but_the_open_ones_are_answered(self) -> None:
        mended = Transcript(self.transcript.items)
        mended.repair()
        assert_every_call_is_answered(mended.view())
        assert len(mended.view()) == len(self.transcript.view()) + len(self.transcript.unanswered)
        assert sum(isinstance(message, Summary) for message in mended.view()) <= 1


TestTranscriptMachine = TranscriptMachine.TestCase
