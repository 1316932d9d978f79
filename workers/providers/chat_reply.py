"""Reads the bytes of a 200 answer, whichever of its two forms the server chose; without IO.

A server that can't stream answers a streamed request with one JSON body, and some gateways stream always; content types
are wrong often enough that the first byte decides: ``{`` begins a body, ``<`` a page, the rest is an event stream.
"""

from __future__ import annotations

from typing import Literal

from workers.providers.chat_errors import visible_text
from workers.providers.chat_stream import ChatStream, Piece
from workers.providers.provider import BadResponse, ModelReply, StreamFailed
from workers.providers.sse import EventStreamReader, EventTooLarge, ServerSentEvent

MAX_BODY_BYTES = 64 * 1024 * 1024
"""The most that is read of one answer, in bytes."""

_MAX_PAGE_BYTES = 64 * 1024  # of what is no reply, enough is read to show a person its first words
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FIRST_OF_EVENTS = b":deir"  # a comment, data, event, id, retry


class ReplyReader:
    """One answer while its bytes come in, in any pieces. ``address`` and ``content_type`` are for what is no reply."""

    def __init__(self, *, address: str, content_type: str, made_id: str) -> None:
        """``made_id`` as in `ToolCallAssembly`."""
        self._address = address
        self._content_type = content_type.partition(";")[0].strip().lower()
        self._stream = ChatStream(made_id)
        self._events = EventStreamReader()
        self._form: Literal["unknown", "events", "body", "page"] = "unknown"
        self._kept: list[bytes] = []
        self._size = 0
        self._sounds = 0

    @property
    def ended(self) -> bool:
        """Whether the reply is whole: what follows can only be its usage."""
        return self._stream.ended

    @property
    def complete(self) -> bool:
        """Whether nothing more is to be expected."""
        return self._stream.complete

    @property
    def progress(self) -> int:
        """Grows whenever the server said something; comments, heartbeats and blanks are nothing."""
        return self._sounds + self._stream.events

    def feed(self, piece: bytes) -> list[Piece]:
        """Take the next bytes; returns what of the reply is new.

        Raises what `ChatStream.feed` raises, and `BadResponse` for an answer that is too large or no reply at all.
        """
        self._size += len(piece)
        if self._size > MAX_BODY_BYTES:
            raise BadResponse(f"{self._address} answered with more than {MAX_BODY_BYTES} bytes")
        if self._form == "unknown":
            self._kept.append(piece)
            piece = self._recognise()
        if self._form == "events":
            return self._take_events(self._split(piece))
        if self._form in ("body", "page"):
            self._keep(piece)
        return []

    def finish(self) -> list[Piece]:
        """Take the end of the body; returns and raises as `feed` does."""
        if self._form == "events":
            return self._take_events(self._events.finish())
        if self._form == "unknown":
            raise StreamFailed(f"{self._address} answered with an empty body")
        if self._form == "page":
            raise self._no_reply()
        return self._stream.feed_body(b"".join(self._kept).decode("utf-8", "replace"))

    def reply(self) -> ModelReply:
        """The whole reply. Raises `StreamFailed` if it has not ended."""
        return self._stream.reply()

    def _recognise(self) -> bytes:
        """Choose the form by the first byte that is not blank; returns the bytes so far once it is chosen."""
        start = b"".join(self._kept)
        self._kept = [start]
        if _BYTE_ORDER_MARK.startswith(start[: len(_BYTE_ORDER_MARK)]) and len(start) < len(_BYTE_ORDER_MARK):
            return b""
        said = start.removeprefix(_BYTE_ORDER_MARK).lstrip()
        if not said:
            self._kept = [start[: len(_BYTE_ORDER_MARK)]]
            return b""
        first = said[:1]
        if first in (b"{", b"["):
            self._form = "body"
        elif first != b"<" and (first in _FIRST_OF_EVENTS or self._content_type == "text/event-stream"):
            self._form = "events"
        else:
            self._form = "page"
        self._kept = []
        return start if self._form == "events" else said

    def _split(self, piece: bytes) -> list[ServerSentEvent]:
        try:
            return self._events.feed(piece)
        except EventTooLarge as error:
            raise BadResponse(f"{self._address}: {error}") from None

    def _take_events(self, events: list[ServerSentEvent]) -> list[Piece]:
        return [piece for event in events for piece in self._stream.feed(event)]

    def _keep(self, piece: bytes) -> None:
        self._kept.append(piece)
        if piece.strip():
            self._sounds += 1
        if self._form == "page" and self._size > _MAX_PAGE_BYTES:
            raise self._no_reply()

    def _no_reply(self) -> BadResponse:
        kind = self._content_type or "no content type"
        words = visible_text(b"".join(self._kept)[:_MAX_PAGE_BYTES].decode("utf-8", "replace"))
        return BadResponse(f"{self._address} does not answer as a model server: {kind}, {words!r}")
