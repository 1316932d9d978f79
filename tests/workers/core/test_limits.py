from __future__ import annotations

from workers.core.limits import EXTENSION, CallCap


def test_the_cap_is_reached_with_the_call_that_would_be_one_too_many() -> None:
    cap = CallCap(3, is_main=True)
    assert [cap.is_reached(calls) for calls in (2, 3, 4)] == [False, True, True]


def test_a_main_agent_extends_its_cap_once() -> None:
    cap = CallCap(3, is_main=True)
    assert cap.answer() == "extended"
    assert cap.cap == 3 + EXTENSION
    assert not cap.is_reached(3)
    assert cap.answer() == "end"


def test_a_sub_agent_has_one_last_call_and_is_told_its_cap() -> None:
    cap = CallCap(3, is_main=False)
    assert not cap.is_last_call
    assert cap.answer() == "last_call"
    assert cap.is_last_call
    assert "3" in cap.last_words()


def test_a_restarted_main_agent_has_no_second_extension() -> None:
    cap = CallCap(3, is_main=True)
    cap.restore(4)
    assert cap.cap == 3 + EXTENSION
    assert cap.answer() == "end"


def test_a_restarted_main_agent_at_its_cap_has_its_extension_still() -> None:
    cap = CallCap(3, is_main=True)
    cap.restore(3)
    assert cap.is_reached(3)
    assert cap.answer() == "extended"


def test_a_restarted_sub_agent_that_had_its_last_call_has_no_other() -> None:
    cap = CallCap(3, is_main=False)
    cap.restore(3)
    assert not cap.is_last_call
    cap.restore(4)
    assert cap.is_last_call
