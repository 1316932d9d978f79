"""Grants under any order of events: limits hold, nobody is answered twice, nobody waits without a cause."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.usage import Usage
from supervisor.core.grants import Admitted, Decision, Go, Grants, Stop, TreeLimits

ENDPOINTS = ["here", "there"]
Key = tuple[str, int]

limits = st.builds(
    TreeLimits,
    max_turns=st.none() | st.integers(0, 12),
    max_tokens_total=st.none() | st.integers(0, 3000),
    max_parallel_agents=st.integers(1, 3),
)


class GrantsMachine(RuleBasedStateMachine):
    """Agents that behave: each call uses at most what its grant gave it."""

    @initialize(limits=limits, allowance=st.none() | st.integers(1, 400))
    def begin(self, limits: TreeLimits, allowance: int | None) -> None:
        self.limits = limits
        self.grants = Grants(limits, reply_allowance=allowance)
        self.now = 0.0
        self.agents = 0
        self.queued: list[str] = []
        self.placed: set[str] = set()
        self.parked: set[str] = set()
        self.returning: set[str] = set()
        self.waiting: dict[Key, tuple[str, int, int | None]] = {}
        self.open: dict[Key, tuple[str, int, int | None]] = {}
        self.held: dict[str, float] = {}
        self.asked = 0
        self.settled_calls = 0
        self.settled_tokens = 0
        self.was_stopped = False

    @property
    def here(self) -> list[str]:
        return sorted({*self.queued, *self.placed, *self.parked, *self.returning})

    def take(self, decisions: list[Decision]) -> None:
        """Check the decisions of one input against what may be decided, and carry them out."""
        for decision in decisions:
            match decision:
                case Admitted(agent_id=agent_id):
                    assert (
                        not self.returning or len(self.placed) + len(self.returning) < self.limits.max_parallel_agents
                    )
                    assert self.queued.pop(0) == agent_id, "newcomers are admitted in their order"
                    self.placed.add(agent_id)
                case Go(agent_id=agent_id, grant=grant, max_tokens=max_tokens):
                    self.check_order((agent_id, grant))
                    endpoint, prompt, cap = self.waiting.pop((agent_id, grant))
                    if agent_id in self.returning:
                        self.returning.remove(agent_id)
                        self.placed.add(agent_id)
                    assert agent_id in self.placed, "only who has a place may call"
                    assert self.held.get(endpoint, 0) <= self.now, "a held endpoint gets no calls"
                    assert cap is None or (max_tokens is not None and max_tokens <= cap)
                    self.open[agent_id, grant] = (endpoint, prompt, max_tokens)
                case Stop(agent_id=agent_id, grant=grant):
                    self.waiting.pop((agent_id, grant))
                    self.was_stopped = True

    def check_order(self, key: Key) -> None:
        """Among asks for one endpoint whose agents surely have a place, the first that came goes first."""
        endpoint = self.waiting[key][0]
        before = list(self.waiting)[: list(self.waiting).index(key)]
        passed = [k for k in before if self.waiting[k][0] == endpoint and k[0] in self.placed]
        assert not passed, f"{key} goes before {passed}"

    @rule()
    def admit(self) -> None:
        agent_id = f"agent-{self.agents}"
        self.agents += 1
        self.queued.append(agent_id)
        self.take(self.grants.admit(agent_id))

    @precondition(lambda self: self.here)
    @rule(
        data=st.data(),
        endpoint=st.sampled_from(ENDPOINTS),
        prompt=st.integers(0, 400),
        cap=st.none() | st.integers(1, 400),
    )
    def ask(self, data: st.DataObject, endpoint: str, prompt: int, cap: int | None) -> None:
        agent_id = data.draw(st.sampled_from(self.here))
        if agent_id in self.parked:
            self.parked.remove(agent_id)
            self.returning.add(agent_id)
        self.asked += 1
        self.waiting[agent_id, self.asked] = (endpoint, prompt, cap)
        self.take(self.grants.ask(self.now, agent_id, self.asked, endpoint, prompt, cap))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        agent_id, grant = data.draw(st.sampled_from(sorted(self.open)))
        _, prompt, max_tokens = self.open.pop((agent_id, grant))
        usage = Usage(
            prompt_tokens=data.draw(st.integers(0, prompt)),
            completion_tokens=data.draw(st.integers(0, 500 if max_tokens is None else max_tokens)),
            api_calls=1,
        )
        self.settled_calls += 1
        self.settled_tokens += usage.total_tokens
        self.take(self.grants.settle(self.now, agent_id, grant, usage))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), hold=st.none() | st.floats(0, 10))
    def fail(self, data: st.DataObject, hold: float | None) -> None:
        agent_id, grant = data.draw(st.sampled_from(sorted(self.open)))
        endpoint, _, _ = self.open.pop((agent_id, grant))
        if hold:
            self.held[endpoint] = max(self.held.get(endpoint, 0), self.now + hold)
        self.take(self.grants.fail(self.now, agent_id, grant, hold))

    @rule(seconds=st.floats(0, 5))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.grants.tick(self.now))

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        agent_id = data.draw(st.sampled_from(sorted(self.placed)))
        self.placed.remove(agent_id)
        self.parked.add(agent_id)
        self.take(self.grants.park(agent_id))

    @precondition(lambda self: self.parked)
    @rule(data=st.data())
    def unpark(self, data: st.DataObject) -> None:
        agent_id = data.draw(st.sampled_from(sorted(self.parked)))
        self.parked.remove(agent_id)
        self.returning.add(agent_id)
        self.take(self.grants.unpark(agent_id))

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        agent_id = data.draw(st.sampled_from(self.here))
        assert self.grants.open_calls(agent_id) == sum(key[0] == agent_id for key in self.open)
        self.forget(agent_id)
        self.take(self.grants.leave(agent_id))

    def forget(self, agent_id: str) -> None:
        for group in (self.placed, self.parked, self.returning):
            group.discard(agent_id)
        if agent_id in self.queued:
            self.queued.remove(agent_id)
        self.waiting = {key: ask for key, ask in self.waiting.items() if key[0] != agent_id}
        self.open = {key: call for key, call in self.open.items() if key[0] != agent_id}

    @invariant()
    def the_limits_hold_whatever_the_open_calls_will_use(self) -> None:
        if self.limits.max_turns is not None:
            assert self.settled_calls + len(self.open) <= self.limits.max_turns
        if self.limits.max_tokens_total is not None:
            caps = [(prompt, max_tokens) for _, prompt, max_tokens in self.open.values()]
            assert all(max_tokens is not None and max_tokens >= 1 for _, max_tokens in caps)
            reserved = sum(prompt + (max_tokens or 0) for prompt, max_tokens in caps)
            assert self.settled_tokens + reserved <= self.limits.max_tokens_total
        assert len(self.placed) <= self.limits.max_parallel_agents

    @invariant()
    def nobody_is_stopped_without_a_limit(self) -> None:
        assert not self.was_stopped or (self.limits.max_turns, self.limits.max_tokens_total) != (None, None)

    @invariant()
    def who_waits_for_a_hold_is_woken_at_its_end(self) -> None:
        ends = [self.held.get(endpoint, 0) for endpoint, _, _ in self.waiting.values()]
        assert self.grants.next_deadline() == min((end for end in ends if end > self.now), default=None)

    def teardown(self) -> None:
        """Once nobody waits for children, holds end and calls are answered, everybody is admitted and answered."""
        if not hasattr(self, "grants"):
            return
        for agent_id in sorted(self.parked):
            self.parked.remove(agent_id)
            self.returning.add(agent_id)
            self.take(self.grants.unpark(agent_id))
        for _ in range(2 * (self.agents + self.asked) + 2):
            self.now = self.grants.next_deadline() or self.now
            self.take(self.grants.tick(self.now))
            for agent_id, grant in list(self.open):
                self.open.pop((agent_id, grant), None)
                self.settled_calls += 1
                self.take(self.grants.settle(self.now, agent_id, grant, Usage(api_calls=1)))
            done = sorted(self.placed | self.returning)
            for agent_id in done:
                if not any(key[0] == agent_id for key in (*self.waiting, *self.open)):
                    self.forget(agent_id)
                    self.take(self.grants.leave(agent_id))
        assert (self.waiting, self.queued, self.open) == ({}, [], {})


TestGrantsMachine = GrantsMachine.TestCase
