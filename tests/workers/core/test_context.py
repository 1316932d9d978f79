from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.content import AssistantMessage, Message, Summary, ToolCall, ToolResult, UserMessage
from tests.workers.core.histories import histories
from workers.core.context import ContextGauge, estimate_message, estimate_messages, estimate_prompt, estimate_text


class SomeTool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    parameters: str


def test_four_ascii_characters_are_a_token() -> None:
    assert [estimate_text("x" * n) for n in (0, 1, 4, 5, 4000)] == [0, 1, 1, 2, 1000]


def test_other_scripts_take_more_tokens_than_ascii_of_the_same_length() -> None:
    assert estimate_text("a" * 300) < estimate_text("é" * 300) < estimate_text("语" * 300) < estimate_text("🙂" * 300)
    assert estimate_text("语" * 300) == 300


@given(st.text(), st.text())
def test_a_longer_text_never_has_fewer_tokens_and_no_text_has_none(one: str, other: str) -> None:
    both = estimate_text(one + other)
    assert max(estimate_text(one), estimate_text(other)) <= both <= estimate_text(one) + estimate_text(other)
    assert both > 0 or not one + other


def test_a_lone_surrogate_is_counted_not_refused() -> None:
    assert estimate_text("\ud800") == 1


@pytest.mark.parametrize(
    ("message", "longer"),
    [
        (UserMessage(text=""), UserMessage(text="x" * 400)),
        (Summary(text="", replaces=3), Summary(text="x" * 400, replaces=3)),
        (
            ToolResult(call_id="a", name="Read", outcome="success", output=""),
            ToolResult(call_id="a", name="Read", outcome="success", output="x" * 400),
        ),
        (AssistantMessage(), AssistantMessage(text="x" * 400)),
        (
            AssistantMessage(tool_calls=(ToolCall(id="a", name="Read"),)),
            AssistantMessage(tool_calls=(ToolCall(id="a", name="Read", arguments="x" * 402),)),
        ),
        (
            AssistantMessage(tool_calls=(ToolCall(id="a", name="Read"),)),
            AssistantMessage(tool_calls=(ToolCall(id="a", name="Read"),), reasoning="x" * 400),
        ),
    ],
)
def test_each_part_of_a_message_that_is_sent_counts(message: Message, longer: Message) -> None:
    assert estimate_message(message) > 0
    assert estimate_message(longer) == estimate_message(message) + 100


def test_reasoning_that_is_not_sent_back_does_not_count() -> None:
    assert estimate_message(AssistantMessage(text="x", reasoning="y" * 4000)) < 20


@given(histories())
def test_a_prompt_is_its_preamble_and_its_messages(messages: list[Message]) -> None:
    tool = SomeTool(name="Read", description="d" * 40, parameters="{}")
    preamble = estimate_prompt("s" * 40, [tool], [])
    assert preamble >= 20
    assert estimate_prompt("s" * 40, [tool], messages) == preamble + estimate_messages(messages)
    assert estimate_prompt("s" * 40, [tool, tool], []) > preamble


def test_our_estimate_decides_when_the_server_reports_less() -> None:
    gauge = ContextGauge(1000)
    gauge.report(100, 10, 1)
    assert gauge.used(850) == 850
    assert gauge.percent(850) == 85
    assert gauge.is_due(850)
    assert not gauge.is_due(799)


def test_the_servers_count_decides_when_it_is_larger() -> None:
    gauge = ContextGauge(1000)
    gauge.report(700, 150, 1)
    assert gauge.used(300) == 850
    assert gauge.is_due(300)


def test_what_came_after_the_servers_count_is_added_to_it() -> None:
    gauge = ContextGauge(1000)
    call = ToolCall(id="a", name="Read")
    prompt, reply = UserMessage(text="go"), AssistantMessage(tool_calls=(call,))
    result = ToolResult(call_id="a", name="Read", outcome="success", output="x" * 400)
    gauge.report(500, 20, 1)
    assert gauge.used(200, [prompt, reply]) == 520
    assert gauge.used(200, [prompt, reply, result]) == 520 + estimate_message(result)


def test_a_reply_that_was_empty_and_left_out_does_not_count() -> None:
    gauge = ContextGauge(1000)
    note = UserMessage(text="x" * 40)
    gauge.report(500, 20, 1)
    assert gauge.used(200, [UserMessage(text="go")]) == 500
    assert gauge.used(200, [UserMessage(text="go"), note]) == 500 + estimate_message(note)


def test_a_report_is_forgotten_by_a_compaction() -> None:
    gauge = ContextGauge(1000)
    gauge.report(900, 10, 4)
    gauge.compacted(200)
    assert gauge.used(200) == 200


def test_a_report_that_fell_after_a_compaction_is_believed() -> None:
    gauge = ContextGauge(1000)
    gauge.report(900, 10, 4)
    gauge.compacted(200)
    gauge.report(400, 10, 2)
    assert gauge.used(200) == 410


def test_a_server_that_always_reports_a_number_near_the_window_causes_one_compaction() -> None:
    gauge = ContextGauge(4000)
    compactions = 0
    for turn in range(50):
        if gauge.is_due(500 + turn):
            compactions += 1
            gauge.compacted(500)
        gauge.report(3900, 10, 1)
    assert compactions == 1


def test_a_server_whose_reports_hardly_fall_is_not_believed() -> None:
    gauge = ContextGauge(4000)
    compactions = 0
    for turn in range(500):
        if gauge.is_due(500):
            compactions += 1
            gauge.compacted(500)
        gauge.report(3900 - turn % 300, 10, 1)
    assert compactions <= 3


def test_after_a_compaction_the_window_can_fill_again() -> None:
    gauge = ContextGauge(1000)
    assert gauge.is_due(900)
    gauge.compacted(300)
    assert not gauge.is_due(700)
    assert gauge.is_due(820)


def test_a_compaction_that_did_not_help_is_not_tried_again_before_there_is_more_to_sum_up() -> None:
    failing, fruitless = ContextGauge(1000), ContextGauge(1000)
    failing.compaction_failed(850)
    fruitless.compacted(850)
    for gauge in (failing, fruitless):
        assert [gauge.is_due(used) for used in (850, 899, 900)] == [False, False, True]


def test_a_window_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        ContextGauge(0)


@given(st.integers(1, 10**6), st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 9))
def test_the_use_is_never_below_our_estimate(window: int, estimate: int, reported: int, count: int) -> None:
    gauge = ContextGauge(window)
    gauge.report(reported, 0, count)
    assert gauge.used(estimate) == max(estimate, reported)
    assert gauge.is_due(estimate) == (gauge.percent(estimate) >= 80)
