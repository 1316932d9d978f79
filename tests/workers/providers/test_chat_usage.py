from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.usage import Usage
from workers.providers.chat_usage import MAX_TOKENS, read_usage


def test_every_known_count_is_mapped() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 7},
    }
    assert read_usage(usage) == Usage(
        prompt_tokens=100,
        completion_tokens=20,
        cache_read_tokens=60,
        cache_creation_tokens=5,
        thinking_tokens=7,
        api_calls=1,
    )


@pytest.mark.parametrize(
    ("given_as", "field"),
    [
        ("cache_read_input_tokens", "cache_read_tokens"),
        ("prompt_cache_hit_tokens", "cache_read_tokens"),
        ("cache_creation_input_tokens", "cache_creation_tokens"),
        ("reasoning_tokens", "thinking_tokens"),
    ],
)
def test_other_servers_names_are_read(given_as: str, field: str) -> None:
    usage = read_usage({given_as: 9})
    assert usage is not None
    assert getattr(usage, field) == 9


def test_a_number_sent_in_two_dialects_is_counted_once() -> None:
    usage = read_usage({"prompt_tokens_details": {"cached_tokens": 9}, "cache_read_input_tokens": 9})
    assert usage == Usage(cache_read_tokens=9, api_calls=1)


@pytest.mark.parametrize("value", [None, {}, [], "12", 12, True])
def test_what_is_no_usage_is_none(value: object) -> None:
    assert read_usage(value) is None


@pytest.mark.parametrize(
    ("count", "read"),
    [(3, 3), (3.0, 3), (-1, 0), (None, 0), ("3", 0), (True, 0), (float("nan"), 0), (float("inf"), 0), (10**30, 0)],
)
def test_an_absurd_count_is_zero(count: object, read: int) -> None:
    assert read_usage({"prompt_tokens": count}) == Usage(prompt_tokens=read, api_calls=1)


@given(
    st.dictionaries(st.sampled_from(["prompt_tokens", "prompt_tokens_details", "x"]), st.from_type(object), min_size=1)
)
def test_anything_gives_whole_numbers_in_bounds(value: dict[str, object]) -> None:
    usage = read_usage(value)
    assert usage is not None
    assert 0 <= usage.prompt_tokens <= MAX_TOKENS
