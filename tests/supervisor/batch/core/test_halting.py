from __future__ import annotations

from collections.abc import Sequence

import pytest

from supervisor.batch.core.ending import end_reason, exit_code
from supervisor.batch.core.halting import Breaker, HaltJudge, HaltRule, parse_halt_rule
from supervisor.batch.core.words import HaltReason, HaltWhen, Status

OK: tuple[Status, ...] = ("ok",)
FAILED: tuple[Status, ...] = ("failed",)
REFUSED: tuple[tuple[Status, str], ...] = (("failed", "refused"),)


def judged(rule: str, statuses: Sequence[Status], total: int = 100) -> list[HaltWhen | None]:
    judge = HaltJudge(parse_halt_rule(rule), total)
    return [judge.take(status) for status in statuses]


def test_the_words_of_a_rule() -> None:
    assert parse_halt_rule("never") is None
    assert parse_halt_rule("soon,fail=10%") == HaltRule(when="soon", why="fail", number=10, is_percent=True)


@pytest.mark.parametrize(
    "text", ["", "now", "now,fail", "now,fail=0", "later,fail=1", "now,luck=1", "now,fail=101%", "now,fail=1 "]
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no rule"):
        parse_halt_rule(text)


def test_a_count_is_met_when_it_is_reached() -> None:
    assert judged("now,fail=2", ["failed", "ok", "timeout"]) == [None, None, "now"]
    assert judged("soon,success=1", ["failed", "ok"]) == [None, "soon"]
    assert judged("soon,done=2", ["failed", "ok"]) == [None, "soon"]


def test_a_share_is_judged_from_ten_verdicts_on() -> None:
    assert judged("soon,fail=50%", FAILED * 10) == [None] * 9 + ["soon"]
    assert judged("soon,fail=50%", [*FAILED * 4, *OK * 6])[-1] is None


def test_the_share_of_done_is_that_of_all_jobs() -> None:
    assert judged("soon,done=50%", OK * 20, total=40)[18:] == [None, "soon"]


def opened(limit: int, *verdicts: tuple[Status, str]) -> list[bool]:
    breaker = Breaker(limit)
    return [breaker.take(status, reason) for status, reason in verdicts]


def test_the_breaker_opens_at_the_last_of_the_first_verdicts_if_all_are_alike() -> None:
    assert opened(3, *REFUSED * 4) == [False, False, True, False]


@pytest.mark.parametrize("other", [("ok", ""), ("failed", "loop_guard"), ("crashed", "refused")])
def test_one_that_is_different_keeps_it_shut_for_good(other: tuple[Status, str]) -> None:
    assert not any(opened(3, ("failed", "refused"), other, *REFUSED * 5))


def test_a_limit_of_zero_never_opens() -> None:
    assert not any(opened(0, *REFUSED * 5))


@pytest.mark.parametrize(
    ("halt", "counts", "pending", "signal", "no_fail", "reason", "code"),
    [
        (None, {"ok": 3}, 0, None, False, "complete", 0),
        (None, {"ok": 3, "failed": 1}, 0, None, False, "failed", 1),
        (None, {"ok": 3, "failed": 1}, 0, None, True, "failed", 0),
        ("halt", {"ok": 3}, 2, None, True, "halt", 3),
        ("halt", {"ok": 3}, 0, None, False, "complete", 0),
        ("provider", {}, 2, None, False, "provider", 3),
        ("signal", {"ok": 3}, 2, 2, True, "signal", 130),
        ("signal", {"ok": 3}, 0, 15, False, "signal", 143),
        ("storage", {"ok": 3}, 0, 2, False, "storage", 5),
    ],
)
def test_the_end_of_a_run_has_its_word_and_its_code(
    halt: HaltReason | None,
    counts: dict[Status, int],
    pending: int,
    signal: int | None,
    no_fail: bool,
    reason: str,
    code: int,
) -> None:
    told = end_reason(halt, counts, pending)
    assert told == reason
    assert exit_code(told, counts, pending, signal=signal, no_fail=no_fail) == code
