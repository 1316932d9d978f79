from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import FrameTooLarge
from protocol.framing import PREFIX_BYTES, FrameSplitter, frame

bodies = st.lists(st.binary(max_size=50), max_size=8)


@given(bodies, st.data())
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frame(body) for body in sent)
    splitter = FrameSplitter()
    received: list[tuple[int, bytes]] = []
    position = 0
    while position < len(stream):
        size = data.draw(st.integers(1, len(stream) - position))
        received += splitter.feed(stream[position : position + size])
        position += size
    assert [body for _, body in received] == sent
    assert splitter.pending == 0
    assert splitter.offset == len(stream)


@given(bodies.filter(bool))
def test_each_frame_is_returned_with_its_place_in_the_stream(sent: list[bytes]) -> None:
    stream = b"".join(frame(body) for body in sent)
    for offset, body in FrameSplitter().feed(stream):
        assert stream[offset + PREFIX_BYTES : offset + PREFIX_BYTES + len(body)] == body


def test_a_length_over_the_limit_is_refused_before_its_body_comes() -> None:
    splitter = FrameSplitter(limit=10)
    with pytest.raises(FrameTooLarge) as caught:
        splitter.feed((11).to_bytes(PREFIX_BYTES, "big"))
    assert (caught.value.size, caught.value.limit, caught.value.offset) == (11, 10, 0)


def test_the_frames_before_a_length_over_the_limit_are_returned_first() -> None:
    splitter = FrameSplitter(limit=10)
    good = frame(b"good")
    assert splitter.feed(good + (11).to_bytes(PREFIX_BYTES, "big")) == [(0, b"good")]
    with pytest.raises(FrameTooLarge) as caught:
        splitter.feed(b"")
    assert caught.value.offset == len(good)


def test_a_body_over_the_limit_is_not_framed() -> None:
    with pytest.raises(FrameTooLarge):
        frame(b"12345", limit=4)


def test_a_frame_that_is_not_whole_counts_as_pending() -> None:
    splitter = FrameSplitter()
    assert splitter.feed(frame(b"whole") + frame(b"half")[:-1]) == [(0, b"whole")]
    assert splitter.pending == PREFIX_BYTES + len(b"half") - 1
