"""JSON-RPC 2.0 with one object on each line, for the side that serves: without IO.

Whatever a peer sends becomes a message or a `Malformed`, which says how to answer it. Source: JSON-RPC 2.0
specification; Agent Client Protocol, "Transports".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec

from protocol.codec import clean_text, encode_json

MAX_LINE_BYTES = 32 * 1024 * 1024
"""The longest line that is taken, without its end."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

RequestId: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | str | None
"""Typed: ``"1"`` is not ``1``, ``true`` is no id, null and 0 are ids like any other."""

Decoded = TypeVar("Decoded")


class ErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request failed. ``message`` is a sentence for a person."""

    code: int
    message: str


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The peer wants an answer under ``id``; `decode` reads ``params``."""

    id: RequestId
    method: str
    params: msgspec.Raw


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """The peer tells us something and wants no answer."""

    method: str
    params: msgspec.Raw


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request of ours: ``result``, or ``error`` if it is not None."""

    id: RequestId
    result: msgspec.Raw
    error: ErrorObject | None = None


class Malformed(msgspec.Struct, frozen=True, kw_only=True):
    """A line that is none of the above. It is answered with ``error`` under ``id``, null where none can be read."""

    id: RequestId
    error: ErrorObject


Incoming: TypeAlias = Request | Notification | Response | Malformed


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    jsonrpc: Literal["2.0"]
    id: RequestId | msgspec.UnsetType = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


class _OnlyId(msgspec.Struct, frozen=True, kw_only=True):
    id: RequestId = None


class LineSplitter:
    """Cuts a stream of bytes into lines, in time linear in its length and in bounded memory."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """The lines that end in ``data``, without their ends; None for one over the limit, whose bytes are dropped."""
        *ended, rest = data.split(b"\n")
        for piece in ended:
            self._take(piece)
            yield self._line()
        self._take(rest)

    def finish(self) -> bytes | None:
        """What came after the last line end; empty if that was nothing, None if it was too long."""
        return self._line()

    def _take(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            self._pieces.clear()
        elif piece:
            self._pieces.append(piece)

    def _line(self) -> bytes | None:
        line = b"".join(self._pieces) if self._size <= self._limit else None
        self._pieces.clear()
        self._size = 0
        return line


def read_message(line: bytes) -> Incoming:
    """The message on a line that is not blank. Never raises; a batch is `Malformed`, as the protocol has none."""
    try:
        envelope = decode(line, _Envelope)
    except msgspec.ValidationError as error:
        return _malformed(INVALID_REQUEST, f"not a JSON-RPC 2.0 message: {error}", _id_in(line))
    except msgspec.DecodeError as error:
        return _malformed(PARSE_ERROR, f"not JSON: {error}")
    if isinstance(envelope.method, str):
        if isinstance(envelope.id, msgspec.UnsetType):
            return Notification(method=envelope.method, params=envelope.params)
        return Request(id=envelope.id, method=envelope.method, params=envelope.params)
    if isinstance(envelope.id, msgspec.UnsetType) or not (bytes(envelope.result) or bytes(envelope.error)):
        return _malformed(INVALID_REQUEST, "a message has a method, or the id and the result or error of an answer")
    return Response(id=envelope.id, result=envelope.result, error=_error_in(envelope.error))


def decode(data: bytes | msgspec.Raw, kind: type[Decoded]) -> Decoded:
    """``data`` as ``kind``; raises `msgspec.DecodeError`, of which `msgspec.ValidationError` is the case of good JSON.

    Half surrogates, which the strings of JavaScript may hold, become U+FFFD.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if isinstance(error, msgspec.ValidationError):
            raise
        mended = _without_half_surrogates(bytes(data))
        if mended is None:
            raise msgspec.DecodeError(str(error)) from None
    return msgspec.json.decode(mended, type=kind)


def _without_half_surrogates(data: bytes) -> str | None:
    try:
        return clean_text(json.dumps(json.loads(data), ensure_ascii=False))
    except (ValueError, RecursionError):
        return None


def _id_in(line: bytes) -> RequestId:
    try:
        return decode(line, _OnlyId).id
    except msgspec.DecodeError:
        return None


def _error_in(raw: msgspec.Raw) -> ErrorObject | None:
    if not bytes(raw) or bytes(raw) == b"null":
        return None
    try:
        return decode(raw, ErrorObject)
    except msgspec.DecodeError:
        return ErrorObject(code=INTERNAL_ERROR, message="the peer sent an error that can't be read")


def _malformed(code: int, message: str, answered: RequestId = None) -> Malformed:
    return Malformed(id=answered, error=ErrorObject(code=code, message=message))


# -- lines to send, their ends included -------------------------------------------------------------------------------


def request_line(number: int, method: str, params: msgspec.Struct) -> bytes:
    """A request of ours."""
    return b'{"jsonrpc":"2.0","id":%d,"method":%s,"params":%s}\n' % (number, encode_json(method), encode_json(params))


def notification_line(method: str, params: msgspec.Struct) -> bytes:
    """A notification of ours."""
    return b'{"jsonrpc":"2.0","method":%s,"params":%s}\n' % (encode_json(method), encode_json(params))


def result_line(answered: RequestId, result: msgspec.Struct) -> bytes:
    """The answer to the request ``answered``."""
    return b'{"jsonrpc":"2.0","id":%s,"result":%s}\n' % (encode_json(answered), encode_json(result))


def error_line(answered: RequestId, error: ErrorObject) -> bytes:
    """The refusal of the request ``answered``."""
    return b'{"jsonrpc":"2.0","id":%s,"error":%s}\n' % (encode_json(answered), encode_json(error))
