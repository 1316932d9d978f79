from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import TypeAlias

import pytest
import trio

from protocol.content import AssistantMessage
from protocol.usage import Usage
from tests.workers.providers.chat_wire import DONE, body, called, chunk, events, finished, part, request, said, settings
from tests.workers.providers.chat_wire import used as used_chunk
from tests.workers.providers.loopback import (
    EVENT_STREAM,
    JSON,
    Answer,
    LoopbackServer,
    bare,
    chunked,
    close,
    drip,
    head,
    reset,
    serving,
    silence,
    until_close,
    whole,
)
from workers.providers.openai_chat import OpenAIChat
from workers.providers.provider import (
    AccountRefused,
    BadResponse,
    ContextOverflow,
    ModelReply,
    NetworkFailed,
    ProviderError,
    RateLimited,
    Refused,
    Retryable,
    ServerFailed,
    StreamFailed,
)

BOUND = 20.0
GOOD = events([said("Hello "), said("you."), finished(), used_chunk(7, 3), DONE])
REPLY = ModelReply(
    message=AssistantMessage(text="Hello you."),
    usage=Usage(prompt_tokens=7, completion_tokens=3, api_calls=1),
    finish="stop",
)


class Shown:
    """A `DeltaSink` that keeps what it is told."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, str]] = []
        self.began = trio.Event()

    def text(self, piece: str) -> None:
        self.pieces.append(("text", piece))
        self.began.set()

    def thinking(self, piece: str) -> None:
        self.pieces.append(("thinking", piece))


Outcome: TypeAlias = ModelReply | ProviderError


async def ask(
    server: LoopbackServer, *, streaming: bool = True, shown: Shown | None = None, **changes: object
) -> Outcome:
    """One call by a provider of its own: its reply, or the error that it ended with."""
    provider = OpenAIChat(settings(server.base_url, **changes))
    with trio.fail_after(BOUND):
        try:
            return await provider.reply(request(streaming=streaming), shown or Shown())
        except ProviderError as error:
            return error
        finally:
            await provider.aclose()


async def outcome_of(
    *answers: Answer, streaming: bool = True, shown: Shown | None = None, **changes: object
) -> Outcome:
    async with serving(*answers) as server:
        return await ask(server, streaming=streaming, shown=shown, **changes)


# -- good replies -----------------------------------------------------------------------------------------------------


async def test_a_streamed_reply_is_shown_as_it_comes() -> None:
    shown = Shown()
    async with serving(chunked(GOOD)) as server:
        assert await ask(server, shown=shown, api_key="sk-key") == REPLY
    assert shown.pieces == [("text", "Hello "), ("text", "you.")]
    (received,) = server.requests
    assert received.target == "/v1/chat/completions"
    assert received.headers["authorization"] == "Bearer sk-key"
    assert received.headers["accept-encoding"] == "identity"
    assert received.json["stream"] is True


async def test_without_a_key_no_authorization_is_sent() -> None:
    async with serving(chunked(GOOD)) as server:
        await ask(server)
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize("answer_streams", [True, False])
@pytest.mark.parametrize("streaming", [True, False])
async def test_either_form_of_answer_is_read_whatever_was_asked_for(streaming: bool, answer_streams: bool) -> None:
    payloads = [chunk({"reasoning": "hm"}), said("a"), said("b"), finished(), DONE]
    in_one = body({"reasoning": "hm", "content": "ab"})
    shown = Shown()
    answer = chunked(events(payloads)) if answer_streams else whole(in_one)
    reply = await outcome_of(answer, streaming=streaming, shown=shown)
    assert isinstance(reply, ModelReply)
    assert reply.message == AssistantMessage(text="ab", reasoning="hm", reasoning_field="reasoning")
    pieces = [("text", "a"), ("text", "b")] if streaming and answer_streams else [("text", "ab")]
    assert shown.pieces == [("thinking", "hm"), *pieces]


async def test_a_stream_sent_byte_by_byte_reads_as_one() -> None:
    assert await outcome_of(chunked(*(GOOD[at : at + 1] for at in range(len(GOOD))))) == REPLY


async def test_one_connection_serves_one_call_after_the_other() -> None:
    async with serving(chunked(GOOD), whole(GOOD, headers=EVENT_STREAM), chunked(GOOD)) as server:
        provider = OpenAIChat(settings(server.base_url))
        with trio.fail_after(BOUND):
            for _ in range(3):
                assert await provider.reply(request(), Shown()) == REPLY
            await provider.aclose()
    assert [received.connection for received in server.requests] == [1, 1, 1]


@pytest.mark.parametrize("ending", [close, reset, silence, drip(b": ping\n\n", 0.01)])
@pytest.mark.parametrize("last", [finished(), DONE])
async def test_once_the_reply_is_whole_nothing_that_follows_is_a_failure(ending: Answer, last: str) -> None:
    reply = await outcome_of(chunked(events([said("a"), last]), then=ending))
    assert isinstance(reply, ModelReply)
    assert reply.message.text == "a"


async def test_usage_that_comes_well_after_the_finish_reason_is_counted() -> None:
    pieces = [events([payload]) for payload in (said("Hello you."), finished(), used_chunk(7, 3))]
    assert await outcome_of(chunked(*pieces, then=close)) == REPLY


# -- replies that break off -------------------------------------------------------------------------------------------

PARTIAL = events([said("half a sent"), called(part("Write", '{"path":', index=0, call_id="x"))])


@pytest.mark.parametrize(
    "answer",
    [
        chunked(PARTIAL),
        chunked(PARTIAL, then=close),
        chunked(PARTIAL, then=reset),
        chunked(),
        until_close(PARTIAL),
        until_close(PARTIAL + b"data: {"),
        bare(head(200, {**EVENT_STREAM, "content-length": "9999"}) + PARTIAL),
        until_close(body({"content": "a"})[:-5], headers=JSON),
        whole(b""),
        chunked(PARTIAL, b"data: {broken\n\n", events([finished(), DONE])),
    ],
)
async def test_a_reply_without_its_end_is_a_stream_that_failed(answer: Answer) -> None:
    assert isinstance(await outcome_of(answer), StreamFailed)


@pytest.mark.parametrize("answer", [silence, chunked(PARTIAL, then=silence), chunked(then=silence)])
async def test_silence_ends_within_the_idle_bound(answer: Answer) -> None:
    error = await outcome_of(answer, idle_timeout=0.2)
    assert isinstance(error, NetworkFailed if answer is silence else StreamFailed)
    assert "silent for 0.2 s" in str(error)


@pytest.mark.parametrize("noise", [b": ping\n\n", b"data:\n\n", b"\n", b"id: 1\n\n"])
async def test_comments_and_heartbeats_do_not_hide_silence(noise: bytes) -> None:
    error = await outcome_of(chunked(PARTIAL, then=drip(noise, 0.02)), idle_timeout=0.3)
    assert isinstance(error, StreamFailed)
    assert "silent" in str(error)


async def test_events_put_the_idle_bound_off_but_not_the_bound_of_the_call() -> None:
    answer = chunked(then=drip(events([said("a")]), 0.05))
    shown = Shown()
    error = await outcome_of(answer, idle_timeout=0.4, call_timeout=1.0, shown=shown)
    assert isinstance(error, StreamFailed)
    assert "longer than 1 s" in str(error)
    assert len(shown.pieces) > 8


async def test_cancelling_a_call_closes_its_connection() -> None:
    shown = Shown()
    async with serving(chunked(events([said("a")]), then=silence)) as server:
        provider = OpenAIChat(settings(server.base_url))
        with trio.fail_after(BOUND):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(provider.reply, request(), shown)
                await shown.began.wait()
                nursery.cancel_scope.cancel()
            await server.gone.wait()
            await provider.aclose()


# -- answers that are errors ------------------------------------------------------------------------------------------


def failing(status: int, message: str = "WORDS", headers: dict[str, str] = JSON, **fields: object) -> Answer:
    return whole(json.dumps({"error": {"message": message, **fields}}).encode(), status, headers)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, Refused), (403, AccountRefused), (404, AccountRefused), (422, Refused), (429, RateLimited)],
)
async def test_an_error_status_has_its_class_and_the_servers_words(
    status: int, kind: type[ProviderError], streaming: bool
) -> None:
    error = await outcome_of(failing(status), streaming=streaming)
    assert type(error) is kind
    assert "WORDS" in str(error)
    assert f"HTTP {status}" in str(error)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_masked_and_its_variable_named(status: int) -> None:
    key = "sk-canary-0123456789"
    answer = failing(status, f"Incorrect API key provided: {key}.")
    error = await outcome_of(answer, api_key=key, key_variable="STUB_API_KEY")
    assert isinstance(error, Refused)
    assert error.status == status
    assert "check the key in STUB_API_KEY" in str(error)
    assert "Incorrect API key provided: ***." in str(error)
    assert "no key was sent, set STUB_API_KEY" in str(await outcome_of(answer, key_variable="STUB_API_KEY"))


async def test_a_key_in_an_error_within_the_stream_is_masked_too() -> None:
    key = "sk-canary-0123456789"
    error = await outcome_of(chunked(events([said("a"), json.dumps({"error": f"bad {key}"})])), api_key=key)
    assert isinstance(error, ServerFailed)
    assert "bad ***" in str(error)


@pytest.mark.parametrize("key", ["sk\nkey", "sk-ключ", "sk\x00"])
async def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key: str) -> None:
    error = await outcome_of(api_key=key, key_variable="STUB_API_KEY")
    assert isinstance(error, Refused)
    assert "STUB_API_KEY" in str(error)
    assert key not in str(error)


async def test_blanks_around_a_key_are_not_sent() -> None:
    async with serving(chunked(GOOD)) as server:
        await ask(server, api_key=" sk-key\n")
    assert server.requests[0].headers["authorization"] == "Bearer sk-key"


async def test_a_page_with_502_is_a_server_that_failed_and_its_words_are_shown() -> None:
    page = b"<html><head><title>502 Bad Gateway</title></head><body>\x1b[31mnginx</body></html>"
    error = await outcome_of(whole(page, 502, {"content-type": "text/html"}))
    assert isinstance(error, ServerFailed)
    assert "502 Bad Gateway [31mnginx" in str(error)


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
async def test_a_compressed_error_body_is_read(compress: Callable[[bytes], bytes]) -> None:
    packed = compress(b'{"error":{"message":"WORDS"}}')
    answer = whole(packed, 400, {**JSON, "content-encoding": "gzip"})
    assert "WORDS" in str(await outcome_of(answer))


@pytest.mark.parametrize("packed", [gzip.compress(b"x" * 100_000_000, 9), b"not packed at all"])
async def test_a_bomb_or_junk_in_an_error_body_is_still_that_error(packed: bytes) -> None:
    error = await outcome_of(whole(packed, 503, {**JSON, "content-encoding": "gzip"}))
    assert isinstance(error, ServerFailed)
    assert len(str(error)) <= 2048


async def test_a_packed_reply_is_refused() -> None:
    packed = gzip.compress(body({"content": "a"}))
    error = await outcome_of(whole(packed, headers={**JSON, "content-encoding": "gzip"}))
    assert isinstance(error, BadResponse)
    assert "gzip" in str(error)


async def test_an_error_whose_body_breaks_off_keeps_its_class() -> None:
    answer = bare(head(429, {**JSON, "retry-after": "3", "content-length": "999"}) + b'{"error"')
    error = await outcome_of(answer)
    assert isinstance(error, RateLimited)
    assert error.retry_after == 3.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"retry-after": "2"}, 2.0), ({"Retry-After-Ms": "1500"}, 1.5), ({"retry-after": "x"}, None)],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_the_wait_that_a_server_asks_for_is_kept(
    headers: dict[str, str], seconds: float | None, status: int
) -> None:
    error = await outcome_of(failing(status, headers={**JSON, **headers}))
    assert isinstance(error, Retryable)
    assert error.retry_after == seconds


@pytest.mark.parametrize("code", ["exceed_context_size_error", "context_length_exceeded"])
async def test_a_prompt_that_is_too_long_is_a_context_overflow(code: str) -> None:
    assert isinstance(await outcome_of(failing(400, type=code, n_prompt_tokens=9000, n_ctx=4096)), ContextOverflow)


async def test_a_redirect_is_not_followed_and_its_target_is_named() -> None:
    async with serving() as other, serving(whole(b"", 307, {"location": f"{other.base_url}/elsewhere?x=1"})) as server:
        error = await ask(server, api_key="sk-key")
        assert isinstance(error, Refused)
        assert f"{other.base_url}/elsewhere;" in str(error)
    assert other.requests == []


@pytest.mark.parametrize(
    "answer",
    [
        whole(b"<html>Sign in</html>", headers={"content-type": "text/html"}),
        whole(b'{"choices":5}'),
        whole(b'{"hello":"world"}'),
        chunked(events(['{"choices":[{"delta":{"content":5}}]}', DONE])),
        chunked(b"data: " + b"x" * (5 * 1024 * 1024)),
        bare(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        bare(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n"),
    ],
)
async def test_what_does_not_speak_the_protocol_is_a_bad_response(answer: Answer) -> None:
    error = await outcome_of(answer)
    assert isinstance(error, BadResponse)


async def test_a_page_names_the_address() -> None:
    async with serving(whole(b"<html>Sign in</html>", headers={"content-type": "text/html"})) as server:
        assert f"{server.base_url}/chat/completions" in str(await ask(server))


@pytest.mark.parametrize("before", [[], [said("partial")]])
async def test_an_error_within_a_stream_keeps_its_class(before: list[str]) -> None:
    error = await outcome_of(chunked(events([*before, '{"error":{"message":"WORDS","code":429}}'])))
    assert isinstance(error, RateLimited)
    assert "WORDS" in str(error)


# -- stream_options ---------------------------------------------------------------------------------------------------


async def test_a_server_without_stream_options_is_asked_again_once_and_remembered() -> None:
    refusal = failing(400, "Unknown field: stream_options")
    async with serving(refusal, chunked(GOOD), chunked(GOOD)) as server:
        provider = OpenAIChat(settings(server.base_url))
        with trio.fail_after(BOUND):
            assert await provider.reply(request(), Shown()) == REPLY
            assert await provider.reply(request(), Shown()) == REPLY
            await provider.aclose()
    assert ["stream_options" in received.json for received in server.requests] == [True, False, False]


async def test_a_server_that_keeps_naming_stream_options_is_asked_twice_and_no_more() -> None:
    async with serving(*[failing(400, "stream_options")] * 3) as server:
        assert isinstance(await ask(server), Refused)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("status", "message", "streaming"),
    [(400, "bad", True), (422, "stream_options", True), (400, "stream_options", False)],
)
async def test_any_other_refusal_is_final(status: int, message: str, streaming: bool) -> None:
    async with serving(*[failing(status, message)] * 2) as server:
        assert isinstance(await ask(server, streaming=streaming), Refused)
    assert len(server.requests) == 1
