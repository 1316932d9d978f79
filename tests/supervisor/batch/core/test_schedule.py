from __future__ import annotations

import math
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from supervisor.batch.core.outcome import Again, AttemptEnd, Verdict
from supervisor.batch.core.schedule import Schedule, ScheduledJob
from supervisor.batch.core.words import Outcome, RetryClass

RETRY_ON: frozenset[RetryClass] = frozenset({"crashed", "transient", "setup"})
OK = AttemptEnd(outcome="ok")
OKS: tuple[Outcome, ...] = ("ok",)
CRASHED = AttemptEnd(outcome="crashed", reason="signal")


def job(
    number: int, *, priority: float = 0.0, lane: str | None = None, delay: float = 0.0, attempts: int = 0
) -> ScheduledJob:
    return ScheduledJob(
        id=f"j{number}", index=number, priority=priority, retries=1, lane=lane, delay=delay, attempts=attempts
    )


def schedule(*jobs: ScheduledJob) -> Schedule:
    return Schedule(jobs, retry_on=RETRY_ON, started_at=0.0)


def start_all(found: Schedule, now: float, slots: int = 99) -> list[str]:
    started: list[str] = []
    while (next_one := found.start_next(now, slots=slots)) is not None:
        started.append(next_one[0])
    return started


def test_jobs_start_by_priority_then_in_the_order_of_the_file() -> None:
    assert start_all(schedule(job(0), job(1, priority=2), job(2), job(3, priority=-1)), 0.0) == ["j1", "j0", "j2", "j3"]


def test_no_more_run_than_there_are_slots() -> None:
    found = schedule(*map(job, range(4)))
    assert start_all(found, 0.0, slots=2) == ["j0", "j1"]
    assert start_all(found, 0.0, slots=1) == []
    found.end(1.0, "j0", OK)
    assert start_all(found, 1.0, slots=2) == ["j2"]
    assert (found.running, found.pending) == (("j1", "j2"), 1)


def test_a_crashed_job_comes_again_after_its_wait_and_then_has_its_verdict() -> None:
    found = schedule(job(0))
    assert found.start_next(0.0, slots=1) == ("j0", 1)
    assert found.end(5.0, "j0", CRASHED) == Again(delay=1.0, retry="crashed")
    assert found.start_next(5.9, slots=1) is None
    assert found.next_deadline(5.9) == 6.0
    assert found.start_next(6.0, slots=1) == ("j0", 2)
    assert found.end(7.0, "j0", CRASHED) == Verdict(status="crashed", reason="signal")
    assert (found.is_over, found.retries_used("j0")) == (True, 1)


def test_attempts_of_earlier_runs_are_counted_on() -> None:
    assert schedule(job(0, attempts=4)).start_next(0.0, slots=1) == ("j0", 5)


def test_a_throttled_job_waits_longer_each_time_and_keeps_its_retries() -> None:
    found = schedule(job(0))
    now = 0.0
    for delay in (1.0, 2.0, 4.0):
        assert found.start_next(now, slots=1) is not None
        assert found.end(now, "j0", AttemptEnd(outcome="throttle")) == Again(delay=delay, retry=None)
        now += delay
    assert found.retries_used("j0") == 0


def test_jobs_of_one_lane_never_run_at_once_and_others_pass_them() -> None:
    found = schedule(job(0, lane="a"), job(1, lane="a"), job(2), job(3, lane="b"))
    assert start_all(found, 0.0) == ["j0", "j2", "j3"]
    found.end(1.0, "j0", OK)
    assert start_all(found, 1.0) == ["j1"]


def test_a_job_that_waits_for_its_next_try_leaves_its_lane_to_others() -> None:
    found = schedule(job(0, lane="a"), job(1, lane="a"))
    start_all(found, 0.0)
    found.end(0.0, "j0", CRASHED)
    assert start_all(found, 0.0) == ["j1"]
    assert start_all(found, 2.0) == []
    found.end(3.0, "j1", OK)
    assert start_all(found, 3.0) == ["j0"]


def test_after_a_halt_nothing_starts_and_it_is_over_when_nothing_runs() -> None:
    found = schedule(job(0), job(1))
    found.start_next(0.0, slots=1)
    assert found.stop("soon", "halt")
    assert (start_all(found, 0.0), found.is_over, found.next_deadline(0.0)) == ([], False, math.inf)
    found.end(1.0, "j0", OK)
    assert (found.is_over, found.pending) == (True, 1)


def test_the_first_reason_for_a_halt_counts_and_soon_can_become_now() -> None:
    found = schedule(job(0))
    assert found.stop("soon", "budget")
    assert not found.stop("soon", "provider")
    assert found.stop("now", "signal")
    assert not found.stop("now", "halt")
    assert found.halt is not None
    assert (found.halt.when, found.halt.reason) == ("now", "budget")


def test_a_wait_from_an_earlier_run_is_kept() -> None:
    found = schedule(job(0, delay=3.0))
    assert found.start_next(2.9, slots=1) is None
    assert found.start_next(3.0, slots=1) == ("j0", 1)


@given(
    lanes=st.lists(st.sampled_from([None, "a", "b"]), min_size=1, max_size=8),
    ends=st.lists(st.sampled_from(["ok", "crashed", "throttle", "cancelled", "failed"]), max_size=60),
    slots=st.integers(1, 4),
)
def test_every_job_gets_one_verdict_and_no_lane_or_slot_is_overfull(
    lanes: list[str | None], ends: list[Outcome], slots: int
) -> None:
    jobs = [job(number, lane=lane) for number, lane in enumerate(lanes)]
    lane_of = {each.id: each.lane for each in jobs}
    found = schedule(*jobs)
    verdicts: list[str] = []
    now = 0.0
    outcomes = chain(ends, OKS * (3 * len(jobs)))
    while not found.is_over:
        start_all(found, now, slots)
        running = found.running
        taken = [lane_of[each] for each in running if lane_of[each] is not None]
        assert len(running) <= slots and len(set(taken)) == len(taken)
        if running:
            if isinstance(found.end(now, running[0], AttemptEnd(outcome=next(outcomes))), Verdict):
                verdicts.append(running[0])
        else:
            assert found.next_deadline(now) < math.inf
            now = found.next_deadline(now)
    assert sorted(verdicts) == sorted(lane_of)
