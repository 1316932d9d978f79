from __future__ import annotations

import pytest

from supervisor.core.places import Places


def test_newcomers_get_places_in_the_order_in_which_they_came() -> None:
    places = Places(2)
    for agent_id in "abcd":
        places.enter(agent_id)
    assert places.fill() == ["a", "b"]
    assert places.fill() == []
    places.leave("a")
    assert places.fill() == ["c"]
    assert places.held == 2


def test_who_returns_goes_before_newcomers_and_is_not_admitted_again() -> None:
    places = Places(1)
    places.enter("parent")
    assert places.fill() == ["parent"]
    places.park("parent")
    places.enter("child")
    places.enter("late")
    assert places.fill() == ["child"]
    places.unpark("parent")
    assert places.fill() == []
    assert not places.holds("parent")
    places.leave("child")
    assert places.fill() == []
    assert places.holds("parent")


def test_two_that_return_keep_their_order() -> None:
    places = Places(2)
    for agent_id in "ab":
        places.enter(agent_id)
    places.fill()
    for agent_id in "ab":
        places.park(agent_id)
    for agent_id in "cd":
        places.enter(agent_id)
    assert places.fill() == ["c", "d"]
    places.unpark("b")
    places.unpark("a")
    places.leave("c")
    assert places.fill() == []
    assert (places.holds("a"), places.holds("b")) == (False, True)


def test_who_queues_to_return_can_park_again() -> None:
    places = Places(1)
    places.enter("a")
    places.fill()
    places.park("a")
    places.enter("b")
    places.fill()
    places.unpark("a")
    places.park("a")
    places.park("a")
    places.leave("b")
    assert places.fill() == []
    assert places.held == 0
    assert "a" in places


def test_only_who_has_had_a_place_can_park() -> None:
    places = Places(1)
    for agent_id in "ab":
        places.enter(agent_id)
    places.fill()
    with pytest.raises(ValueError, match="'b' holds no place"):
        places.park("b")
    with pytest.raises(ValueError, match="'x' holds no place"):
        places.park("x")


def test_nobody_enters_twice_but_who_left_may_come_back() -> None:
    places = Places(1)
    places.enter("a")
    with pytest.raises(ValueError, match="admitted already"):
        places.enter("a")
    places.leave("a")
    assert "a" not in places
    places.enter("a")
    assert places.fill() == ["a"]


def test_there_is_at_least_one_place() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Places(0)
