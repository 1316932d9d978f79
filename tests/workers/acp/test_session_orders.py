"""The machine of a turn in all orders of what may happen to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.workers.acp.test_session import CAPABILITIES, EARLIER, OPTIONS, SESSION
from workers.acp.control import AcpControl
from workers.acp.effects import (
    Answered,
    Cancelled,
    Effect,
    Ended,
    PermissionAsked,
    PermissionWithdrawn,
    PromptEnded,
    Send,
    SessionLost,
    SessionOpened,
    Stopped,
    Updated,
)
from workers.acp.jsonrpc import ErrorResponse, Message, Notification, Request, RequestId, Response
from workers.acp.session import Session, SessionSettings


class WatchedSession(RuleBasedStateMachine):
    """What comes out of a turn's machine, held to the rules."""

    def __init__(self) -> None:
        super().__init__()
        self.control = AcpControl()
        self.session: Session
        self.announced = ""
        self.ways: list[str] = []
        self.has_earlier = False
        self.now: float = 0.0
        self.requests: list[tuple[object, str]] = []  # ours, in order: id and method
        self.answered: set[object] = set()  # ids that we have answered a request of ours under
        self.asked: list[int] = []  # keys of open questions
        self.unanswered = 0  # requests of the agent's
        self.cancels = 0  # of the open prompt
        self.cancelled_at: float | None = None
        self.was_cancelled: bool = False
        self.text: str = ""
        self.steered: int = 0
        self.ended: list[Ended] = []
        self.opened: SessionOpened | None = None
        self.is_replaying = False

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
                    self.is_replaying = False
                case SessionLost():
                    assert self.has_earlier
                    assert self.ways == ["session/new"]
                    assert self.requests[-1][1] in ("session/resume", "session/load")
                case SessionOpened():
                    assert self.opened is None
                    self.opened = effect
                    assert effect.goes_on == (self.requests[-1][1] != "session/new")
                    self.is_replaying = self.requests[-1][1] == "session/load"
                case Updated():
                    assert self.open_method() == "session/prompt"
                case PromptEnded():
                    assert self.requests[-1][1] == "session/prompt"

    def take_line(self, message: dict[str, object], is_request: bool) -> None:
        assert is_request == ("method" in message and "id" in message)
        if is_request:
            assert self.open_method() is None, "two requests at once"
            self.requests.append((message["id"], str(message["method"])))
            self.take_request(str(message["method"]), cast("dict[str, object]", message["params"]))
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

    def take_request(self, method: str, params: dict[str, object]) -> None:
        if method == "session/prompt":
            assert self.opened is not None
            assert params["sessionId"] == self.opened.session_id
            if self.requests[-2][1] != "session/prompt":
                (block,) = cast("list[dict[str, object]]", params["prompt"])
                assert block["text"] == ("later" if self.opened.goes_on else "0")
            self.is_replaying = False
        elif method != "initialize":
            assert method == self.ways.pop(0)

    @property
    def session_id(self) -> str:
        return SESSION if self.opened is None else self.opened.session_id

    def open_method(self) -> str | None:
        if not self.requests or self.requests[-1][0] in self.answered:
            return None
        return self.requests[-1][1]

    def receive(self, message: Message) -> None:
        if isinstance(message, Request) and not self.ended:
            self.unanswered += 1
        self.take(self.session.receive(message, self.now))


class SessionMachine(WatchedSession):
    """An agent that sends anything at any time, a person who does, and a process that ends when it likes."""

    @initialize(announced=st.sampled_from(list(CAPABILITIES)), has_earlier=st.booleans())
    def begin(self, announced: str, has_earlier: bool) -> None:
        self.announced = announced
        self.has_earlier = has_earlier
        all_ways = {"both": ["session/resume", "session/load"], "session/new": []}
        self.ways = [*(all_ways.get(announced, [announced]) if has_earlier else []), "session/new"]
        earlier = EARLIER if has_earlier else None
        settings = SessionSettings(prompt="0", cwd="/", deadline=1000.0, relays_permission=True, earlier=earlier)
        self.session = Session(settings, self.control)
        self.take(self.session.begin())

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
            "initialize": {"protocolVersion": 1, "agentCapabilities": CAPABILITIES[self.announced]},
            "session/new": {"sessionId": SESSION},
            "session/resume": {},
            "session/load": {},
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

    @rule(session=st.sampled_from([SESSION, "earlier", None]), kind=st.sampled_from(["agent_message_chunk", "odd"]))
    def update(self, session: str | None, kind: str) -> None:
        update = {"sessionUpdate": kind, "content": {"type": "text", "text": "x"}}
        message = Notification("session/update", {"sessionId": session, "update": update})
        counts = self.open_method() == "session/prompt" and session == self.session_id and not self.ended
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
        assert self.ended or self.is_replaying or self.open_method() is not None

    @invariant()
    def half_a_second_after_a_cancel_it_is_over(self) -> None:
        deadline = self.session.next_deadline
        if self.cancelled_at is not None and not self.ended and self.open_method() == "session/prompt":
            assert deadline is not None
            assert deadline <= self.cancelled_at + 0.5
        if self.is_replaying:
            assert deadline is not None
            assert deadline <= self.now + 0.25
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
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
