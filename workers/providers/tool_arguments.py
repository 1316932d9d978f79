"""The arguments of a tool call, as a model sent them, made into the text of one JSON object."""

from __future__ import annotations

import json
from typing import TypeAlias

import msgspec

from protocol.codec import clean_text, encode_json

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"

_decoder = msgspec.json.Decoder()


class ArgumentsFault(Exception):
    """The text is no JSON object. The message is one sentence for the model; it never holds the text itself."""


def canonical_arguments(text: str) -> str:
    """``text`` as compact JSON, free of lone surrogates; blank text is a call without arguments, ``{}``.

    Numbers keep their value whatever their size. Raises `ArgumentsFault` for all that is not one JSON object: broken
    or cut JSON, NaN and infinities, and also a JSON string that holds an object (what its writer meant is a guess).
    """
    if not text.strip():
        return "{}"
    value = _decode(text)
    if not isinstance(value, dict):
        raise ArgumentsFault(f"The arguments are {_kind(value)}, not a JSON object.")
    try:
        return _encode(value)
    except RecursionError:
        raise _too_deep() from None


def is_complete(text: str) -> bool:
    """Whether ``text`` is one whole JSON object, so that anything more behind it would spoil it."""
    if not text.rstrip().endswith("}"):
        return False
    try:
        canonical_arguments(text)
    except ArgumentsFault:
        return False
    return True


def _decode(text: str) -> JsonValue:
    try:
        value: JsonValue = _decoder.decode(text)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeEncodeError):
        # Lone surrogates are refused here, and common where a model's text is cut inside an emoji.
        return _decode_leniently(text)
    return value


def _decode_leniently(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise ArgumentsFault(f"The arguments are not valid JSON: {error.msg} at character {error.pos}.") from None
    except ValueError:
        raise ArgumentsFault("The arguments hold a number that is out of range.") from None
    except RecursionError:
        raise _too_deep() from None
    return value


def _encode(value: JsonValue) -> str:
    try:
        return encode_json(value).decode()
    except UnicodeEncodeError:
        return encode_json(_cleaned(value)).decode()


def _no_constant(name: str) -> JsonValue:
    raise ArgumentsFault(f"The arguments hold {name}, which is not JSON.")


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ArgumentsFault("The arguments hold a number that is out of range.")
    return value


def _cleaned(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): _cleaned(item) for key, item in value.items()}
    return value


def _kind(value: JsonValue) -> str:
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "a list"
    return "null" if value is None else "a bare value"


def _too_deep() -> ArgumentsFault:
    return ArgumentsFault("The arguments are nested too deeply.")
