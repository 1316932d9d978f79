from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.providers.chat_wire import DONE, body, called, chunk, events, finished, part, said, used
from workers.providers.chat_reply import MAX_BODY_BYTES, ReplyReader
from workers.providers.provider import BadResponse, ModelReply, StreamFailed

ADDRESS = "http://127.0.0.1:9/v1/chat/completions"
PAYLOADS = [
    chunk({"reasoning_content": "hm 思"}),
    said("你好世界 "),
    said("🌍"),
    called(part("Read", '{"path":', index=0, call_id="x")),
    called(part(None, '"é"}', index=0)),
    finished("tool_calls"),
    used(7, 3),
    DONE,
]


def reader(content_type: str = "") -> ReplyReader:
    return ReplyReader(address=ADDRESS, content_type=content_type, made_id="made_")


def read(*pieces: bytes, content_type: str = "") -> tuple[ModelReply, str]:
    """The reply, and the text that was shown on the way."""
    reading = reader(content_type)
    shown = [each for piece in pieces for each in reading.feed(piece)] + reading.finish()
    return reading.reply(), "".join(piece.text for piece in shown if piece.kind == "text")


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_a_stream_cut_at_every_byte_gives_the_same_reply(line_end: str) -> None:
    stream = b"\xef\xbb\xbf: ping\n\n".replace(b"\n", line_end.encode()) + events(PAYLOADS, line_end)
    expected = read(events(PAYLOADS))
    assert expected[1] == expected[0].message.text == "你好世界 🌍"
    assert read(*(stream[at : at + 1] for at in range(len(stream)))) == expected
    for at in range(len(stream)):
        assert read(stream[:at], stream[at:]) == expected


def test_a_body_cut_at_every_byte_gives_the_same_reply() -> None:
    data = b"\xef\xbb\xbf \r\n " + body({"content": "你好"}, usage={"prompt_tokens": 7})
    expected = read(body({"content": "你好"}, usage={"prompt_tokens": 7}))
    assert expected[0].message.text == "你好"
    for at in range(len(data)):
        assert read(data[:at], data[at:]) == expected


NOISE = [b": ping\n\n", b":\n\n", b": PROCESSING\n", b"data:\n\n", b"id: 4\n", b"\n", b"retry: 10\n"]


@given(st.lists(st.sampled_from(NOISE), max_size=12), st.lists(st.integers(0, 5000), max_size=8))
def test_comments_ids_and_heartbeats_anywhere_change_nothing(noise: list[bytes], cuts: list[int]) -> None:
    parts = [events([payload]) for payload in PAYLOADS]
    for number, piece in enumerate(noise):
        parts.insert(number * 7 % (len(parts) + 1), piece)
    stream = b"".join(parts)
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    assert read(*(stream[start:end] for start, end in pairwise(places))) == read(events(PAYLOADS))


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json", "text/plain", ""])
def test_the_first_byte_decides_whatever_the_content_type_says(content_type: str) -> None:
    assert read(events([said("a"), finished()]), content_type=content_type)[0].message.text == "a"
    assert read(body({"content": "a"}), content_type=content_type)[0].message.text == "a"


def test_comments_heartbeats_and_blanks_are_no_progress() -> None:
    reading = reader()
    reading.feed(b": ping\n\n")
    reading.feed(b"data:\n\n")
    assert reading.progress == 0
    reading.feed(events([said("a")]))
    assert reading.progress == 1
    whole = reader()
    whole.feed(b"  \n")
    whole.feed(b"{")
    heard = whole.progress
    whole.feed(b" \n ")
    assert whole.progress == heard > 0


def test_the_last_event_needs_no_empty_line_behind_it() -> None:
    stream = events([said("a"), finished(), used(5, 1)]).rstrip()
    assert read(stream)[0].usage.prompt_tokens == 5


@pytest.mark.parametrize("page", [b"<html><h1>Sign in</h1></html>", b"\n<!DOCTYPE html><p>Sign in</p>", b"Sign in"])
def test_a_page_is_a_bad_response_that_names_the_address_and_its_words(page: bytes) -> None:
    with pytest.raises(BadResponse, match="Sign in") as caught:
        read(page, content_type="text/html; charset=utf-8")
    assert ADDRESS in str(caught.value)


def test_an_endless_page_is_not_read_to_its_end() -> None:
    reading = reader()
    with pytest.raises(BadResponse):
        for _ in range(100):
            reading.feed(b"<p>" + b"x" * 10_000)


@pytest.mark.parametrize("nothing", [b"", b" \n", b"\xef", b"\xef\xbb\xbf\n"])
def test_an_empty_body_is_a_stream_that_failed(nothing: bytes) -> None:
    with pytest.raises(StreamFailed):
        read(nothing)


@pytest.mark.parametrize("start", [b"data: ", b"{"])
def test_an_endless_line_or_body_is_refused(start: bytes) -> None:
    reading = reader()
    reading.feed(start)
    piece = b"x" * (1024 * 1024)
    with pytest.raises(BadResponse):
        for _ in range(MAX_BODY_BYTES // len(piece)):
            reading.feed(piece)
