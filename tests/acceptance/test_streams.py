"""What model servers really send, through the real command.

The server sends the very bytes; what counts is what a client of ours reads. The exhaustive splits are unit tests of
the stream machine; here each kind is shown once or a few times over a real socket.
"""

from __future__ import annotations

import gzip
import json
import signal
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from protocol.usage import Usage
from tests.stubs.corral_run import Place, Run
from tests.stubs.model_server import ModelServer, ReceivedRequest, per_prompt, scripted
from tests.stubs.replies import (
    DONE,
    Close,
    Drip,
    Flush,
    Reply,
    Reset,
    Step,
    call_delta,
    calls,
    charge,
    content,
    delegations,
    event,
    finish,
    head,
    plain_calls,
    plain_text,
    raw,
    sse,
    status,
    stream,
    text,
    tool_calls,
    used,
)

QUICK = ("--retry-delay", "0.01")
SPENT = charge(200, 20)
GREETING = "你好世界 🌍"
WRITE = '{"file_path": "f.txt", "content": "x"}'


def run_with(place: Place, *replies: Reply, flags: tuple[str, ...] = QUICK) -> tuple[Run, list[ReceivedRequest]]:
    """A run against streamed replies, and the model calls that it made; its usage must be what the server billed."""
    with ModelServer(scripted(replies)) as server:
        run = place.run(server, *flags)
    assert Usage(**run.one("turn_summary")["usage"]) == server.billed, run
    return run, server.chats


def said(run: Run) -> str:
    response: str = run.one("run_summary")["response"]
    return response


def whole(reply: str, end: bytes = b"\n") -> bytes:
    """The body of a good streamed reply with these line ends."""
    return (content(reply) + finish("stop") + used(200, 20) + DONE).replace(b"\n", end)


# -- framing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_every_line_end_reads_alike(place: Place, end: bytes) -> None:
    run, _chats = run_with(place, stream(whole("It works.", end), usage=SPENT))
    assert said(run) == "It works."


# The greeting's first character is three bytes long, its last four: cuts within both, and within a line end.
@pytest.mark.parametrize("from_end", [1, 2, 3, 4, 15, 16])
def test_text_that_is_cut_within_a_character_stays_whole(place: Place, from_end: int) -> None:
    body = whole(GREETING)
    cut = body.index(GREETING.encode()) + len(GREETING.encode()) - from_end
    run, _chats = run_with(place, stream(body[:cut], Flush(), body[cut:], usage=SPENT))
    assert said(run) == GREETING


def test_a_stream_that_comes_byte_by_byte_reads_as_one(place: Place) -> None:
    pieces: list[Step] = [bytes([byte]) for byte in whole(GREETING, b"\r\n")]
    run, _chats = run_with(place, stream(*pieces, usage=SPENT))
    assert said(run) == GREETING


def test_comments_ids_event_names_and_empty_heartbeats_are_passed_over(place: Place) -> None:
    noise = b": ping\n\n:\n\n: PROCESSING\n\nid: 7\nevent: message\nretry: 5\ndata:\n\ndata: \n\n"
    body = (
        noise + content("It ") + noise + b"event: chunk\nid: 8\n" + content("works.") + noise + finish("stop") + noise
    )
    run, _chats = run_with(place, stream(noise, Flush(), body + used(200, 20) + noise + DONE + noise, usage=SPENT))
    assert said(run) == "It works."


@pytest.mark.parametrize("ending", [Close(), Reset()], ids=["close", "reset"])
def test_a_chunked_body_that_its_server_leaves_is_asked_for_once_more(place: Place, ending: Step) -> None:
    cut = stream(content("one "), Flush(), content("two "), Flush(), content("three"), Flush(), ending)
    run, chats = run_with(place, cut, text("All of it."))
    assert run.one("retry")["reason"] == "stream_failed"
    assert said(run) == "All of it."
    assert len(chats) == 2


def closed(body: bytes, usage: Usage | None = None) -> Reply:
    """A body whose end is the end of the connection."""
    return raw([head(200, [("content-type", "text/event-stream"), ("connection", "close")]), body], usage)


def test_half_a_sentence_and_an_orderly_close_is_no_reply(place: Place) -> None:
    run, chats = run_with(place, closed(content("half a sent")))
    assert run.one("retry")["reason"] == "stream_failed"
    assert said(run) == "Done."
    assert len(chats) == 2


@pytest.mark.parametrize(
    "body",
    [content("It works.") + finish("stop"), content("It works.") + DONE],
    ids=["finish reason without DONE", "DONE without finish reason"],
)
def test_a_finish_reason_or_done_ends_a_reply(place: Place, body: bytes) -> None:
    run, chats = run_with(place, closed(body, charge(0, 0)))
    assert said(run) == "It works."
    assert len(chats) == 1


@pytest.mark.parametrize("silence", ["nothing", "comments"])
def test_a_silent_stream_ends_within_the_idle_bound_though_comments_come(place: Place, silence: str) -> None:
    step: Step = Drip(b": ping\n\n", 0.1) if silence == "comments" else Drip(b"", 60)
    run, chats = run_with(place, stream(content("so far"), step), flags=(*QUICK, "--idle-timeout", "0.5"))
    assert run.one("retry")["reason"] == "stream_failed"
    assert said(run) == "Done."
    assert 0.5 <= chats[1].arrived - chats[0].arrived < 20, "the default bound is far longer"


def test_a_server_that_never_answers_is_a_network_retry_within_the_idle_bound(place: Place) -> None:
    silent = raw([Drip(b"", 60)])
    run, _chats = run_with(place, silent, flags=(*QUICK, "--idle-timeout", "0.5"))
    assert run.one("retry")["reason"] == "network"
    assert said(run) == "Done."


def test_a_slow_stream_that_keeps_coming_is_left_alone(place: Place) -> None:
    pieces: list[Step] = []
    for word in ("it", "takes", "its", "time"):
        pieces += [content(word + " "), Drip(b": wait\n\n", 0.1, times=3)]
    run, chats = run_with(
        place,
        stream(*pieces, finish("stop") + used(200, 20) + DONE, usage=SPENT),
        flags=(*QUICK, "--idle-timeout", "0.5"),
    )
    assert said(run).strip() == "it takes its time"
    assert len(chats) == 1


# -- errors -----------------------------------------------------------------------------------------------------------

KEY = "sk-very-secret-0123456789abcdef"


def test_a_401_shows_the_servers_words_and_masks_the_key(place: Place) -> None:
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}})
    with ModelServer(scripted([status(401, body, [("content-type", "application/json")])])) as server:
        flags = ["--provider", "openai", "--model", "stub", "--base-url", server.url]
        arguments = ["-p", "hello", "--output-format", "stream-json", *flags, "--project-root", str(place.project)]
        run = place.command(*arguments, environment={"OPENAI_API_KEY": KEY})
    assert run.returncode == 1, run
    assert server.chats[0].headers["authorization"] == f"Bearer {KEY}"
    message = run.end["message"]
    assert "Incorrect API key provided" in message
    assert "OPENAI_API_KEY" in message
    assert KEY.encode() not in run.stdout
    assert KEY not in run.stderr
    assert len(server.chats) == 1


def test_a_502_with_a_page_of_html_is_retried_and_its_words_shown(place: Place) -> None:
    page = status(502, "<html><h1>Bad gateway here</h1></html>", [("content-type", "text/html")])
    run, _chats = run_with(place, *[page] * 6)
    assert [line["reason"] for line in run.of_type("retry")] == ["server_error"] * 5
    assert run.returncode == 75, run
    assert "502" in run.end["message"]


def test_an_error_body_in_gzip_is_read(place: Place) -> None:
    body = gzip.compress(b'{"error": {"message": "the model is asleep"}}')
    fields = [("content-type", "application/json"), ("content-encoding", "gzip")]
    run, _chats = run_with(place, status(400, body, fields))
    assert run.returncode == 1, run
    assert "the model is asleep" in run.end["message"]


@pytest.mark.parametrize("before", ["", "partial text"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ({"message": "too much of it", "code": 429}, "rate_limit"),
        ({"message": "too much of it", "code": 503}, "server_error"),
    ],
)
def test_an_error_within_a_stream_keeps_its_class(place: Place, before: str, error: object, reason: str) -> None:
    opening = content(before) if before else b""
    run, _chats = run_with(place, stream(opening, event({"error": error})))
    assert run.one("retry")["reason"] == reason
    assert said(run) == "Done."


def test_an_error_text_within_a_stream_is_never_an_empty_success(place: Place) -> None:
    failing = stream(event({"error": "the GPU fell over"}))
    run, _chats = run_with(place, *[failing] * 6)
    assert run.returncode in (1, 75), run
    assert "the GPU fell over" in run.end["message"]


@pytest.mark.parametrize(
    "body", ["<html>Log in to the hotel's network</html>", '{"choices": 5}', '{"hello": "world"}'], ids=str
)
def test_a_200_that_is_no_reply_is_an_error(place: Place, body: str) -> None:
    kind = "text/html" if body.startswith("<") else "application/json"
    run, _chats = run_with(place, *[status(200, body, [("content-type", kind)])] * 6)
    assert run.end["kind"] == "error", run
    assert run.end["message"]


def test_a_redirect_is_not_followed(place: Place) -> None:
    with ModelServer(scripted([])) as other:
        run, chats = run_with(place, status(307, "", [("location", f"{other.url}/chat/completions")]))
    assert run.returncode == 1, run
    assert other.chats == []
    assert len(chats) == 1


# -- usage ------------------------------------------------------------------------------------------------------------


def usage_event(prompt: int, completion: int, **choices: object) -> bytes:
    return event({**choices, "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


@pytest.mark.parametrize(
    "body",
    [
        content("ok") + finish("stop") + usage_event(200, 20, choices=[]),
        content("ok") + finish("stop") + usage_event(200, 20, choices=None),
        content("ok") + finish("stop") + usage_event(200, 20),
        content("ok") + usage_event(200, 20, choices=[]) + finish("stop"),
        usage_event(10, 1, choices=[{"delta": {"content": "o"}}])
        + usage_event(50, 5, choices=[{"delta": {"content": "k"}}])
        + usage_event(200, 20, choices=[{"finish_reason": "stop"}]),
    ],
    ids=["empty choices", "null choices", "no choices", "before the finish", "cumulative"],
)
def test_usage_is_counted_once_wherever_it_comes(place: Place, body: bytes) -> None:
    run, _chats = run_with(place, stream(body + DONE, usage=SPENT))
    assert said(run) == "ok"


def test_a_server_without_usage_in_streams_is_asked_again_without_it(place: Place) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        if "stream_options" in request.body:
            return status(400, '{"error": {"message": "Unknown field: stream_options"}}')
        return sse([content("ok"), finish("stop")], charge(0, 0))

    with ModelServer(answer) as server:
        run = place.run(server)
    assert run.returncode == 0, run
    assert not run.of_type("retry")
    assert ["stream_options" in chat.body for chat in server.chats] == [True, False]
    assert Usage(**run.one("turn_summary")["usage"]) == server.billed


# -- tool calls -------------------------------------------------------------------------------------------------------


def calling(*bodies: bytes, reason: str = "tool_calls") -> Reply:
    """A streamed reply whose deltas are ``bodies``, then the finish."""
    return sse([*bodies, finish(reason), used(100, 10)], charge(100, 10))


def echo(word: str) -> str:
    return json.dumps({"command": f"echo {word}"})


ONE, TWO = (call_delta(echo(word), id=f"call-{word}", name="Bash", index=None) for word in ("one", "two"))


@pytest.mark.parametrize("bodies", [[calls(ONE, TWO)], [calls(ONE), calls(TWO)]], ids=["one delta", "two deltas"])
def test_calls_without_an_index_are_told_apart_by_their_ids(place: Place, bodies: list[bytes]) -> None:
    run, _chats = run_with(place, calling(*bodies))
    assert run.outcomes() == {"call-one": "success", "call-two": "success"}
    assert "two" in run.outputs()["call-two"]


def test_one_call_without_an_index_may_come_in_pieces(place: Place) -> None:
    start = call_delta("", id="a", name="Bash", index=None)
    rest = [calls(call_delta(piece, index=None)) for piece in ('{"comm', 'and": "echo', ' whole"}')]
    run, _chats = run_with(place, calling(calls(start), *rest))
    assert "whole" in run.outputs()["a"]


@pytest.mark.parametrize("index", [1, 2, -1])
def test_an_odd_first_index_is_still_one_call(place: Place, index: int) -> None:
    body = calls(call_delta(echo("hi"), id="a", name="Bash", index=index))
    run, chats = run_with(place, calling(content("Let me see."), body))
    assert run.outcomes() == {"a": "success"}
    assistant = chats[1].messages[-2]
    assert [call["id"] for call in assistant["tool_calls"]] == ["a"]


def test_empty_ids_and_names_in_later_deltas_change_nothing(place: Place) -> None:
    start = call_delta('{"command": ', id="a", name="Bash")
    rest = call_delta('"echo hi"}', id="", name="")
    run, _chats = run_with(place, calling(calls(start), calls(rest)))
    assert run.outcomes() == {"a": "success"}


@pytest.mark.parametrize("names", [("Bash", "Bash"), ("Ba", "sh")], ids=["repeated", "in halves"])
def test_a_name_may_come_repeated_or_in_halves(place: Place, names: tuple[str, str]) -> None:
    start = call_delta('{"command": ', id="a", name=names[0])
    rest = call_delta('"echo hi"}', name=names[1])
    run, _chats = run_with(place, calling(calls(start), calls(rest)))
    assert run.outcomes() == {"a": "success"}
    assert run.one("tool_call_start")["name"] == "Bash"


def test_a_call_without_an_id_gets_one_that_is_echoed(place: Place) -> None:
    run, chats = run_with(place, calling(calls(call_delta(echo("hi"), name="Bash"))))
    made = run.one("tool_call_start")["id"]
    assert made
    assert chats[1].messages[-1]["tool_call_id"] == made


def test_the_second_use_of_an_id_within_a_reply_is_told_apart(place: Place) -> None:
    pair = [call_delta(echo(word), id="same", name="Bash", index=n) for n, word in enumerate(("one", "two"))]
    run, chats = run_with(place, calling(calls(*pair)))
    assert {key: value.split()[0] for key, value in run.outputs().items()} == {"same": "one", "same#2": "two"}
    assert [message["tool_call_id"] for message in chats[1].messages[-2:]] == ["same", "same#2"]


def test_tool_calls_with_the_finish_reason_stop_run(place: Place) -> None:
    run, _chats = run_with(place, calling(calls(call_delta(echo("hi"), id="a", name="Bash")), reason="stop"))
    assert run.outcomes() == {"a": "success"}


@pytest.mark.parametrize("arguments", ["", " ", None], ids=["empty", "blank", "missing"])
def test_a_call_without_arguments_has_none(place: Place, arguments: str | None) -> None:
    run, chats = run_with(place, calling(calls(call_delta(arguments, id="a", name="List"))))
    assert run.one("tool_call_start")["args"] == {}
    assert run.outcomes() == {"a": "success"}
    assert chats[1].messages[-2]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_arguments_that_are_no_json_cost_that_call_alone(place: Place) -> None:
    junk = '{"command": ' + "junk " * 200_000
    pair = [call_delta(junk, id="bad", name="Bash"), call_delta(echo("hi"), id="good", name="Bash", index=1)]
    run, chats = run_with(place, calling(calls(*pair)))
    assert run.outcomes() == {"bad": "error", "good": "success"}
    assert len(run.outputs()["bad"]) < 5_000
    assert len(chats[1].raw_body) < 200_000, "the junk is not sent back"


def test_bad_arguments_for_ever_are_bounded(place: Place) -> None:
    bad = calling(calls(call_delta('{"command"', id="bad", name="Bash")))
    run, chats = run_with(place, *[bad] * 30)
    assert run.end["kind"] == "error", run
    assert len(chats) <= 10


@pytest.mark.parametrize("ending", ["length", "tool_calls", "end of the body"])
def test_arguments_that_are_cut_never_run(place: Place, ending: str) -> None:
    cut = calls(call_delta('{"file_path": "f.txt", "content": "line1', id="w", name="Write"))
    reply = stream(cut) if ending == "end of the body" else calling(cut, reason=ending)
    run, _chats = run_with(place, reply)
    assert not (place.project / "f.txt").exists()
    assert "success" not in run.outcomes().values()
    assert run.returncode == 0, run


def test_whole_arguments_do_run(place: Place) -> None:
    run, _chats = run_with(place, calling(calls(call_delta(WRITE, id="w", name="Write"))))
    assert run.outcomes() == {"w": "success"}
    assert (place.project / "f.txt").read_text() == "x"


def test_interleaved_deltas_of_two_calls_come_together(place: Place) -> None:
    starts = [call_delta("", id=f"call-{n}", name="Bash", index=n) for n in (0, 1)]
    halves = [
        call_delta(piece, index=n)
        for n, piece in [(0, '{"command": "ec'), (1, '{"command": "e'), (0, 'ho zero"}'), (1, 'cho one"}')]
    ]
    run, chats = run_with(place, calling(*[calls(each) for each in [*starts, *halves]]))
    assert {key: value.split()[0] for key, value in run.outputs().items()} == {"call-0": "zero", "call-1": "one"}
    assert [message["tool_call_id"] for message in chats[1].messages[-2:]] == ["call-0", "call-1"]


def test_one_of_three_calls_fails_and_the_others_keep_their_results(place: Place) -> None:
    commands = {"a": "echo good-a", "b": "echo bad; exit 3", "c": "echo good-c"}
    reply = tool_calls([(call_id, "Bash", {"command": command}) for call_id, command in commands.items()])
    run, chats = run_with(place, reply)
    assert run.outcomes() == {"a": "success", "b": "error", "c": "success"}
    results = chats[1].messages[-3:]
    assert [message["tool_call_id"] for message in results] == ["a", "b", "c"]
    assert ["good-a" in chats[1].results[0], "good-c" in chats[1].results[2]] == [True, True]


# -- retries ----------------------------------------------------------------------------------------------------------


def in_seconds(seconds: int) -> str:
    """An HTTP date so far from now."""
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("name", "value", "least", "most"),
    [
        ("Retry-After", "0.5", 500, 500),
        ("retry-after-ms", "150", 150, 150),
        ("Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Retry-After", "-5", 10, 10),
        ("Retry-After", "abc", 10, 10),
        ("Retry-After", "", 10, 10),
    ],
)
def test_a_sane_retry_after_is_honoured_and_any_other_passed_over(
    place: Place, name: str, value: str, least: int, most: int
) -> None:
    run, _chats = run_with(place, status(429, "slow down", [(name, value)]))
    assert least <= run.one("retry")["delay_ms"] <= most
    assert run.returncode == 0, run


def test_a_retry_after_that_is_a_date_is_counted_from_now(place: Place) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        # The first call is told to come back two or three seconds after it was made, a date having no fractions.
        again = status(429, "slow down", [("Retry-After", in_seconds(3))])
        return text("Done.") if len(server.chats) > 1 else again

    with ModelServer(answer) as server:
        run = place.run(server)
    assert 1000 < run.one("retry")["delay_ms"] <= 3000
    assert run.returncode == 0, run


@pytest.mark.parametrize("value", ["100000", "Fri, 01 Jan 2199 00:00:00 GMT"])
def test_a_retry_after_far_away_is_capped(place: Place, value: str) -> None:
    away = scripted([status(429, "slow down", [("Retry-After", value)])])
    with ModelServer(away) as server, place.start(server) as live:
        live.wait_for(lambda line: line["type"] == "retry")
        live.signal(signal.SIGINT)
        run = live.finish()
    assert run.one("retry")["delay_ms"] == 120_000
    assert run.returncode == 130, run


def test_a_rate_limit_for_ever_ends_after_the_attempts_with_75(place: Place) -> None:
    run, chats = run_with(place, *[status(429, "slow down, please")] * 10)
    assert [line["attempt"] for line in run.of_type("retry")] == [1, 2, 3, 4, 5]
    assert len(chats) == 6
    assert run.returncode == 75, run
    assert "slow down, please" in run.end["message"]


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (403, "You have reached your usage limit"),
        (403, "your subscription was rate limited, try again later"),
        (400, "rate limit: 429 Too Many Requests"),
        (404, "overloaded"),
        (422, "server error"),
    ],
)
def test_the_class_of_an_error_comes_from_its_status_and_not_from_its_words(place: Place, code: int, body: str) -> None:
    run, chats = run_with(place, status(code, body), flags=())
    assert run.returncode == 1, run
    assert len(chats) == 1
    assert not run.of_type("retry")
    assert body in run.end["message"]


def test_a_refused_sub_agent_asks_once_and_so_does_its_parent(place: Place) -> None:
    refusal = status(403, "You have reached your usage limit")
    replies = [tool_calls(delegations("task", "look")), refusal]
    with ModelServer(scripted(replies, per_prompt({"look": [refusal]}))) as server:
        run = place.run(server)
    assert run.returncode == 1, run
    assert len(server.chats) == 3
    assert "usage limit" in run.outputs()["to-look"]
    assert Usage(**run.one("turn_summary")["usage"]) == server.billed


def test_a_sub_agents_calls_are_read_like_its_parents(place: Place) -> None:
    """No ids, twice the same id and calls with the finish reason stop: in a reply that is not streamed."""
    twins = plain_calls(("same", "Bash", {"command": "echo one"}), ("same", "Bash", {"command": "echo two"}))
    with ModelServer(
        scripted([tool_calls(delegations("task", "look"))], per_prompt({"look": [twins, plain_text("seen")]}))
    ) as server:
        run = place.run(server)
    assert run.outcomes() == {"same": "success", "same#2": "success", "to-look": "success"}
    assert run.returncode == 0, run
