"""Encoders and decoders, made once.

Frames are msgpack (compact, typed); the wire's lines and stored items are JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from protocol.content import Message
from protocol.errors import FrameUndecodable
from protocol.frames import DownwardFrame, UpwardFrame

FrameType = TypeVar("FrameType")

_frame_encoder = msgspec.msgpack.Encoder()
_json_encoder = msgspec.json.Encoder()

upward_decoder: msgspec.msgpack.Decoder[UpwardFrame] = msgspec.msgpack.Decoder(UpwardFrame)
downward_decoder: msgspec.msgpack.Decoder[DownwardFrame] = msgspec.msgpack.Decoder(DownwardFrame)
message_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)

encode_frame_body = _frame_encoder.encode
"""A frame's message as msgpack bytes. Raises `UnicodeEncodeError` for text with lone surrogates: clean it first."""

encode_json = _json_encoder.encode
"""Anything of ours as one line of JSON, without a line end; never a raw newline in it."""


def decode_frames(
    decoder: msgspec.msgpack.Decoder[FrameType], frames: Iterable[tuple[int, bytes]], messages: list[FrameType]
) -> None:
    """Append the message of each of ``frames``, pairs of the frame's place in its stream and its body.

    Raises `FrameUndecodable` for the first that can't be decoded; the messages before it are appended.
    """
    offset, decode = 0, decoder.decode
    try:
        for offset, body in frames:  # noqa: B007 - the last of them is where it failed
            messages.append(decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FrameUndecodable(str(error), offset) from None


def clean_text(text: str) -> str:
    """``text`` with each lone surrogate replaced by U+FFFD, so that every encoder takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
