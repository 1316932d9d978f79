"""The adapter to servers that speak OpenAI's chat completions.

The shell around pure machines: `chat_request` builds the body, `chat_reply` reads the answer, `chat_errors` judges a
refusal. Here are the connection, the clocks, and the one thing that is learned: whether a server takes
``stream_options``.
"""

from __future__ import annotations

import math
import secrets
import time
import zlib
from collections.abc import Iterable

import trio

from protocol.agent_spec import ModelSettings
from workers.providers.chat_errors import error_for_status, presentable, read_error_body
from workers.providers.chat_reply import ReplyReader
from workers.providers.chat_request import request_body
from workers.providers.chat_stream import Piece
from workers.providers.http_transport import HttpResponse, HttpTransport, shown_address
from workers.providers.provider import (
    BadResponse,
    DeltaSink,
    ModelReply,
    ModelRequest,
    NetworkFailed,
    Provider,
    ProviderError,
    Refused,
    StreamFailed,
)
from workers.providers.retry_after import retry_after

ENDING_SECONDS = 2.0
"""How long a reply that is whole is read on for its usage and its end."""

CLOSING_SECONDS = 0.1
"""How long the end of the body is waited for after ``[DONE]``: if it comes, the connection serves the next call."""

ERROR_BODY_SECONDS = 5.0
"""How long the body of a failed request is read for the server's words."""

MAX_ERROR_BYTES = 64 * 1024


def make(settings: ModelSettings) -> Provider:
    """A provider for the server at ``settings.base_url``. Opens nothing: the first call does."""
    return OpenAIChat(settings)


class OpenAIChat:
    """One server, as `Provider` says."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._key = settings.api_key.strip()
        self._url = settings.base_url.rstrip("/") + "/chat/completions"
        self._address = shown_address(self._url)
        self._transport = HttpTransport(settings.connect_timeout)
        self._include_usage = True

    async def reply(self, request: ModelRequest, deltas: DeltaSink) -> ModelReply:
        """Make the call; see `Provider.reply`.

        A 400 whose body names ``stream_options`` is asked again once without that field, and so are all later calls.
        """
        try:
            reply = await self._call(request, deltas)
            if reply is None:
                self._include_usage = False
                reply = await self._call(request, deltas)
            if reply is None:
                raise BadResponse(f"{self._address} refuses a field that was not sent")
        except ProviderError as error:
            error.args = (presentable(str(error), self._key),)
            raise
        return reply

    async def aclose(self) -> None:
        """Close idle connections."""
        await self._transport.aclose()

    async def _call(self, request: ModelRequest, deltas: DeltaSink) -> ModelReply | None:
        """One request and its answer; None if the server does not know ``stream_options``, which we then sent."""
        asked_for_usage = request.streaming and self._include_usage
        body = request_body(self._settings, request, include_usage=asked_for_usage)
        clock = _CallClock(self._settings)
        reader: ReplyReader | None = None
        with clock.scope:
            async with self._transport.post(self._url, self._headers(), body) as response:
                if not 200 <= response.status < 300:
                    clock.stop()
                    failure = await self._failure(response, asked_for_usage)
                    if failure is None:
                        return None
                    raise failure
                clock.restart()
                reader = self._reader_of(response)
                await _read(response, reader, clock, deltas if request.streaming else None)
        if clock.scope.cancelled_caught and not (reader and reader.ended):
            raise clock.failure(self._address, begun=reader is not None)
        assert reader is not None  # the scope was left neither by its deadline nor by an error
        reply = reader.reply()
        if not request.streaming:
            _tell(_whole_pieces(reply), deltas)
        return reply

    def _headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if not (self._key.isascii() and (self._key.isprintable() or not self._key)):
            raise Refused(f"the API key holds characters that can't be sent{self._key_hint('; set ')}")
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        return headers

    def _key_hint(self, lead: str) -> str:
        return f"{lead}{self._settings.key_variable}" if self._settings.key_variable else ""

    def _reader_of(self, response: HttpResponse) -> ReplyReader:
        encoding = response.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            raise BadResponse(f"{self._address} answered in content encoding {encoding!r}, which was not asked for")
        content_type = response.headers.get("content-type", "")
        made_id = f"call_{secrets.token_hex(6)}_"
        return ReplyReader(address=self._address, content_type=content_type, made_id=made_id)

    async def _failure(self, response: HttpResponse, asked_for_usage: bool) -> ProviderError | None:
        """The error that an answer other than success stands for; None if only ``stream_options`` was too much."""
        status = response.status
        source = f"HTTP {status} from {self._address}"
        if 300 <= status < 400:
            target = shown_address(response.headers.get("location", ""))
            return Refused(f"{source}: redirects to {target}; not followed, the key would travel", status)
        body = await _error_body(response)
        if status == 400 and asked_for_usage and b"stream_options" in body:
            return None
        hint = self._key_hint("check the key in " if self._key else "no key was sent, set ")
        wait = retry_after(response.headers, time.time())
        return error_for_status(status, read_error_body(body), source=source, retry_after=wait, key_hint=hint)


class _CallClock:
    """The deadlines of one call, on trio's clock: one for all of it, one for each silence.

    Only what the server says counts against silence (see `ReplyReader.progress`): comments can be sent for ever.
    """

    def __init__(self, settings: ModelSettings) -> None:
        self._idle_timeout = settings.idle_timeout
        self._call_timeout = settings.call_timeout
        self._call_deadline = trio.current_time() + settings.call_timeout
        self.scope = trio.CancelScope()
        self.restart()

    def restart(self) -> None:
        """The server said something: its next silence begins."""
        self.scope.deadline = min(trio.current_time() + self._idle_timeout, self._call_deadline)

    def end_within(self, seconds: float) -> None:
        """The reply is whole: wait no longer than this for what may follow."""
        self.scope.deadline = min(trio.current_time() + seconds, self.scope.deadline)

    def stop(self) -> None:
        """The outcome is known: nothing is to be cut off any more."""
        self.scope.deadline = math.inf

    def failure(self, address: str, *, begun: bool) -> ProviderError:
        """The error for a deadline that passed, before the answer's headers or after them (``begun``)."""
        if self.scope.deadline >= self._call_deadline:
            words = f"{address}: the call took longer than {self._call_timeout:g} s; --call-timeout gives it more"
        else:
            words = f"{address}: silent for {self._idle_timeout:g} s; --idle-timeout gives it more"
        return StreamFailed(words) if begun else NetworkFailed(words)


async def _read(response: HttpResponse, reader: ReplyReader, clock: _CallClock, sink: DeltaSink | None) -> None:
    """Read the answer to its end; once the reply is whole, a lost connection or a deadline is an end too."""
    while True:
        try:
            data = await anext(response)
        except StopAsyncIteration:
            _tell(reader.finish(), sink)
            return
        except StreamFailed:
            if reader.ended:
                return
            raise
        heard, had_ended, was_complete = reader.progress, reader.ended, reader.complete
        _tell(reader.feed(data), sink)
        if reader.complete and not was_complete:
            clock.end_within(CLOSING_SECONDS)
        elif reader.ended and not had_ended:
            clock.end_within(ENDING_SECONDS)
        elif reader.progress > heard and not reader.ended:
            clock.restart()


def _tell(pieces: Iterable[Piece], sink: DeltaSink | None) -> None:
    if sink is None:
        return
    for piece in pieces:
        if piece.kind == "text":
            sink.text(piece.text)
        else:
            sink.thinking(piece.text)


def _whole_pieces(reply: ModelReply) -> list[Piece]:
    thinking = Piece(kind="thinking", text=reply.message.reasoning)
    text = Piece(kind="text", text=reply.message.text)
    return [piece for piece in (thinking, text) if piece.text]


async def _error_body(response: HttpResponse) -> bytes:
    """What can be had of the body in bounded time, bounded in size, readable."""
    body = bytearray()
    with trio.move_on_after(ERROR_BODY_SECONDS):
        try:
            async for data in response:
                body += data
                if len(body) >= MAX_ERROR_BYTES:
                    break
        except StreamFailed:
            pass  # the status is known, the words are not worth a failure of their own
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return bytes(body[:MAX_ERROR_BYTES])
    return _decompressed(bytes(body))


def _decompressed(body: bytes) -> bytes:
    """The start of a gzip or deflate body; empty for any other encoding."""
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(body, MAX_ERROR_BYTES)
    except zlib.error:
        return b""
