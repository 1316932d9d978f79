from __future__ import annotations

import math

import pytest

from protocol.usage import Usage
from supervisor.core.grants import Admitted, Decision, Go, Grants, Stop, TreeLimits


def running(limits: TreeLimits, agents: str = "abc", used_before: Usage | None = None) -> Grants:
    """Grants with agents that hold their places."""
    grants = Grants(limits, used_before or Usage())
    for agent_id in agents:
        assert grants.admit(agent_id) == [Admitted(agent_id=agent_id)]
    return grants


def ask(
    grants: Grants,
    agent_id: str,
    *,
    grant: int = 1,
    now: float = 0.0,
    endpoint: str = "here",
    prompt: int = 100,
    cap: int | None = None,
) -> list[Decision]:
    return grants.ask(now, agent_id, grant, endpoint, prompt, cap)


def go(agent_id: str, max_tokens: int | None = None, grant: int = 1) -> Go:
    return Go(agent_id=agent_id, grant=grant, max_tokens=max_tokens)


def stopped(decisions: list[Decision]) -> list[tuple[str, str]]:
    """Agent and code of each decision, all of which are stops with a sentence."""
    stops = [decision for decision in decisions if isinstance(decision, Stop)]
    assert len(stops) == len(decisions)
    assert all(stop.message.endswith(".") for stop in stops)
    return [(stop.agent_id, stop.code) for stop in stops]


def used(tokens: int) -> Usage:
    return Usage(prompt_tokens=tokens, api_calls=1)


def test_without_limits_every_ask_goes_at_once_with_the_cap_it_came_with() -> None:
    grants = running(TreeLimits())
    assert ask(grants, "a") == [go("a")]
    assert ask(grants, "b", cap=500) == [go("b", 500)]
    assert grants.next_deadline() is None


# -- places -----------------------------------------------------------------------------------------------------------


def test_an_agent_over_the_places_is_admitted_when_another_leaves() -> None:
    grants = running(TreeLimits(max_parallel_agents=2), "ab")
    assert grants.admit("c") == []
    assert grants.admit("d") == []
    assert grants.leave("a") == [Admitted(agent_id="c")]


def test_an_agent_that_waits_for_its_children_gives_its_place_to_one_of_them() -> None:
    grants = running(TreeLimits(max_parallel_agents=1), "a")
    assert grants.admit("child") == []
    assert grants.park("a") == [Admitted(agent_id="child")]
    assert ask(grants, "child") == [go("child")]


def test_who_returns_asks_with_a_place_before_newcomers_get_one() -> None:
    grants = running(TreeLimits(max_parallel_agents=1), "a")
    grants.park("a")
    grants.admit("b")
    grants.admit("c")
    assert grants.unpark("a") == []
    assert ask(grants, "a") == []
    assert grants.leave("b") == [go("a")]
    assert grants.leave("a") == [Admitted(agent_id="c")]


def test_a_parked_agent_that_asks_is_done_with_waiting() -> None:
    grants = running(TreeLimits(max_parallel_agents=1), "a")
    grants.park("a")
    assert ask(grants, "a") == [go("a")]


def test_who_waits_for_a_place_lets_others_ask() -> None:
    grants = running(TreeLimits(max_parallel_agents=1), "a")
    grants.admit("b")
    assert ask(grants, "b") == []
    assert ask(grants, "a") == [go("a")]


def test_delegating_agents_can_not_lock_each_other_out() -> None:
    grants = running(TreeLimits(max_parallel_agents=2), "ab")
    for parent in "ab":
        grants.admit(f"{parent}-child")
    assert grants.park("a") == [Admitted(agent_id="a-child")]
    assert grants.park("b") == [Admitted(agent_id="b-child")]


# -- turns ------------------------------------------------------------------------------------------------------------


def test_the_limit_of_turns_stops_the_ask_after_the_last_one() -> None:
    grants = running(TreeLimits(max_turns=2))
    for grant in (1, 2):
        assert ask(grants, "a", grant=grant) == [go("a", grant=grant)]
        assert grants.settle(0, "a", grant, used(10)) == []
    assert stopped(ask(grants, "b")) == [("b", "max_turns")]


def test_an_ask_for_the_last_turn_waits_for_the_one_that_has_it() -> None:
    grants = running(TreeLimits(max_turns=1))
    assert ask(grants, "a") == [go("a")]
    assert ask(grants, "b") == []
    assert ask(grants, "c") == []
    assert grants.fail(0, "a", 1, None) == [go("b")]
    assert stopped(grants.settle(0, "b", 1, used(10))) == [("c", "max_turns")]


def test_turns_of_earlier_runs_of_the_session_count() -> None:
    grants = running(TreeLimits(max_turns=3), used_before=Usage(api_calls=3))
    assert stopped(ask(grants, "a")) == [("a", "max_turns")]


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_a_call_without_a_cap_is_narrowed_to_what_is_left() -> None:
    grants = running(TreeLimits(max_tokens_total=1000), used_before=Usage(prompt_tokens=200, completion_tokens=100))
    assert ask(grants, "a", prompt=100) == [go("a", 600)]


def test_a_cap_over_what_is_left_is_narrowed_and_a_smaller_one_kept() -> None:
    grants = running(TreeLimits(max_tokens_total=1000))
    assert ask(grants, "a", prompt=100, cap=300) == [go("a", 300)]
    assert ask(grants, "b", prompt=100, cap=900) == [go("b", 500)]


def test_calls_that_would_overspend_together_go_one_after_the_other() -> None:
    grants = running(TreeLimits(max_tokens_total=1000))
    assert ask(grants, "a", prompt=100) == [go("a", 900)]
    assert ask(grants, "b", prompt=100) == []
    assert grants.settle(0, "a", 1, used(300)) == [go("b", 600)]
    assert ask(grants, "c", prompt=100) == []
    assert stopped(grants.settle(0, "b", 1, used(650))) == [("c", "max_tokens_total")]


def test_an_allowance_for_replies_without_a_cap_lets_calls_go_at_once() -> None:
    grants = Grants(TreeLimits(max_tokens_total=1000), reply_allowance=200)
    for agent_id in "abcd":
        grants.admit(agent_id)
    assert ask(grants, "a", prompt=100) == [go("a", 200)]
    assert ask(grants, "b", prompt=100, cap=300) == [go("b", 300)]
    assert ask(grants, "c", prompt=100) == [go("c", 200)]
    assert ask(grants, "d", prompt=100) == []
    assert ask(running(TreeLimits()), "a") == [go("a")]


def test_a_prompt_that_no_settlement_can_make_room_for_is_stopped_at_once() -> None:
    grants = running(TreeLimits(max_tokens_total=1000))
    assert ask(grants, "a", prompt=100, cap=100) == [go("a", 100)]
    assert stopped(ask(grants, "b", prompt=1000)) == [("b", "max_tokens_total")]
    assert ask(grants, "c", prompt=799) == [go("c", 1)]


def test_a_call_needs_room_for_its_prompt_and_one_token_more() -> None:
    grants = running(TreeLimits(max_tokens_total=1000))
    assert ask(grants, "a", prompt=100, cap=100) == [go("a", 100)]
    assert ask(grants, "b", prompt=800) == []
    assert grants.settle(0, "a", 1, used(199)) == [go("b", 1)]
    assert stopped(ask(grants, "c", prompt=801)) == [("c", "max_tokens_total")]


def test_who_waits_for_tokens_is_not_passed_by_smaller_calls() -> None:
    grants = running(TreeLimits(max_tokens_total=1000))
    assert ask(grants, "a", prompt=100, cap=500) == [go("a", 500)]
    assert ask(grants, "b", prompt=600, cap=10) == []
    assert ask(grants, "c", prompt=10, cap=10, endpoint="elsewhere") == []
    assert grants.settle(0, "a", 1, used(150)) == [go("b", 10), go("c", 10)]


def test_a_call_that_used_more_than_it_reserved_stops_the_others() -> None:
    grants = running(TreeLimits(max_tokens_total=1000))
    ask(grants, "a", prompt=100, cap=100)
    assert grants.settle(0, "a", 1, used(5000)) == []
    assert stopped(ask(grants, "b")) == [("b", "max_tokens_total")]


# -- endpoints --------------------------------------------------------------------------------------------------------


def test_a_rate_limit_holds_all_callers_of_its_endpoint_and_no_others() -> None:
    grants = running(TreeLimits(), "abcd")
    ask(grants, "a", now=10)
    assert grants.fail(10, "a", 1, 2.5) == []
    assert ask(grants, "b", now=10.5) == []
    assert ask(grants, "c", now=11) == []
    assert ask(grants, "d", now=11, endpoint="elsewhere") == [go("d")]
    assert grants.next_deadline() == 12.5
    assert grants.tick(12.4) == []
    assert grants.tick(12.5) == [go("b"), go("c")]
    assert grants.next_deadline() is None


def test_a_shorter_hold_does_not_shorten_a_longer_one() -> None:
    grants = running(TreeLimits())
    ask(grants, "a")
    ask(grants, "b")
    grants.fail(0, "a", 1, 30)
    grants.fail(1, "b", 1, 1)
    assert ask(grants, "c", now=5) == []
    assert grants.next_deadline() == 30


def test_a_hold_that_nobody_waits_for_needs_no_wake_up() -> None:
    grants = running(TreeLimits())
    ask(grants, "a")
    grants.fail(0, "a", 1, 30)
    assert grants.next_deadline() is None
    assert ask(grants, "a", grant=2, now=31) == [go("a", grant=2)]


@pytest.mark.parametrize("hold", [None, 0.0, -1.0, math.inf, math.nan])
def test_a_failure_without_a_sane_hold_holds_nobody(hold: float | None) -> None:
    grants = running(TreeLimits())
    ask(grants, "a")
    grants.fail(0, "a", 1, hold)
    assert ask(grants, "b") == [go("b")]


def test_a_clock_that_jumps_back_does_not_bring_a_hold_back() -> None:
    grants = running(TreeLimits())
    ask(grants, "a")
    grants.fail(0, "a", 1, 5)
    grants.tick(6)
    assert ask(grants, "b", now=3) == [go("b")]


def test_a_limit_that_is_reached_stops_held_callers_at_once() -> None:
    grants = running(TreeLimits(max_turns=1))
    ask(grants, "a", endpoint="elsewhere")
    assert grants.fail(0, "a", 1, 60) == []
    assert ask(grants, "b") == [go("b")]
    assert ask(grants, "c", endpoint="elsewhere") == []
    assert stopped(grants.settle(1, "b", 1, used(10))) == [("c", "max_turns")]


# -- leaving and closing ----------------------------------------------------------------------------------------------


def test_an_agent_that_is_gone_gives_up_its_asks_and_what_it_had_reserved() -> None:
    grants = running(TreeLimits(max_turns=2))
    ask(grants, "a", grant=1)
    ask(grants, "a", grant=2)
    assert ask(grants, "b") == []
    assert grants.open_calls("a") == 2
    assert grants.leave("a") == [go("b")]
    assert grants.open_calls("a") == 0
    assert grants.leave("a") == []


def test_an_ask_of_an_agent_that_is_gone_is_not_answered() -> None:
    grants = running(TreeLimits(max_turns=1))
    ask(grants, "a")
    ask(grants, "b")
    assert grants.leave("b") == []
    assert grants.fail(0, "a", 1, None) == []


def test_an_agent_can_be_admitted_again_after_a_crash() -> None:
    grants = running(TreeLimits(max_parallel_agents=1), "a")
    ask(grants, "a")
    grants.leave("a")
    assert grants.admit("a") == [Admitted(agent_id="a")]
    assert ask(grants, "a") == [go("a")]


def test_after_a_close_all_that_wait_and_all_that_ask_are_stopped() -> None:
    grants = running(TreeLimits(max_turns=1, max_parallel_agents=2), "ab")
    grants.admit("c")
    ask(grants, "a")
    ask(grants, "b")
    ask(grants, "c")
    assert stopped(grants.close("timeout", "The time is up.")) == [("b", "timeout"), ("c", "timeout")]
    assert grants.close("other", "Too late.") == []
    assert stopped(ask(grants, "b", grant=2)) == [("b", "timeout")]
    assert grants.settle(0, "a", 1, used(10)) == []
    assert grants.leave("a") == [Admitted(agent_id="c")]


# -- misuse -----------------------------------------------------------------------------------------------------------


def test_inputs_that_can_not_be_are_refused_and_change_nothing() -> None:
    grants = running(TreeLimits(max_turns=1), "a")
    ask(grants, "a")
    with pytest.raises(ValueError, match="without being admitted"):
        ask(grants, "nobody")
    with pytest.raises(ValueError, match="asks twice"):
        ask(grants, "a")
    with pytest.raises(ValueError, match="tokens"):
        ask(grants, "a", grant=2, prompt=-1)
    with pytest.raises(ValueError, match="tokens"):
        ask(grants, "a", grant=2, cap=0)
    with pytest.raises(ValueError, match="no open call"):
        grants.settle(0, "a", 7, used(1))
    with pytest.raises(ValueError, match="no open call"):
        grants.fail(0, "nobody", 1, 5)
    with pytest.raises(ValueError, match="admitted already"):
        grants.admit("a")
    with pytest.raises(ValueError, match="holds no place"):
        grants.park("nobody")
    assert grants.open_calls("a") == 1
    assert grants.fail(0, "a", 1, None) == []
