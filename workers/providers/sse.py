"""Server-sent events, without IO.

Source: WHATWG HTML, "Server-sent events", 9.2.5 (parsing) and 9.2.6 (interpreting an event stream).
"""

from __future__ import annotations

import re

import msgspec

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""The longest line, and the most data of one event, that is taken."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_line_end = re.compile(rb"\r\n|\n|\r")


class EventTooLarge(Exception):
    """A line, or the data of one event, is over ``limit`` bytes. The reader is of no more use."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"an event of the stream is over the limit of {limit} bytes")
        self.limit = limit


class ServerSentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event. ``name`` is empty where the stream gave none; ``last_id`` is the last id the stream has set so far."""

    data: str
    name: str = ""
    last_id: str = ""


class LineSplitter:
    r"""Cuts bytes, fed in any pieces, into lines that end in ``\n``, ``\r\n`` or ``\r``.

    A line is handed over with its first end byte: after a ``\r`` nothing is waited for, a ``\n`` that follows it in the
    next piece is dropped. Each byte is looked at once, however small the pieces are.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0
        self._after_carriage_return = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that ``piece`` completes, without their ends. Raises `EventTooLarge`."""
        if self._after_carriage_return and piece:
            self._after_carriage_return = False
            piece = piece.removeprefix(b"\n")
        if not piece:
            return []
        self._after_carriage_return = piece.endswith(b"\r")
        lines = _line_end.split(piece)
        rest = lines.pop()
        if lines:
            lines[0] = self._complete(lines[0])
        self._keep(rest)
        if any(len(line) > self._limit for line in lines):
            raise EventTooLarge(self._limit)
        return lines

    def finish(self) -> bytes:
        """The last line, if no end followed it; empty otherwise."""
        return self._complete(b"")

    def _complete(self, last: bytes) -> bytes:
        self._keep(last)
        line = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return line

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
        if self._size > self._limit:
            raise EventTooLarge(self._limit)


class EventStreamReader:
    """Turns the bytes of an event stream, fed in any pieces, into its events.

    Text is decoded by whole lines, so a piece may end inside a character; invalid UTF-8 becomes U+FFFD. Comments and
    unknown fields are ignored. ``reconnect_ms`` is the last reconnection time the stream asked for, in milliseconds.
    """

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self.reconnect_ms: int | None = None
        self._limit = limit
        self._lines = LineSplitter(limit)
        self._at_start = True
        self._data: list[bytes] = []
        self._size = 0
        self._name = ""
        self._last_id = ""

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """The events that ``piece`` completes, in order. Raises `EventTooLarge`."""
        events: list[ServerSentEvent] = []
        for line in self._lines.feed(piece):
            event = self._take(line)
            if event is not None:
                events.append(event)
        return events

    def finish(self) -> list[ServerSentEvent]:
        """The event that the end of the stream leaves without its closing empty line, if there is one.

        The standard drops it. Some model servers close right behind their last line, and whether its data is whole
        shows in the data itself, so it is handed over.
        """
        unended = self._take(self._lines.finish())
        last = self._dispatch()
        return [event for event in (unended, last) if event is not None]

    def _take(self, line: bytes) -> ServerSentEvent | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        self._set_field(name, value.removeprefix(b" "))
        return None

    def _set_field(self, name: bytes, value: bytes) -> None:
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1
            if self._size > self._limit + 1:
                raise EventTooLarge(self._limit)
        elif name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._last_id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) <= 9:
            self.reconnect_ms = int(value)

    def _dispatch(self) -> ServerSentEvent | None:
        name, self._name = self._name, ""
        if not self._data:
            return None
        data = b"\n".join(self._data).decode("utf-8", "replace")
        self._data.clear()
        self._size = 0
        return ServerSentEvent(data=data, name=name, last_id=self._last_id)
