"""Reads the token counts of a reply, under the names that servers give them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from protocol.usage import Usage

MAX_TOKENS = 2**53
"""More than this is no count."""

_CACHE_READ = (
    ("prompt_tokens_details", "cached_tokens"),
    ("cache_read_input_tokens",),
    ("prompt_cache_hit_tokens",),
)
_CACHE_CREATION = (
    ("cache_creation_input_tokens",),
    ("prompt_tokens_details", "cache_creation_tokens"),
    ("prompt_tokens_details", "cache_write_tokens"),
)
_THINKING = (
    ("completion_tokens_details", "reasoning_tokens"),
    ("reasoning_tokens",),
)


def read_usage(value: object) -> Usage | None:
    """The usage of one call, None if ``value`` holds none. A count that is missing or absurd is 0."""
    if not isinstance(value, Mapping) or not value:
        return None
    usage = cast("Mapping[str, object]", value)
    return Usage(
        prompt_tokens=_first(usage, (("prompt_tokens",),)),
        completion_tokens=_first(usage, (("completion_tokens",),)),
        cache_read_tokens=_first(usage, _CACHE_READ),
        cache_creation_tokens=_first(usage, _CACHE_CREATION),
        thinking_tokens=_first(usage, _THINKING),
        api_calls=1,
    )


def _first(usage: Mapping[str, object], paths: tuple[tuple[str, ...], ...]) -> int:
    """The first count over 0 among ``paths``: servers that speak two dialects send the same number twice."""
    for path in paths:
        count = _count(_follow(usage, path))
        if count:
            return count
    return 0


def _follow(value: object, path: tuple[str, ...]) -> object:
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, object]", value).get(name)
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if not math.isfinite(value) or not 0 <= value <= MAX_TOKENS:
        return 0
    return int(value)
