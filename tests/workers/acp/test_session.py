"""The machine of a turn by itself: relayed questions, sessions of before, deadlines."""

from __future__ import annotations

import json
from typing import cast

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
    SessionLost,
    SessionOpened,
    TimedOut,
)
from workers.acp.jsonrpc import ErrorResponse, Notification, Request, RequestId, Response
from workers.acp.opening import EarlierSession
from workers.acp.permission import PermissionOption
from workers.acp.session import Session, SessionSettings

SESSION = "s"
EARLIER = EarlierSession(session_id="earlier", prompt="later")
CAPABILITIES: dict[str, object] = {
    "both": {"loadSession": True, "sessionCapabilities": {"resume": {}}},
    "session/resume": {"sessionCapabilities": {"resume": {}}},
    "session/load": {"loadSession": True},
    "session/new": {"loadSession": 1, "sessionCapabilities": {"resume": None}},
}
"""What an agent announces, by the request with which it goes on, or is begun anew."""
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


# -- a session of before ----------------------------------------------------------------------------------------------


def going_on(way: str, control: AcpControl | None = None) -> tuple[Session, dict[str, object]]:
    """A session whose agent has just said hello, and what it was asked for then."""
    session = Session(SessionSettings(prompt="new", cwd="/", earlier=EARLIER), control or AcpControl())
    session.begin()
    greeting = {"protocolVersion": 1, "agentCapabilities": CAPABILITIES[way]}
    (asked,) = sent(session.receive(Response(1, greeting), 0))
    return session, asked


def chunk(text: str, session: str = "earlier", kind: str = "agent_message_chunk") -> Notification:
    update = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
    return Notification("session/update", {"sessionId": session, "update": update})


def prompted(effects: list[Effect]) -> tuple[object, object]:
    """The session and the text of the one prompt that goes out."""
    (message,) = sent(effects)
    assert message["method"] == "session/prompt"
    params = cast("dict[str, object]", message["params"])
    (block,) = cast("list[dict[str, object]]", params["prompt"])
    return params["sessionId"], block["text"]


def test_a_session_is_resumed_where_the_agent_announces_it_and_prompted_at_once() -> None:
    session, asked = going_on("both")
    assert asked["method"] == "session/resume"
    assert asked["params"] == {"sessionId": "earlier", "cwd": "/", "mcpServers": []}
    opened, *rest = session.receive(Response(2, None), 0)
    assert opened == SessionOpened("earlier", goes_on=True, can_go_on=True)
    assert prompted(rest) == ("earlier", "later")


def test_what_a_loaded_session_replays_is_neither_text_nor_told_nor_activity() -> None:
    session, asked = going_on("session/load")
    assert asked["method"] == "session/load"
    assert not session.is_activity(chunk("old"))
    assert session.receive(chunk("old"), 1.0) == []
    assert session.receive(Response(2, None), 2.0) == [SessionOpened("earlier", goes_on=True, can_go_on=True)]
    assert session.receive(chunk("older"), 2.125) == []
    assert session.next_deadline == 2.375, "some agents answer before they have replayed all of it"
    assert session.receive(Response(2, {"stopReason": "end_turn"}), 2.125) == [], "a second answer"
    assert session.tick(2.25) == []
    assert prompted(session.tick(2.375)) == ("earlier", "later")
    assert session.text == ""
    session.receive(chunk("new"), 3.0)
    assert session.text == "new"


def test_a_replay_without_an_end_is_not_waited_for_longer_than_five_seconds() -> None:
    session, _ = going_on("session/load")
    session.receive(Response(2, {}), 0)
    for eighth in range(1, 40):
        assert session.receive(chunk("old"), eighth / 8) == []
    assert session.next_deadline == 5.0
    assert prompted(session.tick(5.0)) == ("earlier", "later")


def test_an_interrupt_in_a_replay_waits_for_the_prompt_and_a_cancel_does_not() -> None:
    control = AcpControl()
    session, _ = going_on("session/load", control)
    session.receive(Response(2, {}), 0)
    control.interrupt()
    assert session.interrupted(0.1) == []
    assert [message["method"] for message in sent(session.tick(0.25))] == ["session/prompt", "session/cancel"]
    session, _ = going_on("session/load")
    session.receive(Response(2, {}), 0)
    assert session.cancel(0.1) == [Ended(Cancelled())]
    assert session.tick(0.25) == []


def test_a_session_that_is_gone_is_begun_anew() -> None:
    for way in ("session/resume", "session/load"):
        session, _ = going_on(way)
        lost, *rest = session.receive(ErrorResponse(2, -32002, "no such session"), 0)
        assert lost == SessionLost(f"the agent answered {way} with an error: no such session (-32002)")
        (asked,) = sent(rest)
        assert (asked["method"], asked["params"]) == ("session/new", {"cwd": "/", "mcpServers": []})
        opened, *rest = session.receive(Response(3, {"sessionId": "next"}), 0)
        assert opened == SessionOpened("next", goes_on=False, can_go_on=True)
        assert prompted(rest) == ("next", "new")


def test_a_session_that_can_not_be_resumed_is_loaded() -> None:
    """There are agents that announce what they do not serve."""
    session, _ = going_on("both")
    (asked,) = sent(session.receive(ErrorResponse(2, -32601, "Method not found"), 0))
    assert asked["method"] == "session/load"
    assert session.receive(Response(3, {}), 0) == [SessionOpened("earlier", goes_on=True, can_go_on=True)]
    session, _ = going_on("both")
    session.receive(ErrorResponse(2, -32601, "Method not found"), 0)
    lost, *_ = session.receive(ErrorResponse(3, -32002, "no such session"), 0)
    assert lost == SessionLost("the agent answered session/load with an error: no such session (-32002)")


def test_an_agent_that_announces_nothing_begins_anew_without_a_word() -> None:
    session, asked = going_on("session/new")
    assert asked["method"] == "session/new"
    opened, *rest = session.receive(Response(2, {"sessionId": "next"}), 0)
    assert opened == SessionOpened("next", goes_on=False, can_go_on=False)
    assert prompted(rest) == ("next", "new")


def test_a_login_that_is_missing_is_not_taken_for_a_session_that_is_gone() -> None:
    session, _ = going_on("session/resume")
    (ended,) = session.receive(ErrorResponse(2, -32000, "Authentication required"), 0)
    assert isinstance(ended, Ended) and isinstance(ended.ending, Failed) and "login" in ended.ending.message


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
