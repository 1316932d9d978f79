from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.providers.retry_after import MAX_SECONDS, retry_after

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2.0),
        ("0", 0.0),
        ("0.5", 0.5),
        (" 3 ", 3.0),
        ("Tue, 14 Nov 2023 22:13:22 GMT", 2.0),
        ("Tuesday, 14-Nov-23 22:13:22 GMT", 2.0),
        ("Tue Nov 14 22:13:22 2023", 2.0),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0.0),
        ("Fri, 01 Jan 2199 00:00:00 GMT", MAX_SECONDS),
        ("3600", MAX_SECONDS),
        ("9" * 500, MAX_SECONDS),
        ("-5", None),
        ("abc", None),
        ("", None),
        ("nan", None),
        ("inf", None),
        ("٣", None),
        ("Tue, 99 Nov 2023 99:99:99 GMT", None),
    ],
)
def test_sane_values_are_honoured_and_capped_and_others_are_none(value: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": value}, NOW) == seconds


def test_milliseconds_win_over_seconds() -> None:
    assert retry_after({"retry-after-ms": "1500"}, NOW) == 1.5
    assert retry_after({"retry-after-ms": "1500", "retry-after": "9"}, NOW) == 1.5
    assert retry_after({"retry-after-ms": "-1", "retry-after": "9"}, NOW) == 9.0


def test_no_header_is_none() -> None:
    assert retry_after({}, NOW) is None


@given(st.text(), st.text())
def test_no_value_crashes_it_or_gets_out_of_bounds(seconds: str, milliseconds: str) -> None:
    wait = retry_after({"retry-after": seconds, "retry-after-ms": milliseconds}, NOW)
    assert wait is None or 0 <= wait <= MAX_SECONDS
