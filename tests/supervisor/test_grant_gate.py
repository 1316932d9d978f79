from __future__ import annotations

import pytest
import trio
import trio.testing

from protocol.agent_spec import ModelSettings
from protocol.errors import ProtocolError
from protocol.frames import AskGrant, GrantAnswer
from protocol.usage import Usage
from supervisor.core.grants import TreeLimits
from supervisor.grant_gate import GrantGate

MODEL = ModelSettings(provider="p", adapter="scripted", model="m", base_url="http://one")
ELSEWHERE = ModelSettings(provider="p", adapter="scripted", model="m", base_url="http://two")
USED = Usage(prompt_tokens=10, completion_tokens=1, api_calls=1)


class Taker:
    """An agent that notes what it is told."""

    def __init__(self) -> None:
        self.has_place = False
        self.answers: list[GrantAnswer] = []

    def admitted(self) -> None:
        self.has_place = True

    def tell(self, message: GrantAnswer) -> None:
        self.answers.append(message)


def ask(grant: int = 1, prompt_tokens: int = 10, max_tokens: int | None = None) -> AskGrant:
    return AskGrant(grant=grant, purpose="reply", prompt_tokens=prompt_tokens, max_tokens=max_tokens)


def entered(gate: GrantGate, *names: str) -> list[Taker]:
    takers = [Taker() for _ in names]
    for name, taker in zip(names, takers, strict=True):
        gate.admit(name, taker)
    return takers


async def test_an_answer_goes_to_the_agent_that_asked() -> None:
    gate = GrantGate(TreeLimits())
    one, other = entered(gate, "one", "other")
    gate.ask("other", ask(7, max_tokens=5), MODEL)
    assert one.answers == []
    assert other.answers == [GrantAnswer(grant=7, decision="go", max_tokens=5)]


async def test_a_limit_is_told_with_its_code_and_a_sentence() -> None:
    gate = GrantGate(TreeLimits(max_turns=1))
    (taker,) = entered(gate, "main")
    gate.ask("main", ask(1), MODEL)
    gate.settle("main", 1, USED)
    gate.ask("main", ask(2), MODEL)
    answer = taker.answers[-1]
    assert (answer.grant, answer.decision, answer.code) == (2, "stop", "max_turns")
    assert answer.message


async def test_a_place_that_is_given_back_goes_to_the_next_agent() -> None:
    gate = GrantGate(TreeLimits(max_parallel_agents=1))
    main, child = entered(gate, "main", "child")
    assert (main.has_place, child.has_place) == (True, False)
    gate.park("main")
    assert child.has_place


async def test_an_agent_that_leaves_tells_how_many_calls_it_had_under_way() -> None:
    gate = GrantGate(TreeLimits())
    entered(gate, "main")
    gate.ask("main", ask(), MODEL)
    assert gate.leave("main") == 1
    assert gate.leave("main") == 0


@pytest.mark.parametrize("fault", ["twice", "settled twice", "not asked", "no tokens"])
async def test_numbers_that_can_not_be_are_the_workers_protocol_error(fault: str) -> None:
    gate = GrantGate(TreeLimits())
    (taker,) = entered(gate, "main")
    gate.ask("main", ask(1), MODEL)
    with pytest.raises(ProtocolError, match="main"):
        if fault == "twice":
            gate.ask("main", ask(1), MODEL)
        elif fault == "settled twice":
            gate.settle("main", 1, USED)
            gate.settle("main", 1, USED)
        elif fault == "not asked":
            gate.fail("main", 2, None)
        else:
            gate.ask("main", ask(2, max_tokens=0), MODEL)
    gate.ask("main", ask(9), MODEL)
    assert [answer.grant for answer in taker.answers] == [1, 9], "and nothing has changed"


async def test_a_rate_limit_holds_all_that_use_the_endpoint_until_its_time_has_come(
    autojump_clock: trio.testing.MockClock,
) -> None:
    gate = GrantGate(TreeLimits())
    one, two, three = entered(gate, "one", "two", "three")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.run_clock)
        gate.ask("one", ask(), MODEL)
        gate.fail("one", 1, 30.0)
        begun = trio.current_time()
        gate.ask("two", ask(), MODEL)
        gate.ask("three", ask(), ELSEWHERE)
        assert (len(one.answers), len(two.answers), len(three.answers)) == (1, 0, 1)
        await trio.sleep(29.9)
        assert two.answers == []
        while not two.answers:
            await trio.sleep(0.01)
        assert trio.current_time() - begun == pytest.approx(30.0, abs=0.05)
        nursery.cancel_scope.cancel()


async def test_the_clock_notices_a_hold_that_comes_while_it_waits_for_a_later_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    gate = GrantGate(TreeLimits())
    one, two, _ = entered(gate, "one", "two", "three")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.run_clock)
        for agent, model, held in (("one", MODEL, 100.0), ("two", ELSEWHERE, 5.0)):
            gate.ask(agent, ask(1), model)
            gate.fail(agent, 1, held)
            gate.ask(agent, ask(2), model)
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(6)
        assert (len(one.answers), len(two.answers)) == (1, 2)
        await trio.sleep(100)
        assert len(one.answers) == 2
        nursery.cancel_scope.cancel()


async def test_a_closed_gate_stops_who_waits_and_who_comes_later() -> None:
    gate = GrantGate(TreeLimits(max_turns=1))
    main, child = entered(gate, "main", "child")
    gate.ask("main", ask(1), MODEL)
    gate.ask("child", ask(1), MODEL)
    assert child.answers == [], "it waits for the open call, which may use the last turn"
    gate.close("sigint", "ended by SIGINT")
    gate.ask("main", ask(2), MODEL)
    for answer in (child.answers[0], main.answers[1]):
        assert (answer.decision, answer.code, answer.message) == ("stop", "sigint", "ended by SIGINT")
