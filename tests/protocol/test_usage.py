from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from protocol.usage import Usage

counts = st.integers(0, 2**40)
usages = st.builds(
    Usage,
    prompt_tokens=counts,
    completion_tokens=counts,
    cache_read_tokens=counts,
    cache_creation_tokens=counts,
    thinking_tokens=counts,
    api_calls=counts,
)


@given(usages, usages, usages)
def test_usage_adds_up_to_the_same_in_any_order(a: Usage, b: Usage, c: Usage) -> None:
    assert (a + b) + c == a + (b + c) == (c + b) + a


@given(usages)
def test_no_usage_added_changes_nothing(usage: Usage) -> None:
    assert usage + Usage() == usage


@given(usages, usages)
def test_every_field_is_added(a: Usage, b: Usage) -> None:
    total = a + b
    for field in msgspec.structs.fields(Usage):
        assert getattr(total, field.name) == getattr(a, field.name) + getattr(b, field.name)


def test_zeros_are_written() -> None:
    written = msgspec.json.decode(msgspec.json.encode(Usage()), type=dict[str, int])
    assert written == {field.name: 0 for field in msgspec.structs.fields(Usage)}
    assert len(written) == 6
