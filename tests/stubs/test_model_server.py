"""The stub server itself: it sends what it was told to, byte for byte, and fails a test that deserves it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from urllib.parse import urlsplit

import pytest

from protocol.usage import Usage
from tests.stubs.model_server import Handler, ModelServer, ReceivedRequest, per_prompt, scripted, unused_address
from tests.stubs.replies import (
    DONE,
    Close,
    Flush,
    Pause,
    Reply,
    Reset,
    content,
    finish,
    hang,
    head,
    plain_text,
    raw,
    status,
    stream,
    text,
    tool_call,
)

BOUND = 10.0
HELLO = [{"role": "user", "content": "hello"}]


def connect(server: ModelServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=BOUND)


def ask(connection: http.client.HTTPConnection, *, streaming: bool = True, messages: object = HELLO) -> bytes:
    """One model call; the body of its reply."""
    body = json.dumps({"model": "stub", "stream": streaming, "messages": messages})
    connection.request("POST", "/v1/chat/completions", body)
    return connection.getresponse().read()


def test_scripted_replies_come_in_order_and_then_done() -> None:
    with ModelServer(scripted([tool_call("a", "Bash", {"command": "true"})], lambda _: plain_text("plain"))) as server:
        connection = connect(server)
        assert b'"finish_reason": "tool_calls"' in ask(connection)
        assert json.loads(ask(connection, streaming=False))["choices"][0]["message"]["content"] == "plain"
        assert b"Done." in ask(connection)
        connection.close()
    assert server.billed == Usage(prompt_tokens=330, completion_tokens=33, api_calls=3)
    assert [chat.streaming for chat in server.chats] == [True, False, True]


def test_the_base_url_answers_a_list_of_models_that_is_no_model_call() -> None:
    with ModelServer(scripted([])) as server:
        connection = connect(server)
        connection.request("GET", urlsplit(server.url).path + "/models")
        assert json.loads(connection.getresponse().read())["data"][0]["id"] == "stub"
        connection.close()
    assert (len(server.requests), server.chats) == (1, [])


def test_a_body_comes_in_the_segments_that_were_asked_for() -> None:
    gate = threading.Event()
    with ModelServer(lambda _: raw([head(200, []), b"first", Flush(), b"second", Pause(gate), b"third"])) as server:
        connection = connect(server)
        connection.request("POST", "/v1/chat/completions", json.dumps({"messages": HELLO}))
        response = connection.getresponse()
        assert response.read(11) == b"firstsecond"
        gate.set()
        assert response.read() == b"third"
        connection.close()
    assert server.billed == Usage()


@pytest.mark.parametrize(
    ("ending", "error"),
    [(Close(), http.client.IncompleteRead), (Reset(), ConnectionResetError)],
    ids=["close", "reset"],
)
def test_a_broken_body_is_broken_for_its_reader_and_never_billed(ending: Close | Reset, error: type[Exception]) -> None:
    reply = stream(content("half"), Flush(), ending, usage=Usage(api_calls=1))
    with ModelServer(lambda _: reply) as server, pytest.raises(error):
        ask(connect(server))
    assert server.billed == Usage()


def test_a_hanging_reply_sends_not_one_byte() -> None:
    with ModelServer(lambda _: hang()) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        body = json.dumps({"messages": HELLO}).encode()
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        server.wait_for_requests(1)
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(1)


@pytest.mark.parametrize("sent", [b"POST /v1/chat", b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 9\r\n"])
@pytest.mark.parametrize("body", [b"", b'\r\n{"mess'])
def test_a_request_whose_client_went_away_in_its_midst_never_reaches_the_handler(sent: bytes, body: bytes) -> None:
    with ModelServer(scripted([])) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(sent + body)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    assert server.chats == []


def test_waiting_for_requests_that_do_not_come_fails_after_its_bound() -> None:
    with ModelServer(scripted([])) as server, pytest.raises(AssertionError, match="0 of 1 model calls"):
        server.wait_for_requests(1, timeout=0.05)


def test_what_a_handler_raises_fails_the_test_that_uses_it() -> None:
    with pytest.raises(AssertionError, match="unexpected call"), ModelServer(scripted([])) as server:
        ask(connect(server), streaming=False)


def test_a_prompt_without_a_reply_left_fails_the_test() -> None:
    def asking(handler: Handler, calls: int) -> None:
        with ModelServer(handler) as server:
            connection = connect(server)
            for _ in range(calls):
                ask(connection, streaming=False)

    asking(per_prompt({"hello": [plain_text("hi")]}), 1)
    with pytest.raises(AssertionError, match="no reply left"):
        asking(per_prompt({"hello": [plain_text("hi")]}), 2)


CALL = {"id": "a", "type": "function", "function": {"name": "Bash", "arguments": "{}"}}
ASSISTANT = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "ok"}


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([*HELLO, ASSISTANT], "no results for"),
        ([*HELLO, ASSISTANT, *HELLO], "comes before the results"),
        ([*HELLO, RESULT], "not the next one due"),
        ([*HELLO, ASSISTANT, RESULT, RESULT], "not the next one due"),
        ([*HELLO, {"role": "assistant", "content": ""}], "nothing in it"),
        ([{"role": "user", "content": " "}], "empty user message"),
        ([*HELLO, {**ASSISTANT, "tool_calls": []}], "empty list"),
        ([*HELLO, {**ASSISTANT, "tool_calls": [CALL, CALL]}, RESULT, RESULT], "not unique"),
        (
            [*HELLO, {**ASSISTANT, "tool_calls": [{**CALL, "function": {"name": "Bash", "arguments": "{"}}]}, RESULT],
            "not JSON",
        ),
    ],
)
def test_a_transcript_that_strict_servers_refuse_fails_the_test(messages: object, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault), ModelServer(scripted([])) as server:
        ask(connect(server), messages=messages)


def test_a_good_transcript_passes_and_its_parts_can_be_read() -> None:
    def answer(request: ReceivedRequest) -> Reply:
        assert (request.prompt, request.results, request.tool_names) == ("hello", ["ok"], [])
        return status(404, "but no")

    with ModelServer(answer) as server:
        assert ask(connect(server), messages=[*HELLO, ASSISTANT, RESULT]) == b"but no"


def test_nobody_listens_at_an_unused_address() -> None:
    port = urlsplit(unused_address()).port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port or 0))


def test_a_text_reply_is_the_stream_that_a_client_expects() -> None:
    with ModelServer(lambda _: text("hi")) as server:
        lines = ask(connect(server)).split(b"\n\n")
    assert lines[0] + b"\n\n" == content("hi")
    assert lines[1] + b"\n\n" == finish("stop")
    assert json.loads(lines[2].removeprefix(b"data: "))["choices"] == []
    assert lines[3] + b"\n\n" == DONE
