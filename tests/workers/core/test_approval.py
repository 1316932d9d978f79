"""Calls that somebody may allow: they are asked for, and wait; the others of their reply do not."""

from __future__ import annotations

from protocol.agent_spec import Trust
from protocol.content import ToolCall
from protocol.frames import ApprovalRequest, ToolCallOpened
from protocol.records import ToolCallResult
from protocol.tool_names import TOOL_EFFECTS
from workers.core.effects import Effect, RunTool, Send
from workers.core.loop_guard import LoopGuard
from workers.core.tool_round import ToolRound

WRITE = ToolCall(id="w", name="Write", arguments='{"file_path":"a","content":""}')
READ = ToolCall(id="r", name="Read", arguments='{"file_path":"a"}')


def begun(trust: Trust, *calls: ToolCall, guard: LoopGuard | None = None) -> tuple[ToolRound, list[Effect]]:
    tool_round = ToolRound(calls, guard or LoopGuard(), trust, TOOL_EFFECTS)
    return tool_round, tool_round.begin()


def asked(effects: list[Effect]) -> list[ApprovalRequest]:
    return [
        effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, ApprovalRequest)
    ]


def ran(effects: list[Effect]) -> list[str]:
    return [effect.call.id for effect in effects if isinstance(effect, RunTool)]


def test_a_change_is_asked_for_once_it_is_open_while_a_read_runs() -> None:
    tool_round, effects = begun("safe", WRITE, READ)
    (request,) = asked(effects)
    assert request.call_id == "w" and request.denial.startswith("denied: ")
    assert ran(effects) == ["r"]
    opened = [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, ToolCallOpened)]
    assert effects[:2] == opened
    assert not tool_round.is_over


def test_an_allowed_call_runs_and_is_not_run_twice() -> None:
    tool_round, _ = begun("safe", WRITE)
    assert ran(tool_round.answered("w", None)) == ["w"]
    assert tool_round.answered("w", None) == []
    assert not tool_round.is_over


def test_a_denied_call_has_the_denial_as_its_result() -> None:
    tool_round, _ = begun("safe", WRITE)
    (effect,) = tool_round.answered("w", "denied: no")
    assert isinstance(effect, Send) and isinstance(effect.message, ToolCallResult)
    assert (effect.message.outcome, effect.message.output) == ("denied", "denied: no")
    assert tool_round.is_over


def test_an_answer_to_what_was_not_asked_changes_nothing() -> None:
    tool_round, _ = begun("safe", WRITE, READ)
    assert tool_round.answered("r", None) == tool_round.answered("x", "denied: no") == []


def test_mode_plan_asks_nobody() -> None:
    tool_round, effects = begun("plan", WRITE)
    assert asked(effects) == [] and tool_round.is_over


def test_mode_auto_asks_only_for_what_it_would_deny() -> None:
    _, effects = begun("auto", WRITE, ToolCall(id="b", name="Bash", arguments='{"command":"rm -rf /etc"}'))
    assert [request.call_id for request in asked(effects)] == ["b"]
    assert ran(effects) == ["w"]


def test_nobody_is_asked_for_a_call_that_the_loop_guard_stops() -> None:
    guard = LoopGuard()
    for _ in range(9):
        guard.observe(WRITE)
    tool_round, effects = begun("safe", WRITE, guard=guard)
    assert tool_round.stopped_by and asked(effects) == [] and tool_round.is_over
    assert tool_round.answered("w", None) == []
