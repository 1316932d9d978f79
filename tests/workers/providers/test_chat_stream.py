from __future__ import annotations

import json

import pytest

from protocol.content import AssistantMessage, ToolCall
from protocol.usage import Usage
from tests.workers.providers.chat_wire import DONE, body, called, chunk, finished, part, said, used
from workers.providers.chat_stream import MAX_REPLY_CHARACTERS, ChatStream, Piece
from workers.providers.provider import BadResponse, ModelReply, RateLimited, Refused, ServerFailed, StreamFailed
from workers.providers.sse import ServerSentEvent


def feed(*payloads: str) -> tuple[ChatStream, list[Piece]]:
    stream = ChatStream("made_")
    pieces = [piece for payload in payloads for piece in stream.feed(ServerSentEvent(data=payload))]
    return stream, pieces


def reply(*payloads: str) -> ModelReply:
    return feed(*payloads)[0].reply()


def text_of(*payloads: str) -> str:
    return reply(*payloads, finished()).message.text


def test_text_comes_in_pieces_and_as_a_whole() -> None:
    stream, pieces = feed(
        chunk({"role": "assistant", "content": ""}), said("你好"), said("🌍"), finished(), used(3, 2), DONE
    )
    assert pieces == [Piece(kind="text", text="你好"), Piece(kind="text", text="🌍")]
    assert stream.reply() == ModelReply(
        message=AssistantMessage(text="你好🌍"),
        usage=Usage(prompt_tokens=3, completion_tokens=2, api_calls=1),
        finish="stop",
    )


@pytest.mark.parametrize("ending", [finished(), DONE])
def test_a_finish_reason_and_done_are_both_the_end_of_a_reply(ending: str) -> None:
    stream, _ = feed(said("a"), ending)
    assert stream.ended
    assert stream.complete is (ending == DONE)
    assert stream.reply().message.text == "a"


@pytest.mark.parametrize(
    "payloads", [[], [said("half a sent")], [called(part("Read", "{}", call_id="x"))], [said("a"), used(1, 1)]]
)
def test_without_either_the_reply_broke_off(payloads: list[str]) -> None:
    with pytest.raises(StreamFailed):
        reply(*payloads)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("eos", "other"),
    ],
)
def test_finish_reasons_are_mapped(reason: str, finish: str) -> None:
    assert reply(said("a"), finished(reason)).finish == finish


def test_a_finish_reason_may_come_with_the_last_text_and_an_empty_one_is_none() -> None:
    assert reply(chunk({"content": "a"}, ""), chunk({"content": "b"}, "length")).message.text == "ab"
    with pytest.raises(StreamFailed):
        reply(chunk({"content": "a"}, ""))


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_reply_that_the_server_gave_up_is_a_failure(reason: str) -> None:
    with pytest.raises(StreamFailed, match=reason):
        reply(said("a"), finished(reason))


def test_an_empty_reply_is_a_reply() -> None:
    assert reply(finished(), used(50, 0), DONE) == ModelReply(
        message=AssistantMessage(), usage=Usage(prompt_tokens=50, api_calls=1), finish="stop"
    )


def test_tool_calls_are_calls_whatever_the_finish_reason() -> None:
    for ending in (finished("stop"), finished("tool_calls"), DONE):
        made = reply(called(part("Read", '{"path":"a"}', index=0, call_id="x")), ending).message.tool_calls
        assert made == (ToolCall(id="x", name="Read", arguments='{"path":"a"}'),)


@pytest.mark.parametrize("empty", ["", " ", "\n"])
def test_empty_heartbeats_are_nothing(empty: str) -> None:
    stream, pieces = feed(empty, empty)
    assert (stream.events, pieces) == (0, [])


@pytest.mark.parametrize("choices", [{"choices": []}, {"choices": None}, {}])
def test_usage_is_found_with_any_form_of_no_choices_before_and_after_the_finish(choices: dict[str, object]) -> None:
    usage = json.dumps({**choices, "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
    for order in ([said("a"), finished(), usage, DONE], [usage, said("a"), finished()]):
        assert reply(*order).usage == Usage(prompt_tokens=7, completion_tokens=2, api_calls=1)


def test_usage_repeated_on_each_chunk_is_counted_once_by_its_last_value() -> None:
    chunks = [chunk({"content": "a"}, usage={"prompt_tokens": 9, "completion_tokens": n}) for n in (10, 50, 100)]
    ending = chunk({}, "stop", usage=None)
    assert reply(*chunks, ending, DONE).usage == Usage(prompt_tokens=9, completion_tokens=100, api_calls=1)


def test_usage_within_the_choice_is_read() -> None:
    choice = {"delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 4}}
    assert reply(json.dumps({"choices": [choice]})).usage == Usage(prompt_tokens=4, api_calls=1)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_with_the_name_of_its_field(field: str) -> None:
    stream, pieces = feed(chunk({field: "hm"}), chunk({field: "m", "content": ""}), said("a"), finished())
    assert pieces[:2] == [Piece(kind="thinking", text="hm"), Piece(kind="thinking", text="m")]
    assert stream.reply().message == AssistantMessage(text="a", reasoning="hmm", reasoning_field=field)


def test_reasoning_sent_under_two_names_is_read_once() -> None:
    both = chunk({"reasoning": "hm", "reasoning_content": "hm", "reasoning_details": [{"text": "hm"}]})
    assert reply(both, both, finished()).message.reasoning == "hmhm"


def test_a_refusal_and_the_text_parts_of_a_list_are_text() -> None:
    assert text_of(chunk({"content": None, "refusal": "I can't."})) == "I can't."
    assert text_of(chunk({"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text"}]})) == "a"


def test_an_emoji_cut_between_two_chunks_is_whole_again() -> None:
    halves = ['{"choices":[{"delta":{"content":"a\\ud83c"}}]}', '{"choices":[{"delta":{"content":"\\udf0db"}}]}']
    stream, pieces = feed(*halves, finished())
    assert [piece.text for piece in pieces] == ["a", "🌍b"]
    assert stream.reply().message.text == "a🌍b"
    assert text_of(halves[0]) == "a�"
    assert text_of(halves[1]) == "�b"


def test_numbers_that_are_no_json_in_fields_we_do_not_read_do_no_harm() -> None:
    assert text_of('{"choices":[{"delta":{"content":"a"},"logprobs":[-Infinity,NaN]}]}') == "a"


@pytest.mark.parametrize("broken", ['{"choices":[{"delta":{"content":"a', "{", "nonsense"])
def test_broken_json_is_a_stream_that_failed(broken: str) -> None:
    with pytest.raises(StreamFailed):
        reply(broken, finished())


@pytest.mark.parametrize(
    "wrong",
    [
        "42",
        "[" * 100_000,
        '{"x":' * 100_000,
        '"text"',
        "[]",
        '{"choices":{}}',
        '{"choices":[3]}',
        '{"choices":[{"delta":"a"}]}',
        '{"choices":[{"delta":{"content":5}}]}',
        '{"choices":[{"delta":{"tool_calls":{}}}]}',
        '{"choices":[{"delta":{"tool_calls":[{"index":"0"}]}}]}',
        '{"choices":[{"finish_reason":1}]}',
    ],
)
def test_wrong_types_are_a_bad_response(wrong: str) -> None:
    with pytest.raises(BadResponse):
        reply(said("a"), wrong, finished())


def test_what_can_not_be_read_after_the_end_is_no_failure() -> None:
    assert reply(said("a"), finished(), "{broken", "42").message.text == "a"
    assert reply(said("a"), DONE, "{broken", said("b")).message.text == "a"


@pytest.mark.parametrize("before", [[], [said("partial")], [said("a"), finished()]])
def test_an_error_in_the_stream_is_an_error_with_the_servers_words(before: list[str]) -> None:
    with pytest.raises(RateLimited, match="WORDS"):
        feed(*before, '{"error":{"message":"WORDS","code":429}}')
    with pytest.raises(ServerFailed, match="WORDS"):
        feed(*before, '{"error":"WORDS"}')
    with pytest.raises(Refused, match="WORDS"):
        feed(*before, '{"object":"error","message":"WORDS","code":400}')
    with pytest.raises(ServerFailed, match="WORDS"):
        feed(*before, '{"error":{"message":"WORDS"},"choices":[{"delta":{},"finish_reason":"error"}]}')


def test_an_event_named_error_is_an_error_whatever_it_holds() -> None:
    for data in ('{"message":"WORDS"}', "WORDS"):
        with pytest.raises(ServerFailed, match="WORDS"):
            ChatStream("m").feed(ServerSentEvent(data=data, name="error"))


def test_an_error_that_is_null_is_none() -> None:
    assert text_of(chunk({"content": "a"}, error=None)) == "a"


def test_a_reply_without_end_is_held_to_a_limit() -> None:
    stream = ChatStream("m")
    piece = chunk({"content": "x" * 100_000})
    with pytest.raises(BadResponse, match="limit"):
        for _ in range(MAX_REPLY_CHARACTERS // 100_000 + 1):
            stream.feed(ServerSentEvent(data=piece))


def read_body(data: bytes) -> tuple[ModelReply, list[Piece]]:
    stream = ChatStream("made_")
    pieces = stream.feed_body(data.decode())
    return stream.reply(), pieces


def test_a_whole_body_is_read_into_the_same_reply_as_a_stream() -> None:
    call = part("Read", '{"path":"a"}', call_id="x")
    message = {"role": "assistant", "content": "a", "reasoning_content": "hm", "tool_calls": [call]}
    usage = {"prompt_tokens": 30, "completion_tokens": 3}
    whole, pieces = read_body(body(message, "tool_calls", usage=usage))
    assert pieces == [Piece(kind="thinking", text="hm"), Piece(kind="text", text="a")]
    assert whole == reply(
        chunk({"reasoning_content": "hm"}), said("a"), called(call), finished("tool_calls"), used(30, 3), DONE
    )


def test_a_whole_body_needs_no_finish_reason() -> None:
    assert read_body(body({"content": "a"}, None))[0].finish == "other"


@pytest.mark.parametrize("data", [b"{}", b'{"choices":[]}', b'{"hello":"world"}', b"[]", b"3"])
def test_a_body_that_is_no_completion_is_a_bad_response(data: bytes) -> None:
    with pytest.raises(BadResponse):
        read_body(data)


def test_a_body_that_is_cut_is_a_stream_that_failed() -> None:
    with pytest.raises(StreamFailed):
        read_body(body({"content": "a"})[:-3])


def test_an_error_in_a_body_keeps_its_class() -> None:
    with pytest.raises(RateLimited, match="WORDS"):
        read_body(b'{"error":{"message":"WORDS","code":429}}')


def test_a_message_in_place_of_a_delta_is_read_and_one_that_repeats_the_deltas_is_not() -> None:
    message = '{"choices":[{"message":{"content":"ab"},"finish_reason":"stop"}]}'
    assert reply(message).message.text == "ab"
    assert reply(said("a"), said("b"), message).message.text == "ab"
