from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.content import ToolCall
from protocol.records import AgentOutcome
from supervisor.core.agent_tree import AgentNode, AgentTree
from supervisor.core.grants import TreeLimits


def family() -> AgentTree:
    """The main agent m with the children a and b, and a's child c."""
    tree = AgentTree()
    tree.add("m", agent_name="default")
    for agent_id, parent in (("a", "m"), ("b", "m"), ("c", "a")):
        tree.add(agent_id, agent_name="task", parent_agent_id=parent, parent_call_id="call-1")
    return tree


def ids(nodes: tuple[AgentNode, ...]) -> str:
    return "".join(node.agent_id for node in nodes)


def call(call_id: str, name: str = "Bash", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def test_relatives_are_found_in_every_direction() -> None:
    tree = family()
    assert ids(tree.nodes) == "mabc"
    assert ids(tree.children("m")) == "ab"
    assert ids(tree.ancestors("c")) == "am"
    assert tree.ancestors("m") == ()
    assert [node.depth for node in tree.nodes] == [0, 1, 1, 2]


def test_live_descendants_come_deepest_first_and_without_the_ended() -> None:
    tree = family()
    assert ids(tree.live_descendants("m")) == "cba"
    tree.end("b", "complete")
    assert ids(tree.live_descendants("m")) == "ca"
    tree.end("a", "crashed")
    assert ids(tree.live_descendants("m")) == "c"


def test_an_agent_ends_once() -> None:
    tree = family()
    assert tree.end("c", "crashed").outcome == "crashed"
    with pytest.raises(ValueError, match="ended"):
        tree.end("c", "complete")
    assert tree["c"].outcome == "crashed"


def test_nothing_happens_to_an_agent_after_its_end() -> None:
    tree = family()
    tree.end("c", "complete")
    with pytest.raises(ValueError, match="ended"):
        tree.open_call("c", call("1"))
    with pytest.raises(ValueError, match="ended"):
        tree.set_state("c", "running")
    with pytest.raises(ValueError, match="ended"):
        tree.restart("c")
    with pytest.raises(ValueError, match="ended"):
        tree.add("d", agent_name="task", parent_agent_id="c", parent_call_id="1")
    assert "d" not in tree
    assert tree.children("c") == ()


def test_a_starting_agent_can_not_wait() -> None:
    tree = family()
    with pytest.raises(ValueError, match="starting to waiting"):
        tree.set_state("a", "waiting")
    assert tree.set_state("a", "running").state == "running"
    assert tree.set_state("a", "waiting").state == "waiting"


def test_a_restarted_agent_starts_again_with_its_calls_open() -> None:
    tree = family()
    tree.set_state("a", "running")
    tree.open_call("a", call("1", "InvokeAgent"))
    node = tree.restart("a")
    assert (node.state, node.restarts) == ("starting", 1)
    assert node.open_calls == (call("1", "InvokeAgent"),)
    assert tree.restart("a").restarts == 2


def test_a_snapshot_does_not_change_with_its_agent() -> None:
    tree = family()
    before = tree["a"]
    tree.open_call("a", call("1"))
    assert not before.open_calls
    assert tree["a"].open_calls == (call("1"),)


def test_the_oldest_open_call_of_an_id_and_name_is_closed() -> None:
    tree = family()
    for item in (call("1", arguments='{"n":1}'), call("1", "Read"), call("1", arguments='{"n":2}')):
        tree.open_call("m", item)
    assert tree.close_call("m", "1", "Bash")
    assert list(tree["m"].open_calls) == [call("1", "Read"), call("1", arguments='{"n":2}')]
    assert tree.close_call("m", "1", "Bash")
    assert not tree.close_call("m", "1", "Bash")
    assert list(tree["m"].open_calls) == [call("1", "Read")]


def test_calls_of_an_ended_agent_are_left_for_the_caller_to_close() -> None:
    tree = family()
    tree.open_call("c", call("1"))
    ended = tree.end("c", "crashed")
    assert ended.open_calls == (call("1"),)
    assert tree.close_call("c", "1", "Bash")
    assert tree["c"].open_calls == ()


@pytest.mark.parametrize(
    ("agent_id", "parent", "parent_call"),
    [("a", "m", "1"), ("x", None, None), ("x", "m", None), ("x", None, "1")],
    ids=["again", "second main", "child without a call", "call without a parent"],
)
def test_an_agent_that_can_not_be_is_refused(agent_id: str, parent: str | None, parent_call: str | None) -> None:
    tree = family()
    with pytest.raises(ValueError, match=agent_id):
        tree.add(agent_id, agent_name="task", parent_agent_id=parent, parent_call_id=parent_call)
    assert ids(tree.nodes) == "mabc"


def test_the_first_agent_has_no_parent() -> None:
    with pytest.raises(ValueError, match="first"):
        AgentTree().add("a", agent_name="task", parent_agent_id="m", parent_call_id="1")


def test_an_unknown_parent_is_refused_without_a_trace() -> None:
    tree = family()
    with pytest.raises(KeyError):
        tree.add("x", agent_name="task", parent_agent_id="nobody", parent_call_id="1")
    assert "x" not in tree


def test_sub_agents_are_counted_over_the_whole_run() -> None:
    tree = family()
    tree.end("c", "complete")
    tree.restart("b")
    assert tree.may_spawn("m", TreeLimits(max_agents=4)) is None
    refusal = tree.may_spawn("m", TreeLimits(max_agents=3))
    assert refusal is not None
    assert refusal.code == "max_agents"
    assert "3" in refusal.message


def test_an_agent_at_the_deepest_level_may_start_none() -> None:
    tree = family()
    limits = TreeLimits(max_agent_depth=2)
    assert tree.may_spawn("a", limits) is None
    refusal = tree.may_spawn("c", limits)
    assert refusal is not None
    assert refusal.code == "max_agent_depth"
    assert "2" in refusal.message


def test_an_agent_that_has_ended_may_start_none() -> None:
    tree = family()
    tree.end("c", "complete")
    refusal = tree.may_spawn("c", TreeLimits())
    assert refusal is not None
    assert refusal.code == "agent_ended"


LIMITS = TreeLimits(max_agents=6, max_agent_depth=3)
outcomes: st.SearchStrategy[AgentOutcome] = st.sampled_from(["complete", "error", "cancelled", "crashed", "limit"])


class AgentTreeMachine(RuleBasedStateMachine):
    """Agents start, call tools, restart and end in any order, as far as the tree lets them."""

    @initialize()
    def begin(self) -> None:
        self.tree = AgentTree()
        self.tree.add("0", agent_name="default")
        self.outcomes: dict[str, AgentOutcome] = {}
        self.calls: dict[str, list[ToolCall]] = {"0": []}

    def some_live(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([node.agent_id for node in self.tree.nodes if node.is_live]))

    @precondition(lambda self: len(self.outcomes) < len(self.calls))
    @rule(data=st.data())
    def spawn(self, data: st.DataObject) -> None:
        parent = self.some_live(data)
        if self.tree.may_spawn(parent, LIMITS) is not None:
            assert len(self.calls) == 1 + LIMITS.max_agents or self.tree[parent].depth == LIMITS.max_agent_depth
            return
        agent_id = str(len(self.calls))
        self.tree.add(agent_id, agent_name="task", parent_agent_id=parent, parent_call_id="same")
        self.calls[agent_id] = []

    @precondition(lambda self: len(self.outcomes) < len(self.calls))
    @rule(
        data=st.data(), call_id=st.sampled_from("12"), name=st.sampled_from(["Bash", "Read"]), text=st.text(max_size=3)
    )
    def open_call(self, data: st.DataObject, call_id: str, name: str, text: str) -> None:
        agent_id = self.some_live(data)
        opened = call(call_id, name, text)
        self.tree.open_call(agent_id, opened)
        self.calls[agent_id].append(opened)

    @rule(data=st.data(), call_id=st.sampled_from("12"), name=st.sampled_from(["Bash", "Read"]))
    def close_call(self, data: st.DataObject, call_id: str, name: str) -> None:
        agent_id = data.draw(st.sampled_from(sorted(self.calls)))
        match = next((item for item in self.calls[agent_id] if (item.id, item.name) == (call_id, name)), None)
        assert self.tree.close_call(agent_id, call_id, name) == (match is not None)
        if match is not None:
            self.calls[agent_id].remove(match)

    @precondition(lambda self: len(self.outcomes) < len(self.calls))
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        agent_id = self.some_live(data)
        restarts = self.tree[agent_id].restarts
        assert self.tree.restart(agent_id).restarts == restarts + 1

    @precondition(lambda self: len(self.outcomes) < len(self.calls))
    @rule(data=st.data(), outcome=outcomes)
    def end_with_all_descendants(self, data: st.DataObject, outcome: AgentOutcome) -> None:
        agent_id = self.some_live(data)
        for node in (*self.tree.live_descendants(agent_id), self.tree[agent_id]):
            assert not self.tree.live_descendants(node.agent_id), "a child must be ended before its parent"
            self.tree.end(node.agent_id, outcome)
            self.outcomes[node.agent_id] = outcome

    @invariant()
    def limits_hold(self) -> None:
        assert len(self.tree.nodes) <= 1 + LIMITS.max_agents
        assert all(node.depth <= LIMITS.max_agent_depth for node in self.tree.nodes)

    @invariant()
    def every_agent_has_the_outcome_it_first_got_and_its_calls_in_order(self) -> None:
        assert {node.agent_id: node.outcome for node in self.tree.nodes if not node.is_live} == self.outcomes
        assert {node.agent_id: list(node.open_calls) for node in self.tree.nodes} == self.calls

    @invariant()
    def parents_and_children_agree(self) -> None:
        for node in self.tree.nodes:
            assert len(self.tree.ancestors(node.agent_id)) == node.depth
            assert all(child.parent_agent_id == node.agent_id for child in self.tree.children(node.agent_id))
        assert sum(len(self.tree.children(node.agent_id)) for node in self.tree.nodes) == len(self.tree.nodes) - 1


TestAgentTreeMachine = AgentTreeMachine.TestCase
