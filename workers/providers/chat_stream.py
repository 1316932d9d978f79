"""Assembles one reply from the events of a chat-completions stream, or from a whole body; without IO."""

from __future__ import annotations

from typing import Literal

import msgspec

from protocol.codec import clean_text
from protocol.content import AssistantMessage
from protocol.usage import Usage
from workers.providers.chat_chunk import BrokenJson, Choice, Chunk, Delta, decode_chunk, decode_json
from workers.providers.chat_errors import ServerError, error_in_stream, read_error
from workers.providers.chat_tool_calls import ToolCallAssembly
from workers.providers.chat_usage import read_usage
from workers.providers.provider import BadResponse, FinishReason, ModelReply, StreamFailed
from workers.providers.sse import ServerSentEvent

MAX_REPLY_CHARACTERS = 4 * 1024 * 1024
"""Of text, reasoning and arguments together: so that a reply always fits a frame."""

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""The fields that reasoning text comes in; some servers fill both with the same text, the first is read."""

_DONE = "[DONE]"

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}

_BROKEN_OFF = frozenset({"error", "abort", "insufficient_system_resource"})
"""Finish reasons by which servers say that they could not go on."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Text that a client may see at once; never empty, free of lone surrogates."""

    kind: Literal["text", "thinking"]
    text: str


class TextJoiner:
    """Collects a text whose pieces may be cut between the two halves of a surrogate pair."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._half = ""

    def add(self, piece: str) -> str:
        """What of the text can be shown now."""
        piece = self._half + piece
        self._half = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        shown = clean_text(piece)
        self._pieces.append(shown)
        return shown

    def whole(self) -> str:
        """All of the text; a half that never met its other half is U+FFFD."""
        return "".join(self._pieces) + clean_text(self._half)


class ChatStream:
    """One reply while it comes in.

    The end of a reply is a finish reason or ``[DONE]`` (source: the v1 wire contract, "How the model is called").
    ``ended`` says that one of them came: from then on a broken connection is no failure, but usage may still follow.
    ``complete`` says that nothing more is to be expected. ``events`` counts what the server really said: comments and
    empty heartbeats are not among it.
    """

    def __init__(self, made_id: str) -> None:
        """``made_id`` as in `ToolCallAssembly`."""
        self.ended = False
        self.complete = False
        self.events = 0
        self._text = TextJoiner()
        self._reasoning = TextJoiner()
        self._reasoning_field = ""
        self._calls = ToolCallAssembly(made_id)
        self._finish: FinishReason = "other"
        self._usage = Usage(api_calls=1)
        self._characters = 0

    def feed(self, event: ServerSentEvent) -> list[Piece]:
        """Take one event; returns what of the reply is new.

        Raises `StreamFailed` for broken JSON, `BadResponse` for wrong types, and what `error_in_stream` makes of an
        error in the stream. Once the reply has ended, what can't be read is ignored.
        """
        data = event.data.strip()
        if not data or self.complete:
            return []
        self.events += 1
        if data == _DONE:
            self.ended = self.complete = True
            return []
        if event.name == "error":
            raise error_in_stream(_error_event(data))
        try:
            chunk = decode_chunk(data)
        except BrokenJson as error:
            if self.ended:
                return []
            raise StreamFailed(f"an event of the reply is broken JSON: {error}") from None
        except BadResponse:
            if self.ended:
                return []
            raise
        return self._take(chunk, data)

    def feed_body(self, body: str) -> list[Piece]:
        """Take a whole body instead of events. Raises as `feed` does, and `BadResponse` for one without a choice."""
        self.events += 1
        try:
            chunk = decode_chunk(body)
        except BrokenJson as error:
            raise StreamFailed(f"the reply is broken JSON: {error}") from None
        pieces = self._take(chunk, body)
        if not chunk.choices:
            raise BadResponse(f"the server's answer is no chat completion, it has no choices: {body}")
        self.ended = self.complete = True
        return pieces

    def reply(self) -> ModelReply:
        """The reply. Raises `StreamFailed` if it has not ended: a partial one is thrown away."""
        if not self.ended:
            raise StreamFailed("the reply broke off: no finish reason and no [DONE] before its end")
        message = AssistantMessage(
            text=self._text.whole(),
            reasoning=self._reasoning.whole(),
            reasoning_field=self._reasoning_field,
            tool_calls=self._calls.finish(self._finish),
        )
        return ModelReply(message=message, usage=self._usage, finish=self._finish)

    def _take(self, chunk: Chunk, data: str) -> list[Piece]:
        if chunk.error or chunk.object_name == "error":
            raise error_in_stream(_error_event(data))
        self._usage = read_usage(chunk.usage) or self._usage
        if not chunk.choices:
            return []
        choice = chunk.choices[0]
        self._usage = read_usage(choice.usage) or self._usage
        pieces = self._take_delta(choice.delta or self._whole_message(choice) or Delta())
        if choice.finish_reason:
            self._end(choice.finish_reason)
        return pieces

    def _whole_message(self, choice: Choice) -> Delta | None:
        """The message of a chunk without a delta; a closing chunk that says all of it again is not read twice."""
        return choice.message if self._characters == 0 else None

    def _take_delta(self, delta: Delta) -> list[Piece]:
        pieces: list[Piece] = []
        thinking = self._reasoning.add(self._count(self._reasoning_of(delta)))
        if thinking:
            pieces.append(Piece(kind="thinking", text=thinking))
        text = self._text.add(self._count(delta.text))
        if text:
            pieces.append(Piece(kind="text", text=text))
        if delta.tool_calls:
            for part in delta.tool_calls:
                self._count(part.arguments_text)
            self._calls.feed(delta.tool_calls)
        return pieces

    def _reasoning_of(self, delta: Delta) -> str:
        fields = (self._reasoning_field,) if self._reasoning_field else REASONING_FIELDS
        for name in fields:
            value = delta.reasoning_content if name == "reasoning_content" else delta.reasoning
            if isinstance(value, str) and value:
                self._reasoning_field = name
                return value
        return ""

    def _count(self, text: str) -> str:
        self._characters += len(text)
        if self._characters > MAX_REPLY_CHARACTERS:
            raise BadResponse(f"the reply is over the limit of {MAX_REPLY_CHARACTERS} characters")
        return text

    def _end(self, finish_reason: str) -> None:
        if finish_reason in _BROKEN_OFF:
            raise StreamFailed(f"the server broke the reply off with finish reason {finish_reason!r}")
        self._finish = _FINISH.get(finish_reason, "other")
        self.ended = True


def _error_event(data: str) -> ServerError:
    try:
        return read_error(decode_json(data))
    except BrokenJson:
        return read_error(data)
