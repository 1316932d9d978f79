from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.content import AssistantMessage, Message, Summary, ToolCall, ToolResult, UserMessage
from tests.workers.core.histories import assert_every_call_is_answered, histories
from workers.core.compaction import (
    SUMMARY_SYSTEM_PROMPT,
    CompactionPlan,
    plan,
    read_summary,
    summary_max_tokens,
    summary_messages,
    summary_tokens,
)
from workers.core.context import estimate_messages, estimate_text
from workers.core.transcript import Transcript


def exchange(tokens: int) -> list[Message]:
    call = ToolCall(id="a", name="Read", arguments='{"file_path":"notes.txt"}')
    result = ToolResult(call_id="a", name="Read", outcome="success", output="x" * 4 * tokens)
    return [AssistantMessage(tool_calls=(call,)), result]


def some_plan(view: list[Message], window: int, overhead_tokens: int = 0) -> CompactionPlan:
    made = plan(view, window, overhead_tokens=overhead_tokens)
    assert made is not None
    return made


def summary_text(made: CompactionPlan) -> str:
    (message,) = summary_messages(made)
    assert isinstance(message, UserMessage)
    return message.text


def test_fewer_than_four_messages_are_not_summed_up() -> None:
    assert plan([UserMessage(text="x" * 9000), *exchange(9000)], 1000) is None
    assert plan([UserMessage(text="x" * 9000), *exchange(9000), UserMessage(text="and?")], 1000) is not None


def test_the_kept_tail_takes_at_most_a_quarter_of_the_window() -> None:
    view: list[Message] = [UserMessage(text="go"), *(message for _ in range(20) for message in exchange(100))]
    made = some_plan(view, 2000)
    assert 250 < estimate_messages(made.kept) <= 500
    assert made.messages_removed == len(view) - len(made.kept)


def test_the_last_exchange_is_kept_although_it_is_more_than_a_quarter() -> None:
    view: list[Message] = [UserMessage(text="go"), *exchange(4200), *exchange(4200)]
    assert some_plan(view, 12_000).kept == tuple(exchange(4200))


def test_the_last_exchange_goes_too_when_it_would_fill_the_window_again() -> None:
    view: list[Message] = [UserMessage(text="go"), *exchange(4200), *exchange(4200)]
    made = some_plan(view, 12_000, overhead_tokens=4000)
    assert made.kept == ()
    assert made.messages_removed == 5


def test_a_prompt_that_has_no_reply_yet_is_kept() -> None:
    prompt = UserMessage(text="x" * 4 * 450)
    assert some_plan([UserMessage(text="go"), *exchange(400), prompt], 1000).kept == (prompt,)


def test_calls_without_results_stay_with_all_their_results() -> None:
    calls = (ToolCall(id="a", name="Read"), ToolCall(id="b", name="Read"))
    opened: list[Message] = [
        AssistantMessage(tool_calls=calls),
        ToolResult(call_id="a", name="Read", outcome="success", output="x" * 9000),
    ]
    made = some_plan([UserMessage(text="one"), UserMessage(text="two"), *opened], 100)
    assert made.kept == tuple(opened)


def test_an_earlier_summary_alone_is_not_summed_up_again() -> None:
    view: list[Message] = [Summary(text="x" * 4000, replaces=9), *(UserMessage(text="go") for _ in range(3))]
    assert plan(view, 1000) is None


@given(histories(min_exchanges=1), st.integers(1, 3000), st.integers(0, 3000), st.booleans())
def test_a_cut_is_safe_and_removes_something(
    history: list[Message], window: int, overhead_tokens: int, has_summary: bool
) -> None:
    view: list[Message] = [Summary(text="before", replaces=2), *history] if has_summary else history
    made = plan(view, window, overhead_tokens=overhead_tokens)
    if made is None:
        assert len(view) < 4 or has_summary
        return
    assert made.messages_removed >= 1
    assert [*made.replaced, *made.kept] == view
    assert_every_call_is_answered(made.kept)
    assert_every_call_is_answered(made.replaced)
    transcript = Transcript(view)
    summary = Summary(text="s", replaces=made.messages_removed)
    transcript.append(summary)
    assert transcript.view() == (summary, *made.kept)


@given(
    st.lists(st.tuples(st.sampled_from("uar"), st.integers(0, 60_000), st.sampled_from("x语é\n")), min_size=1),
    st.integers(1000, 40_000),
)
def test_a_summary_call_always_fits_in_the_window(parts: list[tuple[str, int, str]], window: int) -> None:
    replaced: list[Message] = []
    for kind, length, letter in parts:
        text = letter * length
        if kind == "u":
            replaced.append(UserMessage(text=text))
        elif kind == "a":
            replaced.append(AssistantMessage(text=text))
        else:
            replaced.append(ToolResult(call_id="a", name="Read", outcome="success", output=text))
    made = CompactionPlan(replaced=tuple(replaced), kept=(), window_tokens=window)
    sent = estimate_messages(summary_messages(made)) + estimate_text(SUMMARY_SYSTEM_PROMPT)
    assert sent + summary_max_tokens(window) <= window


@pytest.mark.parametrize("window", [1, 10, 100, 300])
def test_a_tiny_window_leaves_the_instructions_standing(window: int) -> None:
    made = CompactionPlan(replaced=tuple(exchange(900) * 50), kept=(), window_tokens=window)
    assert "<summary></summary>" in summary_text(made)
    assert summary_max_tokens(window) >= 1


def test_a_short_history_is_shown_to_the_summarizer_whole() -> None:
    view: list[Message] = [
        Summary(text="what was before", replaces=3),
        UserMessage(text="find the defect"),
        AssistantMessage(text="I look", tool_calls=(ToolCall(id="a", name="Bash", arguments='{"command":"make"}'),)),
        ToolResult(call_id="a", name="Bash", outcome="error", output="exit code 2"),
    ]
    text = summary_text(CompactionPlan(replaced=tuple(view), kept=(), window_tokens=8000))
    for part in ("what was before", "find the defect", "I look", "Bash", '{"command":"make"}', "error", "exit code 2"):
        assert part in text


def test_long_results_are_shortened_before_prompts_are() -> None:
    prompt = UserMessage(text="p" * 1500)
    view: list[Message] = [prompt, *(message for _ in range(30) for message in exchange(5000))]
    text = summary_text(CompactionPlan(replaced=tuple(view), kept=(), window_tokens=12_000))
    assert "p" * 1500 in text
    assert "left out" in text


@pytest.mark.parametrize(
    ("reply", "summary"),
    [
        ("<summary>Read notes.</summary>", "Read notes."),
        ("Sure.\n<summary>\n two\nlines \n</summary>\nBye", "two\nlines"),
        ("<Summary>x</SUMMARY>", "x"),
        ("<summary>the tag </summary> is named</summary>", "the tag </summary> is named"),
        ("<summary>cut off in the mid", "cut off in the mid"),
        ("no tags at all", "no tags at all"),
        ("<summary></summary>", None),
        ("<summary> \n </summary> text outside", None),
        ("<summary>", None),
        (" \n", None),
        ("", None),
    ],
)
def test_a_summary_is_what_stands_in_the_tags_or_all_there_is(reply: str, summary: str | None) -> None:
    assert read_summary(reply, had_tool_calls=False) == summary


def test_a_reply_with_tool_calls_is_no_summary() -> None:
    assert read_summary("<summary>Read notes.</summary>", had_tool_calls=True) is None


def test_a_summary_has_tokens() -> None:
    assert 0 < summary_tokens("Read notes.") < summary_tokens("Read notes. " * 20)
