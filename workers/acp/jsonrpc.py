"""JSON-RPC 2.0 over lines, as the Agent Client Protocol uses it on a process's standard streams.

A line that begins with ``{`` is a message and must be JSON; all else is noise: banners, log lines, JSON of another
kind. Source: JSON-RPC 2.0 specification; Agent Client Protocol, "Transports".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypeAlias, cast

import msgspec

MAX_LINE_BYTES = 16 * 1024 * 1024
"""The longest line that is taken, without its end."""

METHOD_NOT_FOUND = -32601
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
AUTHENTICATION_REQUIRED = -32000
"""Error codes of JSON-RPC; the last is the Agent Client Protocol's."""

RequestId: TypeAlias = int | str | None
"""Typed: ``"1"`` is not ``1``, ``true`` is neither, null is an id like any other, and so is 0."""

Params: TypeAlias = dict[str, object]


class LineTooLong(Exception):
    """A line has more bytes than may be."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the agent wrote a line of more than {limit} bytes")


class NotJson(Exception):
    """A line begins like a message but is not JSON."""


class Request(msgspec.Struct, frozen=True):
    """The other side wants an answer under ``id``. ``params`` are empty where it sent none by name."""

    id: RequestId
    method: str
    params: Params


class Notification(msgspec.Struct, frozen=True):
    """The other side tells us something."""

    method: str
    params: Params


class Response(msgspec.Struct, frozen=True):
    """The answer to our request ``id``."""

    id: RequestId
    result: object


class ErrorResponse(msgspec.Struct, frozen=True):
    """Our request ``id`` failed. ``code`` is 0 where the other side sent none that is a number.

    ``message`` has the details behind it, where they are words: many agents call all that goes wrong an internal error.
    """

    id: RequestId
    code: int
    message: str


Message: TypeAlias = Request | Notification | Response | ErrorResponse


class LineSplitter:
    """Cuts a stream of bytes into lines, in time linear in its length, whatever the size of its pieces."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._unfinished: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that end within ``data``, without their ends; to be used up before the next call.

        Raises `LineTooLong` as soon as a line is, after the lines before it.
        """
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._add(end)
            line = b"".join(self._unfinished)
            self._unfinished.clear()
            self._size = 0
            yield line
        self._add(rest)

    def finish(self) -> bytes | None:
        """The last line, where the stream ended without a line end; None where there is none."""
        line = b"".join(self._unfinished)
        self._unfinished.clear()
        self._size = 0
        return line or None

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            raise LineTooLong(self._limit)
        if piece:
            self._unfinished.append(piece)


def parse(line: bytes) -> Message | None:
    """The message that ``line`` is, None for noise. Raises `NotJson` for one that can't be read."""
    text = line.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n")
    if not text.startswith(b"{"):
        return None
    try:
        # The standard library's reader: it alone takes the half surrogates that cut-off JavaScript strings hold.
        value: object = json.loads(text.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise NotJson("the agent wrote a line that begins like JSON and is none") from None
    return _classify(cast("dict[str, object]", value))


def is_same_id(one: object, other: object) -> bool:
    """Whether two ids are the same, type and all."""
    return type(one) is type(other) and one == other


def request_line(number: int, method: str, params: Params) -> bytes:
    """A request as a line, its end included."""
    return _line({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def notification_line(method: str, params: Params) -> bytes:
    """A notification as a line."""
    return _line({"jsonrpc": "2.0", "method": method, "params": params})


def result_line(answered: RequestId, value: Params) -> bytes:
    """The answer to the request ``answered`` as a line."""
    return _line({"jsonrpc": "2.0", "id": answered, "result": value})


def error_line(answered: RequestId, code: int, message: str) -> bytes:
    """The refusal of the request ``answered`` as a line."""
    return _line({"jsonrpc": "2.0", "id": answered, "error": {"code": code, "message": message}})


def _line(message: Params) -> bytes:
    # ASCII only, so that an id with half a surrogate goes back as it came.
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _refuse_constant(name: str) -> object:
    raise ValueError(name)


def _classify(value: dict[str, object]) -> Message | None:
    """What kind of message an object is; None where it is none, as a log line in JSON."""
    if value.get("jsonrpc") != "2.0":
        return None
    has_id, given = "id" in value, value.get("id")
    if not (given is None or isinstance(given, str) or type(given) is int):
        return None
    method = value.get("method")
    if isinstance(method, str):
        params = value.get("params")
        named = cast("Params", params) if isinstance(params, dict) else {}
        return Request(given, method, named) if has_id else Notification(method, named)
    if not has_id or method is not None:
        return None
    if (failure := value.get("error")) is not None:
        return _error_response(given, failure)
    return Response(given, value["result"]) if "result" in value else None


def _error_response(answered: RequestId, failure: object) -> ErrorResponse:
    fields = cast("dict[str, object]", failure) if isinstance(failure, dict) else {"message": failure}
    code, message, data = fields.get("code"), fields.get("message"), fields.get("data")
    message = message if isinstance(message, str) else "no reason was given"
    details = cast("dict[str, object]", data).get("details") if isinstance(data, dict) else data
    if isinstance(details, str) and details.strip() not in message:
        message = f"{message}: {details.strip()}"
    return ErrorResponse(answered, code if type(code) is int else 0, message)
