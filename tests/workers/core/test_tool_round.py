"""The calls of one reply, without the turn around them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from protocol.agent_spec import Trust
from protocol.content import Outcome, ToolCall, ToolResult
from protocol.frames import ApprovalRequest, ToolCallOpened
from protocol.records import LoopGuard as LoopGuardRecord
from protocol.records import ToolCallResult
from protocol.tool_names import TOOL_EFFECTS
from workers.core.effects import Effect, RunTool, Send
from workers.core.loop_guard import LoopGuard
from workers.core.tool_round import ToolRound


def call(call_id: str, name: str = "Bash", command: str = "", fault: str = "") -> ToolCall:
    arguments = json.dumps({"command": command or call_id})
    return ToolCall(id=call_id, name=name, arguments=arguments, fault=fault)


def begun(
    *calls: ToolCall, trust: Trust = "auto", guard: LoopGuard | None = None
) -> tuple[ToolRound, list[Effect], list[int]]:
    """A round that has begun, its effects, and the positions of the calls that run."""
    tool_round = ToolRound(calls, guard or LoopGuard(), trust, TOOL_EFFECTS, "/project")
    effects = tool_round.begin()
    return tool_round, effects, [effect.index for effect in effects if isinstance(effect, RunTool)]


def records_of(effects: list[Effect]) -> list[object]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def outcomes_of(tool_round: ToolRound) -> list[Outcome]:
    return [result.outcome for result in tool_round.results]


def test_all_calls_are_opened_in_call_order_before_the_first_runs() -> None:
    _, effects, running = begun(call("a"), call("b", "Read"), call("c", "Fly"))
    opened = [record.call.id for record in records_of(effects[:3]) if isinstance(record, ToolCallOpened)]
    assert opened == ["a", "b", "c"]
    assert running == [0, 1]


def test_a_call_that_may_not_run_is_answered_at_once_and_the_others_run() -> None:
    calls = call("a", fault="no JSON"), call("b", "Fly"), call("c", "Read"), call("d"), call("e", "InvokeAgent")
    tool_round, effects, running = begun(*calls, trust="plan")
    answered = [record for record in records_of(effects) if isinstance(record, ToolCallResult)]
    assert [(record.id, record.outcome) for record in answered] == [("a", "error"), ("b", "error"), ("d", "denied")]
    assert "no JSON" in answered[0].output
    assert "'Fly'" in answered[1].output and "InvokeAgent" in answered[1].output
    assert "trust mode plan" in answered[2].output
    assert running == [2, 4]
    assert not tool_round.is_over


def test_a_command_that_is_advised_against_does_not_run_unasked_and_the_others_do() -> None:
    calls = call("a", command="sudo id"), call("b", command="make"), call("c", command="cp a /project2/b")
    tool_round, effects, running = begun(*calls)
    asked = {record.call_id: record.denial for record in records_of(effects) if isinstance(record, ApprovalRequest)}
    assert list(asked) == ["a", "c"]
    assert "sudo" in asked["a"]
    assert "/project2/b" in asked["c"]
    assert running == [1]
    assert not tool_round.is_over


def test_a_round_of_refusals_is_over_as_it_begins() -> None:
    tool_round, _, running = begun(call("a", "Fly"))
    assert (tool_round.is_over, running) == (True, [])


def test_a_result_goes_out_as_it_comes_and_carries_its_time() -> None:
    tool_round, _, _ = begun(call("a"), call("b"))
    (record,) = records_of(tool_round.done(1, "error", "no such file", 12))
    assert record == ToolCallResult(id="b", name="Bash", outcome="error", output="no such file", elapsed_ms=12)
    assert not tool_round.is_over


@given(st.permutations(range(4)))
def test_the_results_are_in_call_order_whatever_the_order_they_came_in(order: list[int]) -> None:
    tool_round, _, _ = begun(*[call(str(index)) for index in range(4)])
    for number, index in enumerate(order, 1):
        tool_round.done(index, "success", str(index), 0)
        assert tool_round.is_over == (number == 4)
    assert tool_round.results == tuple(
        ToolResult(call_id=str(index), name="Bash", outcome="success", output=str(index)) for index in range(4)
    )


def test_calls_that_share_an_id_are_kept_apart() -> None:
    tool_round, _, running = begun(call("x", command="one"), call("x", command="two"))
    assert running == [0, 1]
    tool_round.done(1, "success", "two", 0)
    tool_round.done(0, "error", "one", 0)
    assert [(result.call_id, result.output) for result in tool_round.results] == [("x", "one"), ("x", "two")]


def test_the_fifth_call_in_a_row_is_noted_before_its_start_and_in_its_result() -> None:
    tool_round, effects, running = begun(*[call(str(index), command="same") for index in range(5)])
    kinds = [type(record) for record in records_of(effects)]
    assert kinds == [ToolCallOpened] * 4 + [LoopGuardRecord, ToolCallOpened]
    assert running == [0, 1, 2, 3, 4]
    for index in running:
        tool_round.done(index, "success", "ok", 0)
    outputs = [result.output for result in tool_round.results]
    assert outputs[:4] == ["ok"] * 4
    assert outputs[4].startswith("ok\n") and "5th time" in outputs[4]
    assert tool_round.stopped_by == ""


def test_at_the_stop_nothing_of_the_reply_runs_and_every_call_has_its_result() -> None:
    guard = LoopGuard(feedback_at=1, stop_at=2)
    calls = call("other"), call("a", command="same"), call("b", command="same"), call("after"), call("c", "Fly")
    tool_round, effects, running = begun(*calls, guard=guard)
    assert running == []
    assert tool_round.is_over
    assert "Bash was called 2 times in a row" in tool_round.stopped_by
    assert outcomes_of(tool_round) == ["denied"] * 4 + ["error"]
    records = records_of(effects)
    assert [record.call.id for record in records if isinstance(record, ToolCallOpened)] == [each.id for each in calls]
    assert [record.action for record in records if isinstance(record, LoopGuardRecord)].count("stop") == 1
