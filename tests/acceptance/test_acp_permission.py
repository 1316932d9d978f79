"""``corral acp`` asks the person at the client, and works in the mode that was chosen there."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.stubs.acp_client import Json, acp_client, allow_once, opened, second_shell
from tests.stubs.corral_run import Place
from tests.stubs.model_server import ModelServer, ReceivedRequest, scripted
from tests.stubs.replies import Reply, delegations, plain_calls, plain_text, text, tool_call, tool_calls

CANCEL_SECONDS = 2.0


def asking(place: Place, choice: str | None, count: int = 1) -> tuple[list[Json], list[Json], str]:
    """A turn in mode safe with ``count`` replies that write a file: requests, updates and the model's last results."""
    asked: list[Json] = []

    def answer(request: Json) -> Json:
        asked.append(request["params"])
        outcome = {"outcome": "cancelled"} if choice is None else {"outcome": "selected", "optionId": choice}
        return {"outcome": outcome}

    calls = [tool_call(f"c{n}", "Write", {"file_path": f"{n}.txt", "content": f"{n}\n"}) for n in range(count)]
    with (
        ModelServer(scripted([*calls, text("Done.")])) as server,
        acp_client(place, server, "--trust", "safe") as client,
    ):
        client.answer = answer
        session = opened(client, place)
        assert client.turn(session) == "end_turn"
        return asked, client.updates(), server.chats[-1].results[-1]


def test_in_mode_safe_a_change_waits_for_the_persons_yes(place: Place) -> None:
    asked, updates, result = asking(place, "allow_once", count=2)
    assert (place.project / "0.txt").read_text() == "0\n" and (place.project / "1.txt").exists()
    assert len(asked) == 2 and "Created" in result
    call = next(update for update in updates if update["sessionUpdate"] == "tool_call")
    assert asked[0]["toolCall"]["toolCallId"] == call["toolCallId"]
    assert asked[0]["toolCall"]["content"] == call["content"]
    assert {option["kind"] for option in asked[0]["options"]} == {"allow_once", "allow_always", "reject_once"}


def test_what_is_always_allowed_is_asked_once(place: Place) -> None:
    asked, _, _ = asking(place, "allow_always", count=3)
    assert len(asked) == 1
    assert all((place.project / f"{n}.txt").exists() for n in range(3))


@pytest.mark.parametrize("choice", ["reject_once", "something-else", None])
def test_anything_but_a_yes_denies_the_call(place: Place, choice: str | None) -> None:
    _, updates, result = asking(place, choice)
    assert not (place.project / "0.txt").exists()
    assert result.startswith("denied: ")
    ends = [update for update in updates if update["sessionUpdate"] == "tool_call_update"]
    assert [end["status"] for end in ends] == ["failed"]


def test_a_turn_can_be_cancelled_while_the_person_is_asked(place: Place) -> None:
    call = tool_call("1", "Bash", {"command": "touch ran"})
    with (
        ModelServer(scripted([call])) as server,
        acp_client(place, server, "--trust", "safe") as client,
    ):
        client.answer = lambda _request: None
        session = opened(client, place)
        turn = client.prompt(session)
        asked = client.wait_for(lambda message: message.get("method") == "session/request_permission")
        client.notify("session/cancel", sessionId=session)
        assert client.response(turn, CANCEL_SECONDS)["result"] == {"stopReason": "cancelled"}
        client.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": {"outcome": "cancelled"}}})
        assert client.turn(session) == "end_turn"
    assert not (place.project / "ran").exists()


def test_an_agent_that_dies_while_the_person_thinks_is_answered_only_once(place: Place) -> None:
    """The worker that asked is gone: its call is interrupted, and a yes that comes late runs nothing."""
    call = tool_call("1", "Bash", {"command": "touch ran"})
    with (
        ModelServer(scripted([call, text("Gone on.")])) as server,
        acp_client(place, server, "--trust", "safe") as client,
    ):
        client.answer = lambda _request: None
        session = opened(client, place)
        turn = client.prompt(session)
        asked = client.wait_for(lambda message: message.get("method") == "session/request_permission")
        (agent,) = json.loads(second_shell(place, "ps", "--json"))["agents"]
        os.kill(agent["pid"], signal.SIGKILL)
        client.wait_for_update("tool_call_update", status="failed")
        client.send({"jsonrpc": "2.0", "id": asked["id"], "result": allow_once(asked)})
        assert client.response(turn)["result"] == {"stopReason": "end_turn"}
        assert client.text() == "Gone on."
        assert not [update for update in client.of_kind("tool_call_update") if update.get("status") == "in_progress"]
    assert not (place.project / "ran").exists()


def test_a_command_is_allowed_from_now_on_only_as_it_is(place: Place) -> None:
    commands = ["touch one", "touch one", "touch two"]
    calls = [tool_call(f"c{n}", "Bash", {"command": command}) for n, command in enumerate(commands)]
    asked: list[str] = []

    def always(request: Json) -> Json:
        asked.append(request["params"]["toolCall"]["title"])
        return {"outcome": {"outcome": "selected", "optionId": "allow_always"}}

    with ModelServer(scripted(calls)) as server, acp_client(place, server, "--trust", "safe") as client:
        client.answer = always
        assert client.turn(opened(client, place)) == "end_turn"
    assert asked == ["touch one", "touch two"]


def test_a_sub_agents_change_is_asked_for_too(place: Place) -> None:
    def child(request: ReceivedRequest) -> Reply:
        return (
            plain_text("Made.") if request.results else plain_calls(("w", "Write", {"file_path": "a", "content": ""}))
        )

    handler = scripted([tool_calls(delegations("task", "make a"))], child)
    with ModelServer(handler) as server, acp_client(place, server, "--trust", "safe") as client:
        assert client.turn(opened(client, place)) == "end_turn"
        asked = client.wait_for(lambda message: message.get("method") == "session/request_permission")
    assert asked["params"]["toolCall"]["title"] == "task-1-1: Write a"
    assert (place.project / "a").exists()


def test_a_client_that_knows_no_permissions_denies(place: Place) -> None:
    write = tool_call("1", "Write", {"file_path": "a", "content": ""})
    with ModelServer(scripted([write])) as server, acp_client(place, server, "--trust", "safe") as client:
        client.answer = lambda _request: None
        turn = client.prompt(opened(client, place))
        asked = client.wait_for(lambda message: message.get("method") == "session/request_permission")
        client.send({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "unknown"}})
        assert client.response(turn)["result"] == {"stopReason": "end_turn"}
        assert server.chats[-1].results[0].startswith("denied: ")
    assert not (place.project / "a").exists()


def test_a_mode_holds_from_the_next_prompt_on(place: Place) -> None:
    write = {"file_path": "a.txt", "content": "a\n"}
    replies = [tool_call("1", "Write", write), text("No."), tool_call("2", "Write", write), text("Yes.")]
    with ModelServer(scripted(replies)) as server, acp_client(place, server) as client:
        session = opened(client, place)
        assert client.call("session/set_mode", sessionId=session, modeId="plan") == {}
        assert client.of_kind("current_mode_update")[-1]["currentModeId"] == "plan"
        client.turn(session)
        assert not (place.project / "a.txt").exists()
        options = client.call("session/set_config_option", sessionId=session, configId="mode", value="auto")
        assert options["configOptions"][0]["currentValue"] == "auto"
        client.turn(session)
        assert (place.project / "a.txt").exists()
        assert client.error("session/set_mode", sessionId=session, modeId="root")["code"] == -32602
