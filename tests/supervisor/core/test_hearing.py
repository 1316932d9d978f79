from __future__ import annotations

from supervisor.core.hearing import Hearing


def test_a_worker_that_has_taken_all_hears() -> None:
    hearing = Hearing()
    assert [hearing.report(now, sent=5, taken=5) for now in (0.0, 100.0)] == [0.0, 0.0]


def test_a_worker_that_takes_nothing_is_deaf_for_longer_and_longer() -> None:
    hearing = Hearing()
    assert [hearing.report(now, sent=5, taken=3) for now in (10.0, 15.0, 25.0)] == [0.0, 5.0, 15.0]


def test_a_slow_worker_is_not_deaf() -> None:
    hearing = Hearing()
    assert [hearing.report(float(now), sent=100, taken=now) for now in range(50)] == [0.0] * 50


def test_what_was_sent_after_a_worker_caught_up_counts_from_then() -> None:
    hearing = Hearing()
    hearing.report(0.0, sent=5, taken=3)
    hearing.report(50.0, sent=5, taken=5)
    assert hearing.report(60.0, sent=6, taken=5) == 0.0
    assert hearing.report(70.0, sent=6, taken=5) == 10.0
