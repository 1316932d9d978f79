from __future__ import annotations

import errno

import pytest

from protocol.frames import Finished
from protocol.records import AgentCrashed, AgentOutcome, CrashCause
from supervisor.batch.core.outcome import Again, AttemptEnd, Verdict, backoff, end_of_turn, setup_failed, what_follows
from supervisor.batch.core.words import Outcome, RetryClass, Status

BY_DEFAULT: frozenset[RetryClass] = frozenset({"crashed", "transient", "setup"})


@pytest.mark.parametrize(
    ("outcome", "code", "expected"),
    [
        ("complete", "", "ok"),
        ("limit", "timeout", "timeout"),
        ("limit", "max_tokens_total", "budget"),
        ("limit", "max_turns", "budget"),
        ("limit", "max_iterations", "failed"),
        ("cancelled", "sigint", "cancelled"),
        ("error", "rate_limited", "throttle"),
        ("error", "account_refused", "provider"),
        ("error", "unreachable", "transient"),
        ("error", "server_error", "transient"),
        ("error", "stream_failed", "transient"),
        ("error", "refused", "failed"),
        ("error", "loop_guard", "failed"),
        ("error", "storage_full", "setup"),
    ],
)
def test_the_end_of_a_turn_has_its_outcome(outcome: AgentOutcome, code: str, expected: Outcome) -> None:
    end = end_of_turn(Finished(outcome=outcome, code=code, message="why"), None)
    assert end.outcome == expected
    assert end.out_of_room is (code == "storage_full")


@pytest.mark.parametrize(
    ("cause", "detail", "reason"),
    [
        ("signal", "", "signal"),
        ("exited_early", "", "no_summary"),
        ("out_of_memory", "", "oom"),
        ("unresponsive", "", "unresponsive"),
        ("protocol_error", "frame at offset 3 can't be decoded", "broken_wire"),
        ("protocol_error", "frame of 99 bytes at offset 3 is over the limit of 9", "wire_overflow"),
    ],
)
def test_a_crash_has_its_reason(cause: CrashCause, detail: str, reason: str) -> None:
    crash = AgentCrashed(agent_name="main", agent_id="main", cause=cause, restart=None, detail=detail)
    end = end_of_turn(Finished(outcome="crashed", code="agent_crashed"), crash)
    assert (end.outcome, end.reason) == ("crashed", reason)


def test_a_process_that_can_not_be_started_is_a_failed_setup_and_no_descriptors_left_is_the_end() -> None:
    crash = AgentCrashed(agent_name="main", agent_id="main", cause="spawn_failed", restart=None)
    ends = [end_of_turn(Finished(outcome="crashed"), crash, number) for number in (errno.EAGAIN, errno.EMFILE)]
    assert [(end.outcome, end.out_of_room) for end in ends] == [("setup", False), ("setup", True)]
    assert setup_failed("copy", "no room", errno.ENOSPC).out_of_room


def follows(outcome: Outcome, left: int = 1, retry_on: frozenset[RetryClass] = BY_DEFAULT) -> Verdict | Again:
    end = AttemptEnd(outcome=outcome, reason="why")
    return what_follows(end, retries_left=left, retries_used=0, retry_on=retry_on)


@pytest.mark.parametrize(("outcome", "kind"), [(word, word) for word in ("crashed", "transient", "setup")])
def test_these_are_tried_again_by_default(outcome: Outcome, kind: RetryClass) -> None:
    assert follows(outcome) == Again(delay=1.0, retry=kind)


@pytest.mark.parametrize(
    ("outcome", "verdict"), [(word, word) for word in ("ok", "failed", "check_failed", "timeout", "budget")]
)
def test_these_are_verdicts_at_once(outcome: Outcome, verdict: Status) -> None:
    assert follows(outcome) == Verdict(status=verdict, reason="why")


@pytest.mark.parametrize(("outcome", "kind"), [("timeout", "timeout"), ("check_failed", "check"), ("failed", "failed")])
def test_verdicts_can_be_tried_again_where_that_is_asked_for(outcome: Outcome, kind: RetryClass) -> None:
    assert follows(outcome, retry_on=frozenset({kind})) == Again(delay=1.0, retry=kind)
    assert isinstance(follows(outcome, left=0, retry_on=frozenset({kind})), Verdict)


def test_past_its_retries_a_job_has_crashed_and_the_class_is_the_reason() -> None:
    assert follows("transient", left=0) == Verdict(status="crashed", reason="transient")
    assert follows("setup", left=0) == Verdict(status="crashed", reason="setup")
    assert follows("crashed", left=0) == Verdict(status="crashed", reason="why")


@pytest.mark.parametrize("outcome", ["throttle", "provider", "lost", "cancelled"])
def test_what_is_not_the_jobs_doing_is_never_a_verdict_and_costs_no_retry(outcome: Outcome) -> None:
    assert follows(outcome, left=0) == Again(delay=0.0, retry=None)


def test_a_machine_at_its_end_gives_no_verdict_either() -> None:
    end = setup_failed("copy", "no room", errno.ENOSPC)
    assert what_follows(end, retries_left=0, retries_used=1, retry_on=BY_DEFAULT) == Again(delay=0.0, retry=None)


def test_the_wait_doubles_up_to_thirty_seconds() -> None:
    assert [backoff(failures) for failures in (0, 1, 2, 3, 4, 5, 100)] == [1, 2, 4, 8, 16, 30, 30]
