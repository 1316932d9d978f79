"""A turn that a new worker goes on with, from what the worker before it had committed."""

from __future__ import annotations

from collections.abc import Callable

from protocol.content import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from protocol.frames import AskGrant, Commit, Finished, GrantAnswer, Resume, Start, ToolCallOpened
from protocol.records import LoopCapRequest, LoopGuard, TextDelta, ToolCallResult
from protocol.tool_names import TOOL_EFFECTS
from tests.workers.core.test_turn import TOOLS, bash, called, in_turn, said, start
from workers.core.effects import CallModel, Effect, RunTool, Send, TakeUp
from workers.core.limits import EXTENSION, CallCap
from workers.core.transcript import Transcript
from workers.core.turn import Turn
from workers.providers.provider import ModelReply, ModelRequest, ProviderError

PROMPT = UserMessage(text="go")


def result(call_id: str = "1", output: str = "ok") -> ToolResult:
    return ToolResult(call_id=call_id, name="Bash", outcome="success", output=output)


def interrupted(call_id: str = "1") -> ToolResult:
    return ToolResult(call_id=call_id, name="Bash", outcome="interrupted", output="it may have run in part")


def asked(*calls: ToolCall) -> AssistantMessage:
    return AssistantMessage(tool_calls=calls)


def delegation(call_id: str = "1") -> ToolCall:
    return ToolCall(id=call_id, name="InvokeAgent", arguments='{"agent_name": "task", "prompt": "look"}')


def resumed(history: tuple[Message, ...], resume: Resume, assignment: Start | None = None) -> tuple[Turn, list[Effect]]:
    turn = Turn(assignment or start(), TOOLS, dict(TOOL_EFFECTS), Transcript(history))
    return turn, turn.resume(resume)


def sent(effects: list[Effect], kind: type) -> list[object]:
    return [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]


def run_on(
    turn: Turn, effects: list[Effect], model: Callable[[ModelRequest], ModelReply | ProviderError]
) -> tuple[list[Effect], list[ModelRequest]]:
    """Answer what the turn asks for until it ends; its tools all succeed."""
    log, requests = list(effects), list[ModelRequest]()
    waiting = list(effects)
    while not turn.ended:
        step: list[Effect] = []
        match waiting.pop(0):
            case Send(AskGrant(grant=grant)):
                step = turn.granted(GrantAnswer(grant=grant, decision="go"))
            case Send(Commit(number=number)):
                step = turn.committed(number)
            case CallModel(request):
                requests.append(request)
                answer = model(request)
                assert isinstance(answer, ModelReply)
                step = turn.replied(answer)
            case RunTool(index, _):
                step = turn.tool_done(index, "success", "ok", 1)
            case _:
                pass
        log += step
        waiting += step
    return log, requests


def test_an_interrupted_call_is_answered_committed_and_not_run() -> None:
    turn, effects = resumed((PROMPT, asked(bash())), Resume(iterations=1, results=(interrupted(),)))
    log, requests = run_on(turn, effects, in_turn())
    assert not [effect for effect in log if isinstance(effect, RunTool)]
    assert requests[0].messages == (PROMPT, asked(bash()), interrupted())
    first = sent(log, Commit)[0]
    assert isinstance(first, Commit)
    assert first.messages == (interrupted(),)


def test_what_was_told_to_the_client_is_not_told_again() -> None:
    _turn, effects = resumed((PROMPT, asked(bash())), Resume(iterations=1, results=(result(),)))
    assert sent(effects, ToolCallOpened) == sent(effects, ToolCallResult) == []


def test_a_sub_agent_that_goes_on_is_taken_up_under_its_request() -> None:
    calls = (bash("a"), delegation("b"))
    turn, effects = resumed(
        (PROMPT, asked(*calls)), Resume(iterations=1, results=(interrupted("a"),), delegations={"b": 7})
    )
    assert effects == [TakeUp(1, calls[1], 7)], "no model call before the sub-agent has ended"
    after = turn.tool_done(1, "success", "found", 5)
    record, commit = sent(after, ToolCallResult)[0], sent(after, Commit)[0]
    assert isinstance(record, ToolCallResult)
    assert isinstance(commit, Commit)
    assert (record.id, record.outcome, record.output) == ("b", "success", "found")
    assert [message.call_id for message in commit.messages if isinstance(message, ToolResult)] == ["a", "b"]


def test_a_turn_whose_results_are_committed_makes_its_next_call() -> None:
    turn, effects = resumed((PROMPT, asked(bash()), result()), Resume(iterations=1))
    log, requests = run_on(turn, effects, in_turn())
    assert requests[0].messages == (PROMPT, asked(bash()), result())
    finished = sent(log, Finished)[0]
    assert isinstance(finished, Finished)
    assert (finished.outcome, finished.response) == ("complete", "Done.")


def test_a_reply_that_was_the_last_one_is_given_again_and_not_asked_for() -> None:
    turn, effects = resumed((PROMPT, AssistantMessage(text="All done.")), Resume(iterations=1))
    assert turn.ended
    assert sent(effects, AskGrant) == []
    # The text that the client has went void with the worker that sent it.
    assert sent(effects, TextDelta) == [TextDelta(text="All done.")]
    assert sent(effects, Finished) == [Finished(outcome="complete", response="All done.")]


def test_a_sub_agent_gives_its_last_reply_again_without_text_for_the_client() -> None:
    history = (PROMPT, AssistantMessage(text="found"))
    _turn, effects = resumed(history, Resume(iterations=1), start(is_main=False))
    assert effects == [Send(Finished(outcome="complete", response="found"))]


def test_the_count_of_model_calls_goes_on() -> None:
    history: tuple[Message, ...] = (PROMPT, asked(bash()), result())
    turn, effects = resumed(history, Resume(iterations=4), start(cap=5))
    log, requests = run_on(turn, effects, in_turn(called(bash("2", "other"))))
    assert len(requests) == 2
    caps = [request.cap for request in sent(log, LoopCapRequest) if isinstance(request, LoopCapRequest)]
    assert caps == [5], "the cap comes after one more call"


def test_a_cap_that_was_extended_is_not_extended_again() -> None:
    turn, effects = resumed((PROMPT, asked(bash()), result()), Resume(iterations=3 + EXTENSION), start(cap=3))
    finished = sent(effects, Finished)[0]
    assert turn.ended
    assert isinstance(finished, Finished)
    assert (finished.outcome, finished.code) == ("limit", "max_iterations")


def test_a_sub_agent_whose_last_call_was_answered_ends_at_its_limit() -> None:
    words = UserMessage(text=CallCap(2, is_main=False).last_words())
    history: tuple[Message, ...] = (PROMPT, asked(bash()), result(), words, AssistantMessage(text="so far"))
    _turn, effects = resumed(history, Resume(iterations=3), start(is_main=False, cap=2))
    finished = sent(effects, Finished)[0]
    assert isinstance(finished, Finished)
    assert (finished.outcome, finished.code, finished.response) == ("limit", "max_iterations", "so far")


def test_a_sub_agent_is_told_once_that_its_next_call_is_the_last() -> None:
    words = UserMessage(text=CallCap(2, is_main=False).last_words())
    history: tuple[Message, ...] = (PROMPT, asked(bash()), result(), words)
    turn, effects = resumed(history, Resume(iterations=2), start(is_main=False, cap=2))
    log, requests = run_on(turn, effects, in_turn(said("so far")))
    assert requests[0].messages == history
    assert requests[0].tools == ()
    finished = sent(log, Finished)[0]
    assert isinstance(finished, Finished)
    assert finished.outcome == "limit"


def test_the_guard_counts_the_calls_of_the_worker_before_it() -> None:
    history: tuple[Message, ...] = (PROMPT,)
    for number in range(9):
        history = (*history, asked(bash(str(number))), result(str(number)))
    turn, effects = resumed(history, Resume(iterations=9))
    log, _requests = run_on(turn, effects, in_turn(called(bash("10"))))
    guards = [record.action for record in sent(log, LoopGuard) if isinstance(record, LoopGuard)]
    assert guards == ["stop"], "what the model was told before is not said again"
    assert not [effect for effect in log if isinstance(effect, RunTool)]


def test_a_guard_does_not_count_the_turn_before() -> None:
    history: tuple[Message, ...] = (PROMPT,)
    for number in range(9):
        history = (*history, asked(bash(str(number))), result(str(number)))
    history = (*history, AssistantMessage(text="done"), UserMessage(text="again"))
    turn, effects = resumed(history, Resume(iterations=0))
    log, _requests = run_on(turn, effects, in_turn(called(bash("10"))))
    assert sent(log, LoopGuard) == []
    assert len([effect for effect in log if isinstance(effect, RunTool)]) == 1
