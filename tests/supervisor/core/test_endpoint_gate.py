from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.endpoint_gate import CLEAN_CALLS_FOR_ONE_MORE, COOL_DOWN_SECONDS, MOST, CallKey, EndpointGate


class Load:
    """As many calls as the gate lets through, all the time."""

    def __init__(self, gate: EndpointGate, waiting: int = 2000) -> None:
        self.gate = gate
        self.under_way: list[CallKey] = []
        numbers = count()
        for _ in range(waiting):
            self.under_way += gate.ask((1, "main", next(numbers)))

    def clean(self, calls: int) -> None:
        for _ in range(calls):
            self.under_way += self.gate.clean(self.under_way.pop(0))

    def limited(self, now: float) -> None:
        self.under_way += self.gate.limited(now, self.under_way.pop(0))


def test_it_starts_with_four_and_doubles_with_each_clean_window() -> None:
    load = Load(EndpointGate())
    sizes = [len(load.under_way)]
    for window in (4, 8, 16):
        load.clean(window)
        sizes.append(len(load.under_way))
    assert sizes == [4, 8, 16, 32]


def test_calls_go_in_the_order_in_which_they_came() -> None:
    gate = EndpointGate(limit=1)
    assert gate.ask((1, "a", 1)) == [(1, "a", 1)]
    assert gate.ask((2, "b", 1)) == gate.ask((1, "a", 2)) == []
    assert gate.failed((1, "a", 1)) == [(2, "b", 1)]
    assert gate.failed((2, "b", 1)) == [(1, "a", 2)]


def test_a_rate_limit_cuts_to_four_fifths_rounded_down_once_in_a_cool_down() -> None:
    load = Load(EndpointGate(limit=9))
    load.limited(100.0)
    assert load.gate.limit == 7
    load.limited(100.0 + COOL_DOWN_SECONDS - 1)
    assert load.gate.limit == 7
    load.limited(100.0 + COOL_DOWN_SECONDS)
    assert load.gate.limit == 5


def test_after_a_cut_twenty_clean_calls_add_one_even_within_the_cool_down() -> None:
    load = Load(EndpointGate(limit=10))
    load.limited(0.0)
    load.clean(CLEAN_CALLS_FOR_ONE_MORE - 1)
    assert load.gate.limit == 8
    load.clean(1)
    assert load.gate.limit == 9


def test_what_nobody_had_reached_is_not_what_is_cut() -> None:
    gate = EndpointGate(limit=100)
    for number in range(4):
        gate.ask((1, "main", number))
    gate.limited(0.0, (1, "main", 0))
    assert gate.limit == 3


def test_the_limit_never_goes_under_one() -> None:
    load = Load(EndpointGate(limit=1))
    for episode in range(3):
        load.limited(episode * 60.0)
    assert (load.gate.limit, len(load.under_way)) == (1, 1)


def test_another_failure_starts_the_window_again_and_cuts_nothing() -> None:
    load = Load(EndpointGate())
    load.clean(3)
    load.under_way += load.gate.failed(load.under_way.pop(0))
    load.clean(3)
    assert load.gate.limit == 4
    load.clean(1)
    assert load.gate.limit == 8


def test_who_leaves_makes_room_whether_it_waited_or_not() -> None:
    gate = EndpointGate(limit=1)
    gate.ask((1, "a", 1))
    gate.ask((1, "b", 1))
    gate.ask((1, "c", 1))
    assert gate.leave((1, "b", 1)) == []
    assert gate.leave((1, "a", 1)) == [(1, "c", 1)]
    assert gate.leave((9, "nobody", 9)) == []


def test_a_call_that_has_not_gone_can_not_be_settled() -> None:
    gate = EndpointGate(limit=1)
    gate.ask((1, "a", 1))
    gate.ask((1, "b", 1))
    assert gate.clean((1, "b", 1)) == []
    assert (gate.under_way, gate.waiting, gate.is_waiting((1, "b", 1))) == (1, 1, True)


@given(st.lists(st.sampled_from(["ask", "clean", "failed", "limited", "leave"]), max_size=200))
def test_never_more_are_under_way_than_the_limit_when_a_call_goes(steps: list[str]) -> None:
    gate = EndpointGate()
    under_way: list[CallKey] = []
    for number, step in enumerate(steps):
        gone: list[CallKey] = []
        if step == "ask":
            gone = gate.ask((1, "main", number))
        elif under_way:
            key = under_way.pop(0)
            if step == "limited":
                gone = gate.limited(float(number), key)
            else:
                gone = {"clean": gate.clean, "failed": gate.failed, "leave": gate.leave}[step](key)
        under_way += gone
        assert not gone or len(under_way) <= gate.limit
        assert len(under_way) == gate.under_way
        assert 1 <= gate.limit <= MOST
