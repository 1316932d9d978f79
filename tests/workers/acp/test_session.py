"""The machine of a turn by itself: relayed questions, and all orders of what may happen to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workers.acp.control import AcpControl
from workers.acp.effects import (
    Answered,
    Cancelled,
    Effect,
    Ended,
    Failed,
    PermissionAsked,
    PermissionWithdrawn,
    PromptEnded,
    Send,
    Stopped,
    TimedOut,
    Updated,
)
from workers.acp.jsonrpc import ErrorResponse, Message, Notification, Request, RequestId, Response
from workers.acp.permission import PermissionOption
from workers.acp.session import Session, SessionSettings

SESSION = "s"
OPTIONS = [{"optionId": "a", "kind": "allow_once", "name": "Yes"}, {"optionId": "b", "kind": "reject_once"}]


def sent(effects: list[Effect]) -> list[dict[str, object]]:
    return [json.loads(effect.line) for effect in effects if isinstance(effect, Send)]


def with_open_prompt(control: AcpControl | None = None, *, relays_permission: bool = True) -> Session:
    session = Session(
        SessionSettings(prompt="p", cwd="/", relays_permission=relays_permission), control or AcpControl()
    )
    session.begin()
    session.receive(Response(1, {"protocolVersion": 1}), 0)
    session.receive(Response(2, {"sessionId": SESSION}), 0)
    return session


def question(asked: RequestId = "q") -> Request:
    params: dict[str, object] = {"sessionId": SESSION, "toolCall": {"toolCallId": "c"}, "options": OPTIONS}
    return Request(asked, "session/request_permission", params)


def outcome_of(effects: list[Effect]) -> list[tuple[object, object]]:
    return [(message["id"], cast("dict[str, object]", message["result"])["outcome"]) for message in sent(effects)]


def test_a_relayed_question_waits_for_its_answer_and_takes_only_what_was_offered() -> None:
    session = with_open_prompt()
    (asked,) = session.receive(question(0), 0)
    offered = (PermissionOption("a", "allow_once", "Yes"), PermissionOption("b", "reject_once", "b"))
    assert asked == PermissionAsked(1, offered, {"toolCallId": "c"})
    assert outcome_of(session.answer_permission(1, "b")) == [(0, {"outcome": "selected", "optionId": "b"})]
    assert session.answer_permission(1, "a") == []
    (asked,) = session.receive(question(0), 0)  # the same id again
    assert outcome_of(session.answer_permission(2, "never offered")) == [(0, {"outcome": "cancelled"})]


def test_open_questions_are_answered_as_cancelled_behind_the_cancel() -> None:
    session = with_open_prompt()
    session.receive(question("one"), 0)
    session.receive(question("two"), 0)
    effects = session.cancel(1)
    assert [message.get("method", message.get("id")) for message in sent(effects)] == ["session/cancel", "one", "two"]
    assert outcome_of(effects[1:]) == [("one", {"outcome": "cancelled"}), ("two", {"outcome": "cancelled"})]
    assert [effect.key for effect in effects if isinstance(effect, PermissionWithdrawn)] == [1, 2]
    assert session.answer_permission(1, "a") == []


def test_a_question_that_the_end_of_its_prompt_leaves_open_is_withdrawn() -> None:
    session = with_open_prompt()
    session.receive(question(), 0)
    effects = session.receive(Response(3, {"stopReason": "end_turn", "usage": {}}), 0)
    assert [type(effect) for effect in effects] == [Send, PermissionWithdrawn, PromptEnded, Ended]
    assert effects[-1] == Ended(Answered("end_turn"))


def test_the_earlier_deadline_decides_how_the_turn_ends() -> None:
    for now, ending in ((3.4, []), (3.5, [Ended(Cancelled())]), (9.0, [Ended(Cancelled())])):
        control = AcpControl()
        session = Session(SessionSettings(prompt="p", cwd="/", deadline=4.0), control)
        session.begin()
        session.receive(Response(1, {"protocolVersion": 1}), 0)
        session.receive(Response(2, {"sessionId": SESSION}), 0)
        control.interrupt()
        session.interrupted(3.0)
        assert session.next_deadline == 3.5
        assert session.tick(now) == ending


def test_nothing_counts_before_the_process_was_started() -> None:
    session = Session(SessionSettings(prompt="p", cwd="/"), AcpControl())
    assert session.receive(Response(0, {}), 0) == []
    assert session.cancel(0) == [Ended(Cancelled())]
    assert session.begin() == []


class SessionMachine(RuleBasedStateMachine):
    """An agent that sends anything at any time, a person who does, and a process that ends when it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.control = AcpControl()
        settings = SessionSettings(prompt="0", cwd="/", deadline=1000.0, relays_permission=True)
        self.session = Session(settings, self.control)
        self.now = 0.0
        self.requests: list[tuple[object, str]] = []  # ours, in order: id and method
        self.answered: set[object] = set()  # ids that we have answered a request of ours under
        self.asked: list[int] = []  # keys of open questions
        self.unanswered = 0  # requests of the agent's
        self.cancels = 0  # of the open prompt
        self.cancelled_at: float | None = None
        self.was_cancelled = False
        self.text = ""
        self.steered = 0
        self.ended: list[Ended] = []
        self.take(self.session.begin())

    # -- what comes out -----------------------------------------------------------------------------------------------

    def take(self, effects: list[Effect]) -> None:
        assert not (effects and self.ended), "an effect after the end"
        for effect in effects:
            assert not self.ended, "an effect after the end"
            match effect:
                case Send():
                    self.take_line(json.loads(effect.line), effect.is_request)
                case PermissionAsked(key):
                    self.asked.append(key)
                case PermissionWithdrawn(key):
                    self.asked.remove(key)
                case Ended():
                    self.ended.append(effect)
                case Updated():
                    assert self.open_method() == "session/prompt"
                case PromptEnded():
                    assert self.requests[-1][1] == "session/prompt"

    def take_line(self, message: dict[str, object], is_request: bool) -> None:
        assert is_request == ("method" in message and "id" in message)
        if is_request:
            assert self.open_method() is None, "two requests at once"
            self.requests.append((message["id"], str(message["method"])))
            self.cancels = 0
            self.cancelled_at = None
        elif message.get("method") == "session/cancel":
            assert self.open_method() == "session/prompt"
            self.cancels += 1
            self.cancelled_at = self.now
            assert self.cancels == 1, "told twice"
        else:
            self.unanswered -= 1
            outcome = cast("dict[str, dict[str, object]]", message.get("result", {})).get("outcome")
            assert outcome is None or outcome.get("optionId", "a") in ("a", "b")

    def open_method(self) -> str | None:
        if not self.requests or self.requests[-1][0] in self.answered:
            return None
        return self.requests[-1][1]

    def receive(self, message: Message) -> None:
        if isinstance(message, Request) and not self.ended:
            self.unanswered += 1
        self.take(self.session.receive(message, self.now))

    # -- what goes in -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.open_method() is not None)
    @rule(
        stop_reason=st.sampled_from(["end_turn", "cancelled", "max_tokens", "refusal", "odd", None]),
        fails=st.integers(0, 9),
    )
    def answer(self, stop_reason: str | None, fails: int) -> None:
        number, method = self.requests[-1]
        self.answered.add(number)
        results: dict[str, dict[str, object]] = {
            "initialize": {"protocolVersion": 1},
            "session/new": {"sessionId": SESSION},
            "session/prompt": {"stopReason": stop_reason},
        }
        message: Message = Response(cast("RequestId", number), results[method])
        if fails == 0:
            message = ErrorResponse(cast("RequestId", number), -32603, "no")
        self.receive(message)

    @rule(wrong=st.sampled_from([0, "1", "2", "3", None, 99, -1]))
    def answer_something_else(self, wrong: RequestId) -> None:
        self.receive(Response(wrong, {"stopReason": "end_turn", "sessionId": "x", "protocolVersion": 7}))
        self.receive(ErrorResponse(wrong, -32603, "no"))

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def answer_again(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(cast("set[int]", self.answered))))
        self.receive(Response(number, {"stopReason": "end_turn"}))

    @rule(session=st.sampled_from([SESSION, "other", None]), kind=st.sampled_from(["agent_message_chunk", "odd"]))
    def update(self, session: str | None, kind: str) -> None:
        update = {"sessionUpdate": kind, "content": {"type": "text", "text": "x"}}
        message = Notification("session/update", {"sessionId": session, "update": update})
        counts = self.open_method() == "session/prompt" and session == SESSION and not self.ended
        assert self.session.is_activity(message) == counts
        if counts and kind == "agent_message_chunk":
            self.text += "x"
        self.receive(message)

    @rule(asked=st.sampled_from([0, "q", None]), method=st.sampled_from(["session/request_permission", "fs/x", "odd"]))
    def ask(self, asked: RequestId, method: str) -> None:
        self.receive(Request(asked, method, {"options": OPTIONS}))

    @precondition(lambda self: self.asked)
    @rule(option=st.sampled_from(["a", "b", "never", None]))
    def decide(self, option: str | None) -> None:
        self.take(self.session.answer_permission(self.asked.pop(0), option))

    @rule()
    def steer(self) -> None:
        self.steered += 1
        self.control.steer(str(self.steered))

    @rule(notices=st.booleans())
    def interrupt(self, notices: bool) -> None:
        self.control.interrupt()
        if notices:
            self.take(self.session.interrupted(self.now))

    @rule()
    def cancel(self) -> None:
        self.was_cancelled = self.was_cancelled or not self.ended
        self.take(self.session.cancel(self.now))

    @rule(seconds=st.sampled_from([0.1, 0.25, 0.5, 2.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.session.tick(self.now))

    @rule(what=st.sampled_from(["noise", "output ends", "input lost", "exits", "garbage"]), is_likely=st.booleans())
    def process(self, what: str, is_likely: bool) -> None:
        if what != "noise" and not is_likely:
            return
        actions: dict[str, Callable[[], list[Effect]]] = {
            "noise": self.session.noise,
            "output ends": lambda: self.session.output_ended(self.now),
            "input lost": lambda: self.session.input_lost(self.now),
            "exits": lambda: self.session.process_exited(0, self.now),
            "garbage": lambda: self.session.unreadable("garbage"),
        }
        self.take(actions[what]())

    # -- what holds at all times --------------------------------------------------------------------------------------

    @invariant()
    def the_text_is_what_was_said_in_open_prompts(self) -> None:
        assert self.session.text == self.text

    @invariant()
    def it_ends_once_and_a_cancel_decides_how(self) -> None:
        assert len(self.ended) == int(self.session.has_ended) <= 1
        if self.ended and self.was_cancelled:
            assert self.ended == [Ended(Cancelled())]
        if self.ended and isinstance(self.ended[0].ending, Answered | Stopped):
            assert self.open_method() is None
            assert self.requests[-1][1] == "session/prompt"

    @invariant()
    def the_agent_is_never_left_without_a_question_of_ours_or_an_end(self) -> None:
        assert self.ended or self.open_method() is not None

    @invariant()
    def half_a_second_after_a_cancel_it_is_over(self) -> None:
        deadline = self.session.next_deadline
        if self.cancelled_at is not None and not self.ended and self.open_method() == "session/prompt":
            assert deadline is not None
            assert deadline <= self.cancelled_at + 0.5
        if not self.ended:
            assert deadline is not None
            assert deadline > self.now or self.now == 0
        else:
            assert deadline is None

    @invariant()
    def every_request_of_the_agent_is_answered_or_with_the_person(self) -> None:
        if not self.ended:
            assert self.unanswered == len(self.asked)


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(
    max_examples=80, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)


def test_a_turn_that_only_waits_ends_at_its_deadline_or_for_its_fault() -> None:
    session = Session(SessionSettings(prompt="p", cwd="/", deadline=1.0), AcpControl())
    session.begin()
    assert session.tick(0.9) == []
    assert session.tick(1.0) == [Ended(TimedOut())]
    session = Session(SessionSettings(prompt="p", cwd="/"), AcpControl())
    session.begin()
    assert session.next_deadline is None
    assert session.unreadable("why") == [Ended(Failed("why"))]


def test_a_cancel_gives_its_half_second_although_the_time_would_run_out_within_it() -> None:
    session = Session(SessionSettings(prompt="p", cwd="/", deadline=1.0), AcpControl())
    session.begin()
    session.receive(Response(1, {"protocolVersion": 1}), 0)
    session.receive(Response(2, {"sessionId": SESSION}), 0)
    session.cancel(0.75)
    assert session.next_deadline == 1.25


def test_a_fault_that_is_reported_again_gives_no_more_time() -> None:
    session = with_open_prompt()
    session.input_lost(1.0)
    session.input_lost(1.5)
    assert session.next_deadline == 2.0
    session.process_exited(3, 1.75)
    session.process_exited(3, 2.0)
    assert session.next_deadline == 2.25
