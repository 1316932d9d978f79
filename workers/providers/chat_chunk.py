"""The JSON of chat completions as servers really send it, read into structs.

One shape serves both the chunks of a stream (``delta``) and a whole body (``message``). Everything is optional; what
is there must have the right type. Fields whose type differs between servers are taken as they come (``object``) and
judged where they are used. Source: the OpenAI API reference, "Chat", and what compatible servers make of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from workers.providers.provider import BadResponse


class BrokenJson(Exception):
    """The text is not JSON: it was cut off or garbled on its way."""


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a content that comes as a list; only those of type ``text`` have a text."""

    type: str = ""
    text: str | None = None


Content: TypeAlias = str | list[ContentPart] | None


class FunctionPart(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a call: its name or a part of it; its arguments as text, a part of the text, or an object."""

    name: str | None = None
    arguments: object = None


class ToolCallPart(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one tool call. ``index`` says which, where the server sends one."""

    index: int | None = None
    id: str | None = None
    function: FunctionPart | None = None

    @property
    def name(self) -> str:
        """The name or the part of it that this piece holds, empty for none."""
        return (self.function.name if self.function else None) or ""

    @property
    def arguments_text(self) -> str:
        """The piece of the arguments' text, empty for none; an object is its JSON. Raises `BadResponse` for others."""
        value = self.function.arguments if self.function else None
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        if isinstance(value, Mapping):
            return json.dumps(value)
        raise BadResponse("the server's answer is no chat completion: the arguments of a tool call are no text")


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to the reply, or the whole of it. ``refusal`` is what a model says instead of ``content``."""

    content: Content = None
    refusal: str | None = None
    reasoning_content: object = None
    reasoning: object = None
    tool_calls: list[ToolCallPart] | None = None

    @property
    def text(self) -> str:
        """The text of the content and the refusal."""
        content = self.content or ""
        if isinstance(content, list):
            content = "".join(part.text or "" for part in content if part.type == "text")
        return content + (self.refusal or "")


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One alternative of the reply: we ask for one and read the first."""

    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    usage: object = None


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream, or a whole body. ``error``, or an ``object`` that is ``error``, is a failure."""

    choices: list[Choice] | None = None
    usage: object = None
    error: object = None
    object_name: object = msgspec.field(default=None, name="object")


_chunk_decoder = msgspec.json.Decoder(Chunk)


def decode_chunk(data: str) -> Chunk:
    """Read one JSON text. Raises `BrokenJson` for what is no JSON, `BadResponse` for JSON of another shape."""
    try:
        return _chunk_decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _wrong_shape(error) from None
    except RecursionError:
        raise BadResponse("the server's answer is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeEncodeError):
        pass
    # The lenient reader takes what the fast one refuses: lone surrogates (an emoji cut between two chunks) and NaN.
    try:
        return msgspec.convert(decode_json(data), Chunk)
    except msgspec.ValidationError as error:
        raise _wrong_shape(error) from None


def decode_json(data: str) -> object:
    """Any JSON value, read leniently. Raises `BrokenJson`."""
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BrokenJson(str(error)) from None
    return value


def _wrong_shape(error: msgspec.ValidationError) -> BadResponse:
    return BadResponse(f"the server's answer is no chat completion: {error}")
