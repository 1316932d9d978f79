from __future__ import annotations

import trio.testing

from protocol.agent_spec import ModelSettings
from protocol.frames import AskGrant, GrantAnswer
from protocol.usage import Usage
from supervisor.core.endpoint_gate import FIRST_LIMIT
from supervisor.core.grants import TreeLimits
from supervisor.endpoints import Endpoints
from supervisor.grant_gate import GrantGate, endpoint_name

MODEL = ModelSettings(provider="p", adapter="scripted", model="m", base_url="http://one")
OTHER = ModelSettings(provider="p", adapter="scripted", model="other", base_url="http://one")
USED = Usage(prompt_tokens=10, completion_tokens=1, api_calls=1)


class RunOfOne:
    """The gate of a run with one agent, which shares ``endpoints``."""

    def __init__(self, endpoints: Endpoints, model: ModelSettings = MODEL) -> None:
        self.gate = GrantGate(TreeLimits())
        self.gate.share(endpoints)
        self.gate.admit("main", self)
        self.model = model
        self.grants: list[int] = []

    def admitted(self) -> None:
        """It is the only one."""

    def tell(self, message: GrantAnswer) -> None:
        assert message.decision == "go"
        self.grants.append(message.grant)

    def ask(self, grant: int) -> None:
        frame = AskGrant(grant=grant, purpose="reply", prompt_tokens=1, max_tokens=None)
        self.gate.ask("main", frame, self.model)


async def test_runs_that_share_an_endpoint_share_its_limit() -> None:
    endpoints = Endpoints()
    runs = [RunOfOne(endpoints) for _ in range(FIRST_LIMIT + 1)]
    for run in runs:
        run.ask(1)
    assert [run.grants for run in runs] == [[1]] * FIRST_LIMIT + [[]]
    assert endpoints.has_queue
    runs[0].gate.settle("main", 1, USED)
    assert runs[-1].grants == [1]
    assert not endpoints.has_queue


async def test_another_model_is_another_endpoint() -> None:
    endpoints = Endpoints()
    for _ in range(FIRST_LIMIT):
        RunOfOne(endpoints).ask(1)
    other = RunOfOne(endpoints, OTHER)
    other.ask(1)
    assert other.grants == [1]
    assert endpoint_name(MODEL) != endpoint_name(OTHER)


async def test_a_rate_limit_holds_nobody_but_narrows_the_endpoint() -> None:
    endpoints = Endpoints()
    runs = [RunOfOne(endpoints) for _ in range(FIRST_LIMIT)]
    for run in runs:
        run.ask(1)
    runs[0].gate.fail("main", 1, 60.0)
    runs[1].gate.settle("main", 1, USED)
    runs[1].ask(2)
    assert runs[1].grants == [1, 2], "two are under way, three may be"
    runs[0].ask(2)
    assert runs[0].grants == [1], "the one that was refused is the fourth"


async def test_a_call_that_waited_when_its_agent_died_is_not_counted_as_under_way() -> None:
    endpoints = Endpoints()
    busy = [RunOfOne(endpoints) for _ in range(FIRST_LIMIT)]
    for run in busy:
        run.ask(1)
    waiting, next_one = RunOfOne(endpoints), RunOfOne(endpoints)
    waiting.ask(1)
    next_one.ask(1)
    assert waiting.gate.leave("main") == 0
    assert busy[0].gate.leave("main") == 1
    assert (waiting.grants, next_one.grants) == ([], [1])


async def test_the_time_without_a_success_counts_from_the_first_rate_limit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    endpoints = Endpoints()
    run = RunOfOne(endpoints)
    run.ask(1)
    assert endpoints.limited_for() == 0
    run.gate.fail("main", 1, 1.0)
    await trio.sleep(5)
    run.ask(2)
    run.gate.fail("main", 2, 1.0)
    await trio.sleep(5)
    assert endpoints.limited_for() == 10
    run.ask(3)
    run.gate.settle("main", 3, USED)
    assert endpoints.limited_for() == 0
