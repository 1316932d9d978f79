from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.providers.sse import EventStreamReader, EventTooLarge, ServerSentEvent

SAMPLE = (
    "\ufeff: hello\n\ndata: 你好\ndata: 🌍\n\nevent: error\nid: 7\ndata:no space\nretry: 1500\n\n"
    ":\n: PROCESSING\nunknown: field\ndata\n\ndata:  two blanks\n\nevent: lost\n\ndata: last\n\n"
)
SAMPLE_EVENTS = [
    ServerSentEvent(data="你好\n🌍"),
    ServerSentEvent(data="no space", name="error", last_id="7"),
    ServerSentEvent(data="", last_id="7"),
    ServerSentEvent(data=" two blanks", last_id="7"),
    ServerSentEvent(data="last", last_id="7"),
]


def read(*pieces: bytes) -> list[ServerSentEvent]:
    reader = EventStreamReader()
    found = [event for piece in pieces for event in reader.feed(piece)]
    return found + reader.finish()


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_every_cut_of_the_stream_gives_the_same_events(line_end: str) -> None:
    stream = SAMPLE.replace("\n", line_end).encode()
    assert read(stream) == SAMPLE_EVENTS
    assert read(*(stream[at : at + 1] for at in range(len(stream)))) == SAMPLE_EVENTS
    for at in range(len(stream)):
        assert read(stream[:at], stream[at:]) == SAMPLE_EVENTS


@given(
    lines=st.lists(st.sampled_from(["data: a", "data: é🌍", "data", ": c", "id: 1", "event: x", "", "", "junk"])),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    cuts=st.lists(st.integers(0, 200)),
)
def test_pieces_and_line_ends_do_not_change_the_events(lines: list[str], line_end: str, cuts: list[int]) -> None:
    plain = "".join(line + "\n" for line in lines).encode()
    # The kinds are not mixed within a stream: a "\r" and the "\n" of an empty line behind it would be one line end.
    stream = plain.replace(b"\n", line_end.encode())
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    assert read(*(stream[start:end] for start, end in pairwise(places))) == read(plain)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_any_bytes_are_read_without_an_error_and_alike_however_they_are_cut(stream: bytes, at: int) -> None:
    assert read(stream[:at], stream[at:]) == read(stream)


def test_an_event_comes_with_its_last_byte_and_not_later() -> None:
    reader = EventStreamReader()
    assert reader.feed(b"data: x\r\n\r") == [ServerSentEvent(data="x")]
    assert reader.feed(b"\n") == []


def test_an_event_without_its_empty_line_is_handed_over_at_the_end() -> None:
    assert read(b"data: [DONE]\n") == [ServerSentEvent(data="[DONE]")]
    assert read(b"data: a\n\ndata: [DONE]") == [ServerSentEvent(data="a"), ServerSentEvent(data="[DONE]")]


def test_retry_is_kept_only_if_it_is_a_whole_number() -> None:
    reader = EventStreamReader()
    reader.feed(b"retry: 1500\nretry: soon\nretry: 99999999999999\n")
    assert reader.reconnect_ms == 1500


def test_an_id_with_a_nul_is_ignored() -> None:
    assert read(b"id: 1\ndata: a\n\nid: 2\0\ndata: b\n\n")[1].last_id == "1"


def test_only_the_first_byte_order_mark_is_dropped() -> None:
    mark = "\ufeff".encode()
    assert read(mark + b"data: a\n\n") == [ServerSentEvent(data="a")]
    assert read(mark + mark + b"data: a\n\n") == []
    assert read(b"data: a\n\n" + mark + b"data: b\n\n") == [ServerSentEvent(data="a")]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_line_over_the_limit_is_refused_in_pieces_of_any_size(size: int) -> None:
    reader = EventStreamReader(limit=20)
    assert reader.feed(b"data: " + b"x" * 14 + b"\n\n")[0].data == "x" * 14
    line = b"data: " + b"x" * 15 + b"\n\n"
    with pytest.raises(EventTooLarge):
        for at in range(0, len(line), size):
            reader.feed(line[at : at + size])


def test_an_event_of_many_short_lines_is_held_to_the_same_limit() -> None:
    reader = EventStreamReader(limit=100)
    with pytest.raises(EventTooLarge):
        for _ in range(60):
            reader.feed(b"data: x\n")


def test_a_long_line_in_small_pieces_costs_linear_time() -> None:
    def cost(size: int) -> float:
        reader = EventStreamReader()
        begun = time.process_time()
        for _ in range(size // 16):
            reader.feed(b"x" * 16)
        return time.process_time() - begun

    small = min(cost(100_000) for _ in range(3))
    assert min(cost(3_100_000) for _ in range(3)) < small * 16 * 5  # quadratic would be 256 times
