from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.core.retry import RetrySchedule, RetryStep


def delays(schedule: RetrySchedule, wishes: list[float | None]) -> list[int | None]:
    steps = [schedule.next(wish) for wish in wishes]
    return [None if step is None else step.delay_ms for step in steps]


def test_delays_begin_at_one_second_and_double() -> None:
    assert delays(RetrySchedule(), [None] * 6) == [1000, 2000, 4000, 8000, 16000, None]


def test_delays_stay_at_the_ceiling() -> None:
    assert delays(RetrySchedule(max_attempts=8), [None] * 8)[4:] == [16000, 32000, 32000, 32000]


def test_a_step_says_which_attempt_of_how_many_it_is() -> None:
    schedule = RetrySchedule()
    assert schedule.next(None) == RetryStep(attempt=1, max_attempts=5, delay_ms=1000)
    assert schedule.next(None) == RetryStep(attempt=2, max_attempts=5, delay_ms=2000)


def test_what_the_server_asked_for_wins_and_the_doubling_goes_on_behind_it() -> None:
    assert delays(RetrySchedule(), [None, 0.0, 7.5, None]) == [1000, 0, 7500, 8000]


@pytest.mark.parametrize(
    ("wish", "delay_ms"),
    [(-1.0, 0), (120.0, 120_000), (121.0, 120_000), (math.inf, 120_000), (-math.inf, 0), (math.nan, 1000)],
)
def test_a_strange_wish_of_the_server_is_held_within_bounds(wish: float, delay_ms: int) -> None:
    assert delays(RetrySchedule(), [wish]) == [delay_ms]


def test_attempts_that_are_used_up_stay_so_until_a_reset() -> None:
    schedule = RetrySchedule(max_attempts=1)
    assert delays(schedule, [None, None, 3.0]) == [1000, None, None]
    schedule.reset()
    assert schedule.next(None) == RetryStep(attempt=1, max_attempts=1, delay_ms=1000)


def test_a_short_first_delay_makes_a_short_schedule() -> None:
    assert delays(RetrySchedule(first_delay=0.01), [None] * 3) == [10, 20, 40]
    assert delays(RetrySchedule(first_delay=0), [None] * 3) == [0, 0, 0]


@given(st.lists(st.one_of(st.none(), st.floats()), max_size=30), st.integers(0, 2000))
def test_attempts_are_counted_and_delays_bounded_whatever_the_server_says(
    wishes: list[float | None], max_attempts: int
) -> None:
    schedule = RetrySchedule(max_attempts=max_attempts)
    steps = [schedule.next(wish) for wish in wishes]
    made = [step for step in steps if step is not None]
    assert len(made) == min(len(wishes), max_attempts)
    assert [step.attempt for step in made] == list(range(1, len(made) + 1))
    assert all(0 <= step.delay_ms <= 120_000 for step in made)


def test_a_schedule_of_a_thousand_attempts_does_not_overflow() -> None:
    schedule = RetrySchedule(max_attempts=2000)
    assert delays(schedule, [None] * 2000)[-1] == 32_000


@pytest.mark.parametrize("delay", [-1.0, math.inf, math.nan])
def test_a_delay_that_is_none_is_refused(delay: float) -> None:
    with pytest.raises(ValueError, match="not a schedule"):
        RetrySchedule(first_delay=delay)
