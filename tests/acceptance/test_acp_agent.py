"""``corral acp`` as a client of the Agent Client Protocol meets it: over pipes, with a real model server behind it."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Mapping

import pytest

from supervisor.store.folder import SessionLock
from tests.stubs.acp_client import acp_client, opened, second_shell
from tests.stubs.corral_run import Place
from tests.stubs.model_server import ModelServer, ReceivedRequest, scripted
from tests.stubs.process_table import descendants
from tests.stubs.replies import (
    CallTuple,
    Pause,
    Reply,
    content,
    delegations,
    delta,
    finish,
    hang,
    plain_calls,
    plain_text,
    sse,
    stream,
    text,
    tool_call,
    tool_calls,
    used,
)

CANCEL_SECONDS = 2.0
WAIT = tool_call("wait", "Bash", {"command": "echo begun; sleep 1000 & sleep 1001"})


# -- a whole turn -----------------------------------------------------------------------------------------------------


def test_initialize_says_what_there_is(place: Place) -> None:
    with acp_client(place, None) as client:
        said = client.initialize()
    assert said["protocolVersion"] == 1
    assert said["agentCapabilities"]["loadSession"] is True
    assert said["agentCapabilities"]["promptCapabilities"] == {"embeddedContext": True}
    assert set(said["agentCapabilities"]["sessionCapabilities"]) == {"list", "resume", "close"}
    assert said["agentInfo"]["name"] == "corral" and said["authMethods"] == []


def test_a_turn_streams_its_text_and_thoughts_before_it_is_answered(place: Place) -> None:
    reply = sse([delta({"reasoning_content": "Hm. "}), content("Hel"), content("lo"), finish("stop"), used(200, 20)])
    with ModelServer(scripted([reply])) as server, acp_client(place, server) as client:
        session = opened(client, place)
        assert client.turn(session, "Say hello") == "end_turn"
        assert client.text() == "Hello"
        (thought,) = client.of_kind("agent_thought_chunk")
        assert thought["content"] == {"type": "text", "text": "Hm. "}
        assert len({update["messageId"] for update in client.of_kind("agent_message_chunk")}) == 1
        assert client.received[-1]["result"] == {"stopReason": "end_turn"}
        assert client.of_kind("session_info_update") == [{"sessionUpdate": "session_info_update", "title": "Say hello"}]
        (usage,) = client.of_kind("usage_update")
        assert 0 < usage["used"] < usage["size"]


def test_tool_calls_show_their_kind_place_change_and_end(place: Place) -> None:
    place.write("a.py", "x = 1\n")
    wanted: list[CallTuple] = [
        ("1", "Write", {"file_path": "new.py", "content": "y = 2\n"}),
        ("2", "Edit", {"file_path": "a.py", "replacements": [{"old_str": "x = 1", "new_str": "x = 3"}]}),
        ("3", "Read", {"file_path": "missing.py"}),
    ]
    with ModelServer(scripted([tool_calls(wanted), text("Done.")])) as server, acp_client(place, server) as client:
        assert client.turn(opened(client, place)) == "end_turn"
        written, edited, missed = client.of_kind("tool_call")
        ends = {update["toolCallId"]: update for update in client.of_kind("tool_call_update")}
    new, old = str(place.project / "new.py"), str(place.project / "a.py")
    assert written["kind"] == edited["kind"] == "edit" and missed["kind"] == "read"
    assert written["locations"] == [{"path": new}]
    assert written["content"] == [{"type": "diff", "path": new, "newText": "y = 2\n"}]
    assert edited["content"] == [{"type": "diff", "path": old, "oldText": "x = 1", "newText": "x = 3"}]
    assert [ends[call["toolCallId"]]["status"] for call in (written, edited, missed)] == [
        "completed",
        "completed",
        "failed",
    ]
    assert "missing.py" in ends[missed["toolCallId"]]["content"][0]["content"]["text"]


def test_a_running_command_shows_what_it_writes(place: Place) -> None:
    command = {"command": "echo first; until [ -e go ]; do sleep 0.02; done; echo last"}
    replies = [tool_call("1", "Bash", command), text("Done.")]
    with ModelServer(scripted(replies)) as server, acp_client(place, server) as client:
        turn = client.prompt(opened(client, place))
        shown = [{"type": "content", "content": {"type": "text", "text": "first\n"}}]
        client.wait_for_update("tool_call_update", content=shown)
        (place.project / "go").touch()
        client.response(turn)
        assert client.of_kind("tool_call_update")[-1]["content"][0]["content"]["text"] == "first\nlast"


def test_sub_agents_are_tool_calls_and_their_text_is_not_the_main_agents(place: Place) -> None:
    place.write("a.py", "x = 1\n")

    def child(request: ReceivedRequest) -> Reply:
        if request.results:
            return plain_text(f"report of {request.prompt}")
        return plain_calls(("same-id", "Read", {"file_path": "a.py"}))

    handler = scripted([tool_calls(delegations("explore", "one", "two")), text("All told.")], child)
    with ModelServer(handler) as server, acp_client(place, server) as client:
        assert client.turn(opened(client, place)) == "end_turn"
        assert client.text() == "All told."
        calls = client.of_kind("tool_call")
        ids = [call["toolCallId"] for call in calls]
        assert len(set(ids)) == len(ids) == 4
        ends = {update["toolCallId"]: update for update in client.of_kind("tool_call_update") if "status" in update}
    assert sorted(call["name"] for call in calls) == ["InvokeAgent", "InvokeAgent", "Read", "Read"]
    assert all(call["title"].startswith("explore-1-") for call in calls if call["name"] == "Read")
    reports = [ends[call["toolCallId"]]["content"][0]["content"]["text"] for call in calls[:2]]
    assert reports == ["report of one", "report of two"]


def test_two_sessions_run_at_once_each_in_its_own_folder(place: Place) -> None:
    other = place.folder / "other"
    other.mkdir()
    both_are_there = "touch ../{mine}; until [ -e ../one ] && [ -e ../two ]; do sleep 0.02; done; pwd"

    def answer(request: ReceivedRequest) -> Reply:
        command = both_are_there.format(mine=request.prompt)
        return text(f"answer to {request.prompt}") if request.results else tool_call("1", "Bash", {"command": command})

    with ModelServer(answer) as server, acp_client(place, server) as client:
        client.initialize()
        one, two = client.new(place.project), client.new(other)
        turns = [client.prompt(one, "one"), client.prompt(two, "two")]
        assert [client.response(turn)["result"]["stopReason"] for turn in turns] == ["end_turn", "end_turn"]
        assert client.text(one) == "answer to one" and client.text(two) == "answer to two"
        for session, folder in ((one, place.project), (two, other)):
            (end,) = [update for update in client.of_kind("tool_call_update", session) if "status" in update]
            assert end["content"][0]["content"]["text"] == str(folder)


# -- stop reasons and failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "flags", "reason"),
    [
        (sse([content("half"), finish("length"), used(10, 5)]), (), "max_tokens"),
        (tool_call("1", "Read", {"file_path": "x"}), ("--max-turns", "1"), "max_turn_requests"),
        (tool_calls([("1", "Read", {"file_path": "x"})], prompt=2900), ("--max-tokens-total", "3000"), "max_tokens"),
    ],
)
def test_a_turn_that_a_limit_ends_says_which(place: Place, reply: Reply, flags: tuple[str, ...], reason: str) -> None:
    many = [reply] * 60
    with ModelServer(scripted(many)) as server, acp_client(place, server, *flags) as client:
        assert client.turn(opened(client, place)) == reason


def test_a_reply_that_the_server_withholds_is_a_refusal(place: Place) -> None:
    withheld = sse([finish("content_filter"), used(10, 0)])
    with (
        ModelServer(scripted([withheld] * 20)) as server,
        acp_client(place, server, "--retry-delay", "0") as client,
    ):
        assert client.turn(opened(client, place)) == "refusal"


def test_a_model_that_can_not_be_reached_is_an_error_and_the_session_goes_on(place: Place) -> None:
    refused = Reply(steps=(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n",), keep_alive=True)
    with ModelServer(scripted([refused, text("Now.")])) as server, acp_client(place, server) as client:
        session = opened(client, place)
        error = client.response(client.prompt(session))["error"]
        assert error["code"] == -32603 and error["message"]
        assert client.turn(session) == "end_turn"


# -- cancelling -------------------------------------------------------------------------------------------------------


def test_a_cancelled_turn_ends_within_two_seconds_with_all_it_started(place: Place) -> None:
    with ModelServer(scripted([WAIT])) as server, acp_client(place, server) as client:
        session = opened(client, place)
        turn = client.prompt(session)
        shown = [{"type": "content", "content": {"type": "text", "text": "begun\n"}}]
        client.wait_for_update("tool_call_update", content=shown)
        client.notify("session/cancel", sessionId=session)
        assert client.response(turn, CANCEL_SECONDS)["result"] == {"stopReason": "cancelled"}
        assert not [process for process in descendants(client.process.pid) if "sleep 100" in process.command]
        assert client.of_kind("tool_call_update")[-1]["status"] == "failed"
        assert client.turn(session) == "end_turn"


def test_a_cancel_right_behind_the_prompt_is_not_lost(place: Place) -> None:
    with ModelServer(scripted([hang()])) as server, acp_client(place, server) as client:
        session = opened(client, place)
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "x"}]}
        lines: list[Mapping[str, object]] = [
            {"jsonrpc": "2.0", "id": "p", "method": "session/prompt", "params": prompt},
            {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}},
        ]
        client.raw(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        assert client.response("p", CANCEL_SECONDS)["result"] == {"stopReason": "cancelled"}


def test_a_request_can_be_cancelled_by_its_id(place: Place) -> None:
    with ModelServer(scripted([hang()])) as server, acp_client(place, server) as client:
        turn = client.prompt(opened(client, place))
        server.wait_for_requests(1)
        client.notify("$/cancel_request", requestId=str(turn))
        client.notify("$/cancel_request", requestId=turn)
        assert client.response(turn, CANCEL_SECONDS)["result"] == {"stopReason": "cancelled"}


def test_a_second_prompt_of_a_session_is_refused_while_one_runs(place: Place) -> None:
    with ModelServer(scripted([hang()])) as server, acp_client(place, server) as client:
        session = opened(client, place)
        turn = client.prompt(session)
        server.wait_for_requests(1)
        error = client.response(client.prompt(session, "another"))["error"]
        assert error["code"] == -32600 and "runs" in error["message"]
        client.notify("session/cancel", sessionId=session)
        assert client.response(turn)["result"] == {"stopReason": "cancelled"}


def test_closing_a_session_cancels_its_turn_and_lets_the_session_go(place: Place) -> None:
    with ModelServer(scripted([hang()])) as server, acp_client(place, server) as client:
        session = opened(client, place)
        turn = client.prompt(session)
        server.wait_for_requests(1)
        assert client.call("session/close", sessionId=session) == {}
        assert client.response(turn)["result"] == {"stopReason": "cancelled"}
        assert client.error("session/close", sessionId=session)["code"] == -32002
        assert client.response(client.prompt(session))["error"]["code"] == -32002
        assert json.loads(second_shell(place, "sessions", "list", "--json"))["state"] == "cancelled"


# -- the end of the client --------------------------------------------------------------------------------------------


def test_the_end_of_the_input_in_a_turn_ends_everything(place: Place) -> None:
    with ModelServer(scripted([WAIT])) as server, acp_client(place, server) as client:
        session = opened(client, place)
        turn = client.prompt(session)
        shown = [{"type": "content", "content": {"type": "text", "text": "begun\n"}}]
        client.wait_for_update("tool_call_update", content=shown)
        client.close()
        assert client.finish(5) == 0
        assert client.response(turn)["result"] == {"stopReason": "cancelled"}
    exported = json.loads(place.command("sessions", "export", session).stdout)
    assert exported["runs"][0]["ended"] is not None
    assert [message["type"] for message in exported["agents"][0]["messages"]] == ["user", "assistant", "tool"]


def test_a_signal_ends_it_as_the_end_of_the_input_does(place: Place) -> None:
    with ModelServer(scripted([hang()])) as server, acp_client(place, server) as client:
        turn = client.prompt(opened(client, place))
        server.wait_for_requests(1)
        client.process.send_signal(signal.SIGTERM)
        assert client.finish(5) == 143
        assert client.response(turn)["result"] == {"stopReason": "cancelled"}


def test_a_client_that_closes_its_end_of_the_output_is_gone(place: Place) -> None:
    def call_until_told(_request: ReceivedRequest) -> Reply:
        return tool_call("1", "Bash", {"command": "while :; do echo tick; sleep 0.01; done"})

    with ModelServer(call_until_told) as server, acp_client(place, server) as client:
        client.prompt(opened(client, place))
        client.wait_for_update("tool_call")
        client.stop_reading()
        assert client.process.wait(10) == 141


# -- stored sessions --------------------------------------------------------------------------------------------------


def stored_session(place: Place) -> str:
    """A session of an earlier process: a prompt, a call and a reply."""
    replies = [tool_call("1", "Bash", {"command": "echo out"}), text("The answer is 4.")]
    with ModelServer(scripted(replies)) as server, acp_client(place, server) as client:
        session = opened(client, place)
        client.turn(session, "How many?")
    return session


def test_a_loaded_session_is_replayed_before_the_answer_and_goes_on(place: Place) -> None:
    session = stored_session(place)
    with ModelServer(scripted([text("Still 4.")])) as server, acp_client(place, server) as client:
        client.initialize()
        loaded = client.call("session/load", sessionId=session, cwd=str(place.project), mcpServers=[])
        assert loaded["modes"]["currentModeId"] == "auto"
        assert client.received[-1]["result"] == loaded
        kinds = [update["sessionUpdate"] for update in client.updates(session)]
        assert kinds == ["user_message_chunk", "tool_call", "tool_call_update", "agent_message_chunk"]
        assert client.of_kind("user_message_chunk")[0]["content"]["text"] == "How many?"
        assert client.of_kind("tool_call_update")[0]["status"] == "completed"
        assert client.turn(session, "Sure?") == "end_turn"
        assert server.chats[0].prompt == "How many?"


def test_a_resumed_session_goes_on_without_its_history_being_sent(place: Place) -> None:
    session = stored_session(place)
    with ModelServer(scripted([text("Still 4.")])) as server, acp_client(place, server) as client:
        client.initialize()
        client.call("session/resume", sessionId=session, cwd=str(place.project))
        assert client.updates() == []
        assert client.turn(session, "Sure?") == "end_turn"
        assert len(server.chats[0].messages) == 6


def test_sessions_are_listed_by_folder(place: Place) -> None:
    session = stored_session(place)
    with acp_client(place, None) as client:
        client.initialize()
        (listed,) = client.call("session/list")["sessions"]
        assert listed["sessionId"] == session and listed["cwd"] == str(place.project)
        assert listed["title"] == "How many?" and listed["updatedAt"].startswith("20")
        assert client.call("session/list", cwd=str(place.project))["sessions"] == [listed]
        assert client.call("session/list", cwd="/nowhere")["sessions"] == []
        assert client.call("session/list", cursor=session)["sessions"] == []


def test_only_a_whole_id_opens_a_session(place: Place) -> None:
    session = stored_session(place)
    with ModelServer(scripted([])) as server, acp_client(place, server) as client:
        client.initialize()
        for wrong in (session[:-1], "../x", "20200101-000000-000000"):
            error = client.error("session/load", sessionId=wrong, cwd=str(place.project), mcpServers=[])
            assert error["code"] == -32002, error


# -- other processes ---------------------------------------------------------------------------------------------------


def test_a_second_shell_sees_the_turn_while_it_runs(place: Place) -> None:
    with ModelServer(scripted([hang()])) as server, acp_client(place, server) as client:
        session = opened(client, place)
        assert second_shell(place, "ps", "--json") == b""
        turn = client.prompt(session)
        server.wait_for_requests(1)
        run = json.loads(second_shell(place, "ps", "--json"))
        assert (run["session_id"], run["pid"]) == (session, client.process.pid)
        client.notify("session/cancel", sessionId=session)
        client.response(turn)
        assert second_shell(place, "ps", "--json") == b""


def test_a_second_shell_ends_the_turn_and_the_client_is_served_on(place: Place) -> None:
    with ModelServer(scripted([hang(), text("Again.")])) as server, acp_client(place, server) as client:
        session = opened(client, place)
        turn = client.prompt(session)
        server.wait_for_requests(1)
        said = second_shell(place, "kill", session).decode()
        assert said == f"run {session} was ended, its client is served on (pid {client.process.pid})\n"
        assert client.response(turn)["result"] == {"stopReason": "cancelled"}
        assert client.turn(session) == "end_turn"


def test_a_session_that_is_open_elsewhere_can_not_be_loaded(place: Place) -> None:
    session = stored_session(place)
    lock = SessionLock(place.home / "state" / "corral" / "sessions" / session)
    with ModelServer(scripted([])) as server, acp_client(place, server) as client:
        client.initialize()
        error = client.error("session/resume", sessionId=session, cwd=str(place.project))
        assert error["code"] == -32603 and "in use" in error["message"]
        lock.release()
        client.call("session/resume", sessionId=session, cwd=str(place.project))


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_garbage_is_answered_and_nothing_else_happens(place: Place) -> None:
    lines: list[tuple[bytes, object, int]] = [
        (b"hello", None, -32700),
        (b'{"jsonrpc":"2.0","id":9', None, -32700),
        (b"\xff\xfe{}", None, -32700),
        (b'{"a":' * 100_000, None, -32700),
        (b"[]", None, -32600),
        (b'{"id":"a","method":"initialize"}', "a", -32600),
        (b'{"jsonrpc":"2.0","id":"b"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"initialize"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":"c","method":"initialize","params":[1]}', "c", -32602),
        (b'{"jsonrpc":"2.0","id":"d","method":"initialize","params":{"protocolVersion":"1"}}', "d", -32602),
        (b'{"jsonrpc":"2.0","id":null,"method":"session/new","params":{}}', None, -32600),
        (b'{"jsonrpc":"2.0","id":"e","method":"fly","params":{}}', "e", -32600),
    ]
    with acp_client(place, None) as client:
        for count, (line, expected, code) in enumerate(lines, start=1):
            client.raw(line + b"\n\n")
            answer = client.wait_for(lambda message: "error" in message, count=count)
            assert (answer["id"], answer["error"]["code"]) == (expected, code), line[:80]
        client.raw(b'{"jsonrpc":"2.0","method":"fly"}\n{"jsonrpc":"2.0","id":77,"result":{}}\n')
        client.initialize()
        assert client.error("fly")["code"] == -32601
        assert client.error("authenticate", methodId="x")["code"] == -32602
        assert len([message for message in client.received if "error" in message]) == len(lines) + 2


def test_what_a_session_can_not_be_opened_with_is_refused(place: Place) -> None:
    with ModelServer(scripted([])) as server, acp_client(place, server) as client:
        client.initialize()
        for cwd in ("relative/folder", "", "/no/such/folder"):
            assert client.error("session/new", cwd=cwd, mcpServers=[])["code"] == -32602
        session = client.new(place.project)
        image = {"type": "image", "data": "", "mimeType": "image/png"}
        for prompt in ([image], [], [{"type": "text", "text": " "}], [{"type": "hologram"}]):
            error = client.error("session/prompt", sessionId=session, prompt=prompt)
            assert error["code"] == -32602, error
        assert client.error("session/prompt", sessionId="other", prompt=[])["code"] == -32002
        assert server.chats == []


def test_no_model_is_told_when_a_session_is_opened(place: Place) -> None:
    with acp_client(place, None, "--provider", "openai") as client:
        client.initialize()
        error = client.error("session/new", cwd=str(place.project), mcpServers=[])
        assert error["code"] == -32603 and "OPENAI_API_KEY" in error["message"]


def test_links_and_embedded_text_reach_the_model_and_half_surrogates_do_no_harm(place: Place) -> None:
    prompt = [
        {"type": "text", "text": "Look at this: \ud83d"},
        {"type": "resource_link", "name": "a b.py", "uri": "file:///project/a%20b.py"},
        {"type": "resource", "resource": {"uri": "file:///project/c.py", "text": "c = 1", "mimeType": "text/x-python"}},
    ]
    with ModelServer(scripted([text("Seen.")])) as server, acp_client(place, server) as client:
        session = opened(client, place)
        response = client.response(client.ask("session/prompt", sessionId=session, prompt=prompt))
        assert response["result"] == {"stopReason": "end_turn"}
        expected = "Look at this: \ufffd\n\n[a b.py](/project/a b.py)\n\n/project/c.py:\nc = 1"
        assert server.chats[0].prompt == expected


def test_a_line_that_is_too_long_is_dropped_and_the_next_one_is_taken(place: Place) -> None:
    with ModelServer(scripted([text("Read.")])) as server, acp_client(place, server) as client:
        session = opened(client, place)
        client.raw(b'{"jsonrpc":"2.0","id":"long","method":"' + b"x" * (33 * 1024 * 1024) + b'"}\n')
        error = client.wait_for(lambda message: "error" in message)
        assert (error["id"], error["error"]["code"]) == (None, -32700)
        long = "word " * 200_000
        assert client.turn(session, long) == "end_turn"
        assert server.chats[0].prompt == long


def test_a_last_line_without_its_end_is_taken(place: Place) -> None:
    with acp_client(place, None) as client:
        client.raw(b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}')
        client.close()
        assert client.response(0)["result"]["protocolVersion"] == 1


def test_a_client_that_stops_reading_can_still_cancel_and_loses_nothing(place: Place) -> None:
    flood = stream(*[content("word " * 2000) for _ in range(500)], Pause(threading.Event()))
    with ModelServer(scripted([flood])) as server, acp_client(place, server) as client:
        session = opened(client, place)
        with client.paused():
            turn = client.prompt(session)
            server.wait_for_requests(1)
            client.notify("session/cancel", sessionId=session)
        assert client.response(turn)["result"] == {"stopReason": "cancelled"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-p", "x"), "--prompt"),
        (("hello",), "hello"),
        (("--session", "x"), "--session"),
        (("--trust", "root"), "--trust"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_said(
    place: Place, flags: tuple[str, ...], words: str
) -> None:
    run = place.command("acp", *flags)
    assert (run.returncode, run.stdout) == (2, b"")
    assert words in run.stderr


def test_the_help_says_how_a_client_starts_it(place: Place) -> None:
    run = place.command("acp", "--help")
    assert run.returncode == 0 and b"corral acp" in run.stdout
