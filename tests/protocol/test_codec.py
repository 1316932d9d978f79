from __future__ import annotations

import json
from typing import TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import (
    clean_text,
    decode_frames,
    downward_decoder,
    encode_frame_body,
    encode_json,
    message_decoder,
    upward_decoder,
)
from protocol.content import AssistantMessage, Message, Summary, ToolCall, ToolResult, UserMessage
from protocol.errors import FrameUndecodable
from protocol.frames import Cancel, Commit, Finished, Prompt, ToolCallOpened, UpwardFrame
from protocol.records import RunSummary, TextDelta
from protocol.usage import Usage

any_text = st.text(st.characters(codec=None), max_size=40)
text = st.text(max_size=40)
Incoming = TypeVar("Incoming")
calls = st.builds(ToolCall, id=text, name=text, arguments=text, fault=text)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(UserMessage, text=text),
    st.builds(AssistantMessage, text=text, reasoning=text, tool_calls=st.lists(calls, max_size=3).map(tuple)),
    st.builds(ToolResult, call_id=text, name=text, outcome=st.sampled_from(["success", "error"]), output=text),
    st.builds(Summary, text=text, replaces=st.integers(1, 100)),
)


def decode_frame(decoder: msgspec.msgpack.Decoder[Incoming], body: bytes, offset: int) -> Incoming:
    decoded: list[Incoming] = []
    decode_frames(decoder, [(offset, body)], decoded)
    (message,) = decoded
    return message


@given(any_text)
def test_cleaned_text_can_always_be_encoded_and_keeps_all_that_could_be(value: str) -> None:
    cleaned = clean_text(value)
    cleaned.encode()
    paired = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert cleaned == paired


@given(st.lists(messages, max_size=4).map(tuple))
def test_a_commit_survives_its_way_through_a_frame(items: tuple[Message, ...]) -> None:
    commit = Commit(number=1, messages=items, usage=Usage(api_calls=1), grant=1, iterations=2)
    assert decode_frame(upward_decoder, encode_frame_body(commit), 0) == commit


@given(messages)
def test_a_stored_message_is_read_back_as_it_was(message: Message) -> None:
    assert message_decoder.decode(encode_json(message)) == message


@given(text)
def test_a_line_never_holds_a_raw_line_end(value: str) -> None:
    line = encode_json(TextDelta(text=value))
    assert b"\n" not in line and b"\r" not in line
    assert json.loads(line) == {"type": "text_delta", "text": value}


@given(st.binary(max_size=60))
def test_garbage_is_a_typed_error_that_names_its_place(body: bytes) -> None:
    try:
        message = decode_frame(upward_decoder, body, 1234)
    except FrameUndecodable as error:
        assert error.offset == 1234
    else:
        assert decode_frame(upward_decoder, encode_frame_body(message), 0) == message


def test_the_messages_before_a_bad_frame_are_kept() -> None:
    good, decoded = TextDelta(text="x"), list[UpwardFrame]()
    with pytest.raises(FrameUndecodable) as caught:
        decode_frames(upward_decoder, [(0, encode_frame_body(good)), (7, b"bad"), (20, b"worse")], decoded)
    assert (decoded, caught.value.offset) == ([good], 7)


@pytest.mark.parametrize("message", [Prompt(text="x"), Cancel(reason="x")])
def test_a_worker_can_not_send_what_only_a_supervisor_may(message: Prompt | Cancel) -> None:
    with pytest.raises(FrameUndecodable):
        decode_frame(upward_decoder, encode_frame_body(message), 0)


def test_a_worker_can_not_speak_for_the_run() -> None:
    summary = RunSummary(
        success=True,
        response="",
        usage=Usage(),
        usage_by_agent={},
        model="",
        provider="",
        elapsed_ms=0,
        exit_code=0,
        error=None,
        uncertain_calls=0,
        agents=(),
    )
    with pytest.raises(FrameUndecodable):
        decode_frame(upward_decoder, encode_frame_body(summary), 0)


@pytest.mark.parametrize("message", [Finished(outcome="complete"), ToolCallOpened(call=ToolCall(id="1", name="Read"))])
def test_a_supervisor_can_not_send_what_only_a_worker_may(message: Finished | ToolCallOpened) -> None:
    with pytest.raises(FrameUndecodable):
        decode_frame(downward_decoder, encode_frame_body(message), 0)
