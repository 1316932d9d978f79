from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.content import ToolCall
from workers.core.loop_guard import LoopGuard


def call(arguments: object = None, name: str = "Bash", **rest: str) -> ToolCall:
    return ToolCall(id="x", name=name, arguments=json.dumps(arguments or {}), **rest)


def test_the_fifth_equal_call_is_feedback_and_the_tenth_is_stop() -> None:
    guard = LoopGuard()
    verdicts = [guard.observe(call({"command": "true"})) for _ in range(10)]
    assert verdicts == ["run"] * 4 + ["feedback"] + ["run"] * 4 + ["stop"]
    assert guard.count == 10


def test_a_call_after_the_stop_is_stopped_too() -> None:
    guard = LoopGuard(feedback_at=1, stop_at=2)
    assert [guard.observe(call()) for _ in range(4)] == ["feedback", "stop", "stop", "stop"]


def test_another_call_starts_the_count_again() -> None:
    guard = LoopGuard(feedback_at=2, stop_at=3)
    verdicts = [guard.observe(call(name=name)) for name in ["A", "A", "B", "A", "A", "A"]]
    assert verdicts == ["run", "feedback", "run", "run", "feedback", "stop"]


def test_alternating_calls_are_no_loop() -> None:
    guard = LoopGuard()
    assert {guard.observe(call({"n": turn % 2})) for turn in range(40)} == {"run"}


def test_the_order_of_keys_and_white_space_make_no_difference() -> None:
    guard = LoopGuard(feedback_at=2, stop_at=3)
    spellings = ['{"a": 1, "b": {"c": 2, "d": 3}}', '{"b":{"d":3,"c":2},"a":1}', '{ "a":1,"b":{"c":2 ,"d":3} }']
    assert [guard.observe(ToolCall(id="x", name="T", arguments=text)) for text in spellings] == [
        "run",
        "feedback",
        "stop",
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (call({"n": 1}), call({"n": 2})),
        (call({"n": 1}), call({"n": "1"})),
        (call({"n": True}), call({"n": 1})),
        (call({"n": 2**70}), call({"n": 2**70 + 1})),
        (call({"n": [1, 2]}), call({"n": [2, 1]})),
        (call({}, name="Read"), call({}, name="List")),
        (call({}), call({}, fault="not JSON")),
    ],
)
def test_calls_that_differ_are_not_counted_together(one: ToolCall, other: ToolCall) -> None:
    guard = LoopGuard(feedback_at=2, stop_at=3)
    assert [guard.observe(one), guard.observe(other)] == ["run", "run"]
    assert guard.count == 1


def test_broken_calls_are_counted_like_others() -> None:
    guard = LoopGuard(feedback_at=2, stop_at=3)
    broken = [call({}, fault=f"not JSON at {place}") for place in range(3)]
    assert [guard.observe(item) for item in broken] == ["run", "feedback", "stop"]


@pytest.mark.parametrize("arguments", ["{", "[" * 100_000, '{"n": ' + "9" * 5000 + "}"])
def test_arguments_that_cannot_be_read_are_compared_as_text(arguments: str) -> None:
    guard = LoopGuard(feedback_at=2, stop_at=3)
    verdicts = [guard.observe(ToolCall(id="x", name="T", arguments=arguments)) for _ in range(2)]
    assert verdicts == ["run", "feedback"]


@given(st.lists(st.sampled_from("AB"), max_size=40), st.data())
def test_a_guard_restored_at_any_point_goes_on_as_the_old_one_would(names: list[str], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(names)))
    calls = [call(name=name) for name in names]
    lasting, restored = LoopGuard(2, 4), LoopGuard(2, 4)
    verdicts = [lasting.observe(item) for item in calls]
    restored.observe(call(name="left over"))
    restored.restore(calls[:cut])
    assert [restored.observe(item) for item in calls[cut:]] == verdicts[cut:]
    assert restored.count == lasting.count or not names


@pytest.mark.parametrize(("feedback_at", "stop_at"), [(0, 10), (5, 5), (10, 5)])
def test_thresholds_out_of_order_are_refused(feedback_at: int, stop_at: int) -> None:
    with pytest.raises(ValueError, match="feedback_at"):
        LoopGuard(feedback_at, stop_at)
