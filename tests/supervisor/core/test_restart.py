from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.records import CrashCause
from supervisor.core.restart import MOST_IN_A_LIFE, MOST_IN_A_WHILE, NEVER_RESTARTED, WHILE_SECONDS, RestartIntensity

RESTARTED: list[CrashCause] = ["signal", "exited_early", "unresponsive", "channel_closed", "protocol_error"]


@pytest.mark.parametrize("cause", RESTARTED)
def test_a_first_crash_is_followed_by_restart_number_one(cause: CrashCause) -> None:
    assert RestartIntensity().next(0.0, cause, 0) == 1


@pytest.mark.parametrize("cause", sorted(NEVER_RESTARTED))
def test_what_would_only_happen_again_is_not_tried_again(cause: CrashCause) -> None:
    assert RestartIntensity().next(0.0, cause, 7) is None


def test_a_worker_that_died_twice_without_a_commit_in_between_is_given_up() -> None:
    restarts = RestartIntensity()
    assert restarts.next(0.0, "signal", 3) == 1
    assert restarts.next(1000.0, "signal", 3) is None
    assert restarts.next(1001.0, "signal", 4) == 2, "a new commit is a new chance"


def test_a_fourth_restart_within_a_minute_is_refused_and_one_after_it_is_not() -> None:
    restarts = RestartIntensity()
    assert [restarts.next(float(second), "signal", second) for second in range(3)] == [1, 2, 3]
    assert restarts.next(59.9, "signal", 10) is None
    assert restarts.next(60.0, "signal", 11) == 4


def test_an_agent_is_restarted_ten_times_in_its_life() -> None:
    restarts = RestartIntensity()
    numbers = [restarts.next(1000.0 * crash, "signal", crash) for crash in range(12)]
    assert numbers == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, None, None]


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from([*RESTARTED, *NEVER_RESTARTED]), st.integers(0, 2))))
def test_no_row_of_crashes_gets_past_a_limit(crashes: list[tuple[float, CrashCause, int]]) -> None:
    restarts = RestartIntensity()
    now, commits = 0.0, 0
    granted: list[tuple[float, int]] = []
    for pause, cause, committed in crashes:
        now += pause
        commits += committed
        number = restarts.next(now, cause, commits)
        if number is None:
            continue
        assert cause not in NEVER_RESTARTED
        assert all(commits > earlier for _, earlier in granted), "progress since the last restart"
        granted.append((now, commits))
        assert number == len(granted) <= MOST_IN_A_LIFE
        assert sum(now - time < WHILE_SECONDS for time, _ in granted) <= MOST_IN_A_WHILE
