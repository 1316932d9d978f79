"""The turn, driven by hand and by chance. `Driver` is a shell without IO: it answers the effects of a turn."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.agent_spec import AgentSpec, ModelSettings, Trust
from protocol.content import AssistantMessage, Message, Outcome, Summary, ToolCall, ToolResult, UserMessage
from protocol.frames import (
    AskGrant,
    CallFailed,
    Commit,
    Finished,
    GrantAnswer,
    Start,
    ToolCallOpened,
    UpwardFrame,
)
from protocol.records import Compaction, ContextUsage, LoopCapRequest, LoopGuard, Retry, ToolCallResult
from protocol.tool_names import TOOL_EFFECTS
from protocol.usage import Usage
from workers.core.effects import CallModel, Effect, RunTool, Send, Wait
from workers.core.limits import EXTENSION
from workers.core.transcript import Transcript
from workers.core.turn import Turn
from workers.providers.provider import (
    ContextOverflow,
    FinishReason,
    ModelReply,
    ModelRequest,
    NetworkFailed,
    ProviderError,
    RateLimited,
    Refused,
    ServerFailed,
    StreamFailed,
    ToolSchema,
)

USED = Usage(prompt_tokens=10, completion_tokens=2, api_calls=1)
TOOLS = tuple(ToolSchema(name=name, description="", parameters="{}") for name in TOOL_EFFECTS)

Answer = ModelReply | ProviderError
Model = Callable[[ModelRequest], Answer]


def said(text: str, finish: FinishReason = "stop") -> ModelReply:
    return ModelReply(message=AssistantMessage(text=text), usage=USED, finish=finish)


def called(*calls: ToolCall) -> ModelReply:
    return ModelReply(message=AssistantMessage(tool_calls=calls), usage=USED, finish="tool_calls")


def bash(call_id: str = "1", command: str = "true") -> ToolCall:
    return ToolCall(id=call_id, name="Bash", arguments=json.dumps({"command": command}))


def start(
    *, is_main: bool = True, cap: int = 50, window: int = 100_000, trust: Trust = "auto", max_tokens: int | None = None
) -> Start:
    return Start(
        agent_id="a",
        spec=AgentSpec(name="default", system_prompt="You are tested."),
        model=ModelSettings(
            provider="p", adapter="openai_chat", model="m", context_window=window, max_tokens=max_tokens
        ),
        project_root="/",
        trust=trust,
        is_main=is_main,
        tools=tuple(TOOL_EFFECTS),
        agents={},
        max_iterations=cap,
    )


class Driver:
    """Runs a turn to its end; each thing that happened is in ``log``, what went up to the supervisor in ``sent``."""

    def __init__(self, assignment: Start, model: Model, history: tuple[Message, ...] = ()) -> None:
        self.turn = Turn(assignment, TOOLS, dict(TOOL_EFFECTS), Transcript(history))
        self.model = model
        self.grants: Callable[[AskGrant], GrantAnswer] = lambda ask: GrantAnswer(grant=ask.grant, decision="go")
        self.order: Callable[[int], int] = lambda _waiting: 0
        self.tool: Callable[[ToolCall], tuple[Outcome, str]] = lambda _call: ("success", "ok")
        self.log: list[Effect] = []
        self.sent: list[UpwardFrame] = []
        self.requests: list[ModelRequest] = []
        self.stored = 0

    def run(self, prompt: str = "go") -> Finished:
        waiting: list[Effect] = []
        self._take(self.turn.begin(prompt), waiting)
        while not self.turn.ended:
            assert waiting, "the turn waits for nothing"
            effect = waiting.pop(self.order(len(waiting)))
            self._take(self._answer(effect), waiting)
        finished = [message for message in self.sent if isinstance(message, Finished)]
        assert len(finished) == 1 and self.sent[-1] is finished[0]
        return finished[0]

    def of(self, kind: type[msgspec.Struct]) -> list[msgspec.Struct]:
        return [message for message in self.sent if isinstance(message, kind)]

    def committed(self) -> list[Message]:
        return [message for frame in self.sent if isinstance(frame, Commit) for message in frame.messages]

    def _take(self, effects: list[Effect], waiting: list[Effect]) -> None:
        for effect in effects:
            self.log.append(effect)
            if isinstance(effect, Send):
                self.sent.append(effect.message)
                if isinstance(effect.message, (AskGrant, Commit)):
                    waiting.append(effect)
            else:
                waiting.append(effect)

    def _answer(self, effect: Effect) -> list[Effect]:
        match effect:
            case Send(AskGrant() as ask):
                return self.turn.granted(self.grants(ask))
            case Send(Commit(number=number)):
                self.stored = max(self.stored, number)
                return self.turn.committed(self.stored)
            case CallModel(request):
                self.requests.append(request)
                answer = self.model(request)
                if isinstance(answer, ProviderError):
                    return self.turn.failed(answer)
                return self.turn.replied(answer)
            case Wait():
                return self.turn.waited()
            case RunTool(index, call):
                outcome, output = self.tool(call)
                return self.turn.tool_done(index, outcome, output, 1)
            case _:
                raise AssertionError(effect)


def in_turn(*answers: Answer) -> Model:
    """A model that gives ``answers`` one after the other, and then says that it is done."""
    waiting = list(answers)
    return lambda _request: waiting.pop(0) if waiting else said("Done.")


# -- plain turns ------------------------------------------------------------------------------------------------------


def test_a_reply_of_text_ends_the_turn() -> None:
    driver = Driver(start(), in_turn(said("Hello.")))
    assert driver.run() == Finished(outcome="complete", response="Hello.")
    assert driver.committed() == [UserMessage(text="go"), AssistantMessage(text="Hello.")]


def test_no_tool_runs_before_the_reply_that_asks_for_it_is_stored() -> None:
    driver = Driver(start(), in_turn(called(bash())))
    driver.run()
    stored = 0
    for effect in driver.log:
        if isinstance(effect, Send) and isinstance(effect.message, Commit):
            stored = effect.message.number
        if isinstance(effect, RunTool):
            assert stored == 2, "the prompt is commit 1, the reply is commit 2"
            break
    else:
        raise AssertionError("the tool never ran")


def test_the_results_are_committed_in_call_order_whatever_the_order_they_came_in() -> None:
    driver = Driver(start(), in_turn(called(bash("1", "a"), bash("2", "b"), bash("3", "c"))))
    driver.order = lambda waiting: waiting - 1
    driver.run()
    assert [item.call_id for item in driver.committed() if isinstance(item, ToolResult)] == ["1", "2", "3"]


def test_every_call_of_a_reply_is_opened_before_the_first_result() -> None:
    driver = Driver(start(), in_turn(called(bash("1"), bash("2"))))
    driver.run()
    kinds = [type(message) for message in driver.sent if isinstance(message, (ToolCallOpened, ToolCallResult))]
    assert kinds == [ToolCallOpened, ToolCallOpened, ToolCallResult, ToolCallResult]


def test_an_unusable_call_is_an_error_and_its_sibling_runs() -> None:
    bad = ToolCall(id="bad", name="Bash", fault="the arguments are no JSON")
    driver = Driver(start(), in_turn(called(bad, bash("good"))))
    driver.run()
    ran = [effect.call.id for effect in driver.log if isinstance(effect, RunTool)]
    assert ran == ["good"]
    outcomes = {item.call_id: item.outcome for item in driver.committed() if isinstance(item, ToolResult)}
    assert outcomes == {"bad": "error", "good": "success"}


def test_an_unknown_tool_is_an_error_that_names_the_tools_there_are() -> None:
    driver = Driver(start(), in_turn(called(ToolCall(id="1", name="Fly"))))
    driver.run()
    (result,) = [item for item in driver.committed() if isinstance(item, ToolResult)]
    assert result.outcome == "error" and "Bash" in result.output


def test_a_run_that_only_reads_denies_commands_and_says_so() -> None:
    driver = Driver(start(trust="plan"), in_turn(called(bash(), ToolCall(id="2", name="Read"))))
    driver.run()
    outcomes = {item.call_id: item.outcome for item in driver.committed() if isinstance(item, ToolResult)}
    assert outcomes == {"1": "denied", "2": "success"}


def test_a_reply_cut_at_its_limit_is_complete_with_a_warning() -> None:
    driver = Driver(start(), in_turn(said("half", "length")))
    assert driver.run().outcome == "complete"
    assert "cut off" in str(driver.sent)


def test_reasoning_counts_for_the_next_prompt_only_beside_the_calls_that_it_led_to() -> None:
    thought = Usage(prompt_tokens=5000, completion_tokens=500, thinking_tokens=400, api_calls=1)
    too_much = Usage(prompt_tokens=6000, completion_tokens=10, thinking_tokens=400, api_calls=1)
    for usage, kept in ((thought, 5100), (too_much, 6000)):
        reply = msgspec.structs.replace(said("Done."), usage=usage)
        driver = Driver(start(), in_turn(msgspec.structs.replace(called(bash()), usage=thought), reply))
        driver.run()
        assert [record.used for record in driver.sent if isinstance(record, ContextUsage)] == [5500, kept]


def test_calls_left_open_by_an_earlier_process_are_answered_before_the_new_prompt() -> None:
    history = (UserMessage(text="before"), AssistantMessage(tool_calls=(bash("open"),)))
    driver = Driver(start(), in_turn(), history)
    driver.run("now")
    first = driver.of(Commit)[0]
    assert isinstance(first, Commit)
    assert [type(item) for item in first.messages] == [ToolResult, UserMessage]
    assert first.messages[0].outcome == "interrupted"  # type: ignore[union-attr]  # its type is asserted above


# -- retries ----------------------------------------------------------------------------------------------------------


def test_each_kind_of_failure_is_retried_under_its_name_and_each_try_has_a_grant_of_its_own() -> None:
    errors = [RateLimited("r"), ServerFailed("s", 0.0), StreamFailed("c"), NetworkFailed("n")]
    driver = Driver(start(), in_turn(*errors, said("")))
    assert driver.run().outcome == "complete"
    retries = [record for record in driver.sent if isinstance(record, Retry)]
    assert [record.reason for record in retries] == [
        "rate_limit",
        "server_error",
        "stream_failed",
        "network",
        "empty_response",
    ]
    assert [record.attempt for record in retries] == [1, 2, 3, 4, 5]
    assert [record.delay_ms for record in retries] == [1000, 0, 4000, 8000, 16000]
    grants = [frame.grant for frame in driver.sent if isinstance(frame, AskGrant)]
    assert grants == [1, 2, 3, 4, 5, 6]
    assert [frame.grant for frame in driver.sent if isinstance(frame, CallFailed)] == [1, 2, 3, 4]


def test_after_all_retries_the_turn_ends_with_the_last_failure() -> None:
    driver = Driver(start(), lambda _request: RateLimited("slow down"))
    finished = driver.run()
    assert (finished.outcome, finished.code) == ("error", "rate_limited")
    assert "slow down" in finished.message and "6 times" in finished.message
    assert len(driver.requests) == 6


def test_a_reply_in_between_begins_the_count_of_retries_again() -> None:
    driver = Driver(start(), in_turn(*[ServerFailed("s")] * 5, called(bash()), *[ServerFailed("s")] * 5))
    assert driver.run().outcome == "complete"


def test_a_refused_request_is_sent_once() -> None:
    driver = Driver(start(), in_turn(Refused("no", 400)))
    finished = driver.run()
    assert (finished.outcome, finished.code, len(driver.requests)) == ("error", "refused", 1)


def test_only_a_rate_limit_holds_the_endpoint() -> None:
    driver = Driver(start(), in_turn(RateLimited("r", 7.0), ServerFailed("s", 3.0)))
    driver.run()
    held = [frame.rate_limited_ms for frame in driver.sent if isinstance(frame, CallFailed)]
    assert held == [7000, None]


def test_the_tokens_of_an_empty_reply_are_committed_and_it_is_no_message() -> None:
    driver = Driver(start(), in_turn(said("")))
    driver.run()
    assert sum((frame.usage or Usage()).api_calls for frame in driver.sent if isinstance(frame, Commit)) == 2
    assert AssistantMessage(text="") not in driver.committed()


def test_a_refused_grant_ends_the_turn_as_a_limit() -> None:
    driver = Driver(start(), in_turn())
    driver.grants = lambda ask: GrantAnswer(grant=ask.grant, decision="stop", code="max_turns", message="enough")
    assert driver.run() == Finished(outcome="limit", code="max_turns", message="enough")
    assert driver.requests == []


def test_a_grant_narrows_the_reply() -> None:
    driver = Driver(start(max_tokens=500), in_turn())
    driver.grants = lambda ask: GrantAnswer(grant=ask.grant, decision="go", max_tokens=100)
    driver.run()
    assert driver.requests[0].max_tokens == 100


# -- loop guard and cap -----------------------------------------------------------------------------------------------


def test_the_same_call_ten_times_in_a_row_is_told_once_and_then_stops_the_turn() -> None:
    driver = Driver(start(), lambda _request: called(bash()))
    finished = driver.run()
    assert (finished.outcome, finished.code) == ("error", "loop_guard")
    guards = [record for record in driver.sent if isinstance(record, LoopGuard)]
    assert [record.action for record in guards] == ["feedback", "stop"]
    assert all("Bash" in record.detail for record in guards)
    outputs = [item for item in driver.committed() if isinstance(item, ToolResult)]
    assert ["5th time" in item.output for item in outputs] == [False] * 4 + [True] + [False] * 5
    assert [item.outcome for item in outputs] == ["success"] * 9 + ["denied"]
    assert sum(isinstance(effect, RunTool) for effect in driver.log) == 9


def test_a_reply_with_ten_equal_calls_runs_none_of_them() -> None:
    driver = Driver(start(), in_turn(called(*[bash(str(number)) for number in range(12)])))
    assert driver.run().code == "loop_guard"
    assert not any(isinstance(effect, RunTool) for effect in driver.log)
    results = [item for item in driver.committed() if isinstance(item, ToolResult)]
    assert [item.call_id for item in results] == [str(number) for number in range(12)]


def test_the_cap_is_answered_once_by_more_calls_and_then_ends_the_turn() -> None:
    numbers = iter(range(10_000))
    driver = Driver(start(cap=2), lambda _request: called(bash(command=str(next(numbers)))))
    finished = driver.run()
    assert (finished.outcome, finished.code) == ("limit", "max_iterations")
    caps = [record.cap for record in driver.sent if isinstance(record, LoopCapRequest)]
    assert caps == [2, 2 + EXTENSION]
    assert len(driver.requests) == 2 + EXTENSION


def test_a_sub_agent_at_its_cap_gets_one_last_call_without_tools() -> None:
    def model(request: ModelRequest) -> Answer:
        return called(bash(command=str(len(driver.requests)))) if request.tools else said("My report.")

    driver = Driver(start(is_main=False, cap=3), model)
    finished = driver.run()
    assert (finished.outcome, finished.code, finished.response) == ("limit", "max_iterations", "My report.")
    assert len(driver.requests) == 4


def test_only_the_main_agent_streams() -> None:
    for is_main in (True, False):
        driver = Driver(start(is_main=is_main), in_turn())
        driver.run()
        assert driver.requests[0].streaming is is_main


# -- compaction -------------------------------------------------------------------------------------------------------


def long_history(length: int = 6) -> tuple[Message, ...]:
    return tuple(
        UserMessage(text="word " * 400) if number % 2 == 0 else AssistantMessage(text="word " * 400)
        for number in range(length)
    )


def test_a_full_context_is_summed_up_before_the_call_and_the_summary_takes_its_place() -> None:
    def model(request: ModelRequest) -> Answer:
        return said("<summary>All of it.</summary>") if request.purpose == "summary" else said("Done.")

    driver = Driver(start(window=3000), model, long_history())
    assert driver.run().outcome == "complete"
    steps = [record for record in driver.sent if isinstance(record, Compaction)]
    assert [(step.trigger, step.status) for step in steps] == [("threshold", "started"), ("threshold", "completed")]
    assert (steps[0].context_percent or 0) >= 80
    assert (steps[1].messages_removed or 0) > 0 and (steps[1].summary_tokens or 0) > 0
    assert [request.purpose for request in driver.requests] == ["summary", "reply"]
    assert driver.requests[0].streaming is False and driver.requests[0].tools == ()
    first = driver.requests[1].messages[0]
    assert isinstance(first, Summary) and first.text == "All of it."


def test_a_summary_that_is_none_leaves_the_history_as_it_is() -> None:
    for summary in (called(bash()), said("<summary></summary>"), Refused("no", 400)):
        driver = Driver(start(window=3000), in_turn(summary), long_history())
        assert driver.run().outcome == "complete"
        assert [request.purpose for request in driver.requests] == ["summary", "reply"]
        assert [record.status for record in driver.sent if isinstance(record, Compaction)] == ["started", "failed"]
        assert driver.requests[-1].messages[0] == long_history()[0]


def test_an_overflow_is_answered_by_one_compaction_and_one_more_try() -> None:
    def model(request: ModelRequest) -> Answer:
        if request.purpose == "summary":
            return said("<summary>All of it.</summary>")
        return ContextOverflow("too long")

    driver = Driver(start(), model, long_history())
    finished = driver.run()
    assert (finished.outcome, finished.code) == ("error", "context_overflow")
    assert [request.purpose for request in driver.requests] == ["reply", "summary", "reply"]
    steps = [record for record in driver.sent if isinstance(record, Compaction)]
    assert [(step.trigger, step.status) for step in steps] == [("overflow", "started"), ("overflow", "completed")]


def test_a_short_history_that_fills_the_window_is_skipped_without_a_call() -> None:
    driver = Driver(start(window=1000), in_turn(), (UserMessage(text="word " * 1000),))
    driver.run()
    assert [record.status for record in driver.sent if isinstance(record, Compaction)] == ["started", "skipped"]
    assert [request.purpose for request in driver.requests] == ["reply"]


# -- by chance --------------------------------------------------------------------------------------------------------

errors = st.sampled_from(
    [RateLimited("r"), ServerFailed("s"), StreamFailed("c"), NetworkFailed("n"), Refused("f"), ContextOverflow("o")]
)
some_calls = st.lists(
    st.builds(
        ToolCall,
        id=st.uuids().map(str),
        name=st.sampled_from(["Bash", "Read", "Fly"]),
        arguments=st.sampled_from(["{}", '{"a":1}']),
        fault=st.sampled_from(["", "", "bad"]),
    ),
    min_size=1,
    max_size=4,
)
answers = st.one_of(
    errors,
    st.text(max_size=5).map(said),
    some_calls.map(lambda calls: called(*calls)),
    some_calls.map(lambda calls: called(*calls)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(answers, max_size=20), st.booleans(), st.integers(1, 6), st.sampled_from([900, 100_000]), st.data())
def test_every_turn_ends_once_with_all_its_calls_answered_and_all_its_usage_committed(
    script: list[Answer], is_main: bool, cap: int, window: int, data: st.DataObject
) -> None:
    driver = Driver(start(is_main=is_main, cap=cap, window=window), in_turn(*script))
    driver.order = lambda waiting: data.draw(st.integers(0, waiting - 1))
    counted: list[Usage] = []
    model = driver.model

    def counting(request: ModelRequest) -> Answer:
        answer = model(request)
        if isinstance(answer, ModelReply):
            counted.append(answer.usage)
        return answer

    driver.model = counting
    driver.run()
    opened = Counter(frame.call.id for frame in driver.sent if isinstance(frame, ToolCallOpened))
    closed = Counter(frame.id for frame in driver.sent if isinstance(frame, ToolCallResult))
    assert opened == closed and all(count == 1 for count in opened.values())
    commits = [frame for frame in driver.sent if isinstance(frame, Commit)]
    assert [frame.number for frame in commits] == list(range(1, len(commits) + 1))
    assert sum((frame.usage or Usage() for frame in commits), Usage()) == sum(counted, Usage())
    assert Transcript(driver.committed()).unanswered == ()
    assert len([frame for frame in driver.sent if isinstance(frame, AskGrant)]) >= len(driver.requests)
    assert all(frame.used > 0 and frame.max == window for frame in driver.sent if isinstance(frame, ContextUsage))
