"""Accounts that add up, whatever dies: the machines that keep them, and a run against what its server billed."""

from __future__ import annotations

import signal
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.records import AgentOutcome
from protocol.usage import Usage
from supervisor.core.agent_tree import AgentTree
from supervisor.core.grants import Decision, Go, Grants, Stop, TreeLimits
from supervisor.core.usage_tree import UsageTree
from tests.faults.scene import QUICK, check_store, run_with
from tests.stubs.corral_run import Place, Run
from tests.stubs.faulty_corral import faulty_place
from tests.stubs.faulty_worker import Fault, FaultKind
from tests.stubs.model_server import ModelServer, ReceivedRequest, scripted
from tests.stubs.replies import Reply, delegations, hang, plain_calls, plain_text, text, tool_calls

NOTHING = Usage()
usages = st.builds(
    Usage,
    prompt_tokens=st.integers(0, 500),
    completion_tokens=st.integers(0, 200),
    thinking_tokens=st.integers(0, 50),
    api_calls=st.just(1),
)
LIMITS = TreeLimits(max_parallel_agents=3, max_agent_depth=3, max_agents=20, max_tokens_total=100_000)


class Accounts(RuleBasedStateMachine):
    """The tree, its usage and its grants, driven as the supervisor drives them, beside a server that bills.

    ``seen`` is what was billed and told, by agent; ``unseen`` what was billed for a call whose worker died.
    """

    @initialize()
    def begin(self) -> None:
        self.base: dict[str, Usage] = {}
        self.epoch = 0
        self.uncertain = 0
        self.unseen = NOTHING
        self.billed = NOTHING
        self.now = 0.0
        self.take_up()

    def take_up(self) -> None:
        """A new process takes the session up, with what the ones before it stored."""
        self.epoch += 1
        self.tree = AgentTree()
        self.usage = UsageTree(base=self.base)
        self.grants = Grants(LIMITS)
        self.seen: dict[str, Usage] = {}
        self.open: dict[str, tuple[int, int]] = {}
        self.waiting: dict[str, int] = {}
        self.numbers = 0
        self.add("main", None)

    def add(self, agent_id: str, parent: str | None) -> None:
        self.tree.add(
            agent_id,
            agent_name="task",
            parent_agent_id=parent,
            parent_call_id=None if parent is None else f"call-{agent_id}",
        )
        self.usage.add_node(agent_id, parent, "task")
        self.seen[agent_id] = NOTHING
        self.take(self.grants.admit(agent_id))

    def take(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Go):
                assert self.waiting.pop(decision.agent_id) == decision.grant
                self.open[decision.agent_id] = (decision.grant, decision.max_tokens or 0)
            elif isinstance(decision, Stop):
                del self.waiting[decision.agent_id]

    @property
    def live(self) -> list[str]:
        return [node.agent_id for node in self.tree.nodes if node.is_live]

    # -- what agents do

    @rule(data=st.data())
    def spawn(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.live)) if self.live else None
        if parent is None or self.tree.may_spawn(parent, LIMITS) is not None:
            return
        self.add(f"agent-{self.epoch}-{len(self.tree.nodes)}", parent)

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        idle = [each for each in self.live if each not in self.open and each not in self.waiting]
        if not idle:
            return
        agent_id = data.draw(st.sampled_from(idle))
        self.numbers += 1
        self.waiting[agent_id] = self.numbers
        self.take(self.grants.ask(self.now, agent_id, self.numbers, "endpoint", 500, 200))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), usage=usages)
    def reply(self, data: st.DataObject, usage: Usage) -> None:
        agent_id = data.draw(st.sampled_from(sorted(self.open)))
        grant, _ = self.open.pop(agent_id)
        self.billed += usage
        self.take(self.grants.settle(self.now, agent_id, grant, usage))
        self.usage.add(agent_id, usage)
        self.seen[agent_id] += usage

    @precondition(lambda self: self.open)
    @rule(data=st.data(), hold=st.none() | st.floats(0.1, 3))
    def fail(self, data: st.DataObject, hold: float | None) -> None:
        agent_id = data.draw(st.sampled_from(sorted(self.open)))
        grant, _ = self.open.pop(agent_id)
        self.take(self.grants.fail(self.now, agent_id, grant, hold))

    @rule(seconds=st.floats(0.1, 5))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.grants.tick(self.now))

    # -- what happens to them

    def lose(self, agent_id: str, billed: Usage | None) -> None:
        """The worker dies; a call of its that was under way may have been billed."""
        under_way = self.grants.open_calls(agent_id)
        assert under_way == (agent_id in self.open)
        if agent_id in self.open and billed is not None:
            self.billed += billed
            self.unseen += billed
        self.uncertain += under_way
        self.open.pop(agent_id, None)
        self.waiting.pop(agent_id, None)
        self.take(self.grants.leave(agent_id))

    @rule(data=st.data(), billed=st.none() | usages, restarted=st.booleans())
    def crash(self, data: st.DataObject, billed: Usage | None, restarted: bool) -> None:
        if not self.live:
            return
        agent_id = data.draw(st.sampled_from(self.live))
        self.lose(agent_id, billed)
        if restarted:
            self.tree.restart(agent_id)
            self.take(self.grants.admit(agent_id))
        else:
            self.end(agent_id, "crashed")

    @rule(data=st.data(), billed=st.none() | usages)
    def finish(self, data: st.DataObject, billed: Usage | None) -> None:
        ready = [each for each in self.live if each not in self.open]
        if ready:
            self.end(data.draw(st.sampled_from(ready)), "complete")
        elif self.live:
            self.crash(data, billed, restarted=False)

    def end(self, agent_id: str, outcome: AgentOutcome) -> None:
        """Its descendants end before it: cancelled, with whatever call they had under way."""
        for node in self.tree.live_descendants(agent_id):
            self.lose(node.agent_id, None)
            self.tree.end(node.agent_id, "cancelled")
        self.waiting.pop(agent_id, None)
        self.take(self.grants.leave(agent_id))
        self.tree.end(agent_id, outcome)

    @rule()
    def resume(self) -> None:
        """The process ends, or is killed, and another goes on with the session."""
        for agent_id in list(self.live):
            self.lose(agent_id, None)
        self.base = self.usage.by_name(with_base=True)
        self.take_up()

    # -- what holds at every moment

    @invariant()
    def every_total_is_its_own_calls_and_its_childrens(self) -> None:
        for node in self.tree.nodes:
            children = self.tree.children(node.agent_id)
            below = sum((self.usage.total(child.agent_id) for child in children), NOTHING)
            assert self.usage.own(node.agent_id) == self.seen[node.agent_id]
            assert self.usage.total(node.agent_id) == self.seen[node.agent_id] + below

    @invariant()
    def the_session_is_what_was_billed_but_for_what_it_calls_uncertain(self) -> None:
        assert self.usage.session_total() + self.unseen == self.billed
        assert self.unseen.api_calls <= self.uncertain
        assert sum(self.usage.by_name(with_base=True).values(), NOTHING) == self.usage.session_total()
        assert sum(self.usage.by_name().values(), NOTHING) == self.usage.run_total()

    @invariant()
    def the_grants_know_of_the_same_calls(self) -> None:
        for node in self.tree.nodes:
            assert self.grants.open_calls(node.agent_id) == (node.agent_id in self.open)


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# -- a run ------------------------------------------------------------------------------------------------------------

LEAVES = ("a-1", "a-2", "b-1", "b-2")


def family(request: ReceivedRequest) -> Reply:
    """The main agent has two sub-agents, these have two each, and everybody runs a command first."""
    agent = "main" if request.streaming else request.prompt
    replies = sum(message["role"] == "assistant" for message in request.messages)
    run = (f"run-{agent}", "Bash", {"command": "echo begun; sleep 0.1"})
    below = {"main": ("a", "b"), "a": LEAVES[:2], "b": LEAVES[2:]}.get(agent, ())
    script = [[run], delegations("task", *below)] if below else [[run]]
    if replies < len(script):
        return tool_calls(script[replies]) if request.streaming else plain_calls(*script[replies])
    return text("All done.") if request.streaming else plain_text(f"{agent} is done")


def check_tree(run: Run, calls: int) -> None:
    summary = run.one("run_summary")
    assert summary["usage"]["api_calls"] == calls
    assert {node["agent_name"] for node in summary["agents"]} == {"main", "task"}


def test_a_run_with_many_deaths_knows_what_its_server_billed(tmp_path: Path) -> None:
    kinds: tuple[FaultKind, ...] = ("kill", "exit", "garbage", "cut")
    faults = [
        *(Fault(agent=leaf, moment="tool", kind=kind) for leaf, kind in zip(LEAVES, kinds, strict=True)),
        Fault(agent="a", moment="stream", kind="kill"),
        Fault(agent="b", moment="shutdown", kind="kill"),
        Fault(agent="main", moment="stream", kind="kill"),
        Fault(agent="main", moment="tool", kind="kill"),
    ]
    run, billed = run_with(faulty_place(tmp_path, *faults), family)
    assert run.returncode == 0, run
    assert len(run.of_type("agent_crashed")) == len(faults)
    check_tree(run, calls=3 + 2 * 3 + 4 * 2)
    # The two that died in the middle of a call: the main agent's had been answered, the sub-agent's not even asked.
    assert run.one("run_summary")["uncertain_calls"] == 2
    assert billed.api_calls == run.one("run_summary")["usage"]["api_calls"] + 1


def test_the_accounts_of_a_session_go_on_in_the_process_after_a_killed_one(tmp_path: Path) -> None:
    place = faulty_place(tmp_path, Fault(agent="a", moment="tool", kind="kill"))
    with ModelServer(family) as server:
        with place.start(server, *QUICK) as live:
            session_id = live.wait_for(lambda line: line["type"] == "session_ready")[0]["session_id"]
            live.wait_for(lambda line: line["type"] == "sub_agent_end", count=2)
            live.process.kill()
            live.finish(10, checked=False)
        run = place.run(server, *QUICK, "-s", session_id, prompt="Go on")
        billed = server.billed
    check_store(place)
    assert run.returncode == 0, run
    summary = run.one("run_summary")
    assert summary["usage"]["api_calls"] <= billed.api_calls
    assert billed.api_calls <= summary["usage"]["api_calls"] + summary["uncertain_calls"]


def test_a_call_under_way_when_the_run_is_cancelled_is_named_as_uncertain(tmp_path: Path) -> None:
    with ModelServer(lambda _request: hang()) as server, Place(tmp_path).start(server) as live:
        server.wait_for_requests(1)
        live.signal(signal.SIGINT)
        run = live.finish()
    assert run.returncode == 130, run
    summary = run.one("run_summary")
    assert (summary["usage"]["api_calls"], summary["uncertain_calls"]) == (0, 1)


def test_a_run_that_is_cancelled_while_a_tool_runs_has_no_uncertain_call(tmp_path: Path) -> None:
    handler = scripted([tool_calls([("run", "Bash", {"command": "echo begun; sleep 60"})])])
    with ModelServer(handler) as server, Place(tmp_path).start(server) as live:
        live.wait_for_output("begun")
        live.signal(signal.SIGINT)
        run = live.finish()
    summary = run.one("run_summary")
    assert (summary["usage"]["api_calls"], summary["uncertain_calls"]) == (server.billed.api_calls, 0)
