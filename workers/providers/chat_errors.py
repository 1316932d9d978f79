"""What a model server's error is: its class from status and code, its words kept for a person.

The class never comes from words in the text: a 400 that speaks of a rate limit is a 400. The one exception is a prompt
that is too long, for which many servers have no code of their own.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import cast

import msgspec

from protocol.codec import clean_text
from workers.providers.chat_chunk import BrokenJson, decode_json
from workers.providers.provider import (
    BadResponse,
    ContextOverflow,
    ProviderError,
    RateLimited,
    ServerFailed,
    refused,
)

MAX_WORDS = 2048
"""What a person is shown of an error, in characters."""

_SHORTEST_KEY = 4  # a shorter one is no secret, and would mask half of the message

_DEEPEST = 4  # levels of ``{"error": {"error": ...}}`` that gateways in a row may add

_OVERFLOW_CODES = frozenset({"exceed_context_size_error", "context_length_exceeded"})
_OVERFLOW_WORDS = ("prompt is too long", "maximum context length")

_STATUS_OF_CODE = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "too_many_requests": 429,
    "resource_exhausted": 429,
    "insufficient_quota": 403,
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "exceed_context_size_error": 400,
    "context_length_exceeded": 400,
    "invalid_api_key": 401,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
}

_not_for_a_terminal = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
_unseen_markup = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->", re.DOTALL | re.IGNORECASE)
_tag = re.compile(r"<[^>]*>")
_blank = re.compile(r"\s+")


class ServerError(msgspec.Struct, frozen=True, kw_only=True):
    """An error as a server told it. ``status`` is its code where that is a number, ``codes`` the words, lower case."""

    message: str
    status: int | None = None
    codes: tuple[str, ...] = ()


def read_error_body(body: bytes) -> ServerError:
    """The error in the body of a failed request: JSON of any shape, a page, plain text, or nothing."""
    text = body.decode("utf-8", "replace")
    try:
        return read_error(decode_json(text))
    except BrokenJson:
        return ServerError(message=visible_text(text) or "no message")


def read_error(value: object) -> ServerError:
    """The error in a JSON value: ``{"error": {...}}``, ``{"error": "TEXT"}``, the inner object alone, a list of one."""
    value = _innermost(value)
    if not isinstance(value, Mapping):
        return ServerError(message=value if isinstance(value, str) and value.strip() else _as_text(value))
    fields = cast("Mapping[str, object]", value)
    words = (fields.get("code"), fields.get("type"), fields.get("status"))
    codes = tuple(word.lower() for word in words if isinstance(word, str))
    return ServerError(message=_message(fields), status=_status(fields.get("code")), codes=codes)


def visible_text(markup: str) -> str:
    """What a page says, without its tags."""
    text = _tag.sub(" ", _unseen_markup.sub(" ", markup)) if "<" in markup else markup
    return _blank.sub(" ", html.unescape(text)).strip()


def error_for_status(
    status: int, error: ServerError, *, source: str, retry_after: float | None = None, key_hint: str = ""
) -> ProviderError:
    """The error to raise for an answer of ``status``; ``source`` says for a person where it came from.

    ``key_hint`` is told along with 401 and 403. ``retry_after`` is in seconds.
    """
    if is_overflow(status, error):
        return ContextOverflow(f"{source}: {error.message}")
    if status == 429:
        return RateLimited(f"{source}: {error.message}", retry_after)
    if status >= 500 or status == 408:
        return ServerFailed(f"{source}: {error.message}", retry_after)
    if 300 <= status < 600:
        hint = f" ({key_hint})" if key_hint and status in (401, 403) else ""
        return refused(f"{source}{hint}: {error.message}", status)
    return BadResponse(f"{source}: {error.message}")


def error_in_stream(error: ServerError) -> ProviderError:
    """The error to raise for one that came inside a 200 answer.

    Its code keeps its class; one without a code we know is the server's failure, as it had taken the request.
    """
    status = error.status
    if status is None:
        status = next((_STATUS_OF_CODE[code] for code in error.codes if code in _STATUS_OF_CODE), 500)
    return error_for_status(status, error, source="the server sent an error instead of the rest of its reply")


def is_overflow(status: int, error: ServerError) -> bool:
    """Whether the prompt was longer than the model's window."""
    if status >= 400 and not _OVERFLOW_CODES.isdisjoint(error.codes):
        return True
    words = error.message.lower()
    return status == 400 and any(phrase in words for phrase in _OVERFLOW_WORDS)


def presentable(message: str, api_key: str) -> str:
    """``message`` on one line of at most `MAX_WORDS` characters, with the key masked.

    Control characters and bidirectional overrides become blanks: the message goes to terminals and logs.
    """
    masked = message.replace(api_key, "***") if len(api_key) >= _SHORTEST_KEY else message
    line = _blank.sub(" ", _not_for_a_terminal.sub(" ", clean_text(masked))).strip()
    return line if len(line) <= MAX_WORDS else line[: MAX_WORDS - 1] + "…"


def _innermost(value: object) -> object:
    for _ in range(_DEEPEST):
        inner = _inside(value)
        if not isinstance(inner, Mapping | list) or not inner:
            break
        value = cast("object", inner)
    return value


def _inside(value: object) -> object:
    if isinstance(value, list):
        return next(iter(cast("list[object]", value)), None)
    return cast("Mapping[str, object]", value).get("error") if isinstance(value, Mapping) else None


def _message(fields: Mapping[str, object]) -> str:
    for name in ("message", "error", "detail", "msg"):
        words = fields.get(name)
        if isinstance(words, str) and words.strip():
            return words + _upstream_words(fields)
    return _as_text(fields)


def _upstream_words(fields: Mapping[str, object]) -> str:
    """What a server behind the server said: gateways put it in ``metadata.raw`` and say nothing themselves."""
    metadata = fields.get("metadata")
    raw = cast("Mapping[str, object]", metadata).get("raw") if isinstance(metadata, Mapping) else None
    return f": {raw}" if isinstance(raw, str) and raw.strip() else ""


def _as_text(value: object) -> str:
    if value is None or value in ("", {}, []):
        return "no message"
    try:
        return msgspec.json.encode(value).decode()
    except (UnicodeEncodeError, RecursionError):
        return "an error that can't be shown"


def _status(code: object) -> int | None:
    if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdigit():
        code = int(code)
    if isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599:
        return code
    return None
