"""The calls of an attempt that is made elsewhere: what may have been billed unseen when its machine is gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.batch.remote.core.calls import RemoteCalls


def test_a_call_is_uncertain_from_its_start_until_the_usage_that_counts_it_has_arrived() -> None:
    calls = RemoteCalls()
    calls.ask(1)
    assert (calls.uncertain, calls.unfinished) == (0, (1,))
    calls.go(1)
    assert calls.uncertain == 1
    calls.answered(1)
    assert (calls.uncertain, calls.unfinished) == (1, ())
    calls.usage_arrived()
    assert calls.uncertain == 0


def test_a_call_that_failed_or_was_dropped_is_certain() -> None:
    calls = RemoteCalls()
    for call in (1, 2, 3):
        calls.ask(call)
    calls.go(1)
    calls.go(2)
    calls.failed(1)
    calls.dropped(2)
    calls.dropped(3)
    assert (calls.uncertain, calls.unfinished) == (0, ())


def test_what_can_not_be_is_refused_and_changes_nothing() -> None:
    calls = RemoteCalls()
    calls.ask(5)
    for wrong in (calls.answered, calls.failed):
        with pytest.raises(ValueError, match="not under way"):
            wrong(5)
    for wrong in (calls.ask, calls.go, calls.dropped):
        with pytest.raises(ValueError, match="the call 4"):
            wrong(4)
    assert calls.unfinished == (5,)


@given(st.lists(st.sampled_from(("go", "answered", "failed", "dropped", "usage_arrived"))))
def test_the_uncertain_calls_are_those_under_way_and_those_answered_since(steps: list[str]) -> None:
    calls, waiting, under_way, answered = RemoteCalls(), [*range(1, 9)], list[int](), 0
    for call in waiting:
        calls.ask(call)
    for step in steps:
        if step == "usage_arrived":
            calls.usage_arrived()
            answered = 0
        elif step == "go" and waiting:
            under_way.append(waiting.pop())
            calls.go(under_way[-1])
        elif step != "go" and under_way:
            getattr(calls, step)(under_way.pop(0))
            answered += step == "answered"
        assert calls.uncertain == len(under_way) + answered
        assert sorted(calls.unfinished) == sorted(waiting + under_way)
