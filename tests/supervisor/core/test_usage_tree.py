from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from protocol.usage import Usage
from supervisor.core.usage_tree import UsageTree

ONE_CALL = Usage(prompt_tokens=100, completion_tokens=10, api_calls=1)

counts = st.integers(0, 10**6)
usages = st.builds(
    Usage,
    prompt_tokens=counts,
    completion_tokens=counts,
    cache_read_tokens=counts,
    cache_creation_tokens=counts,
    thinking_tokens=counts,
    api_calls=st.integers(0, 3),
)


def added_up(parts: list[Usage]) -> Usage:
    return sum(parts, Usage())


def family() -> UsageTree:
    tree = UsageTree()
    tree.add_node("m", None, "default")
    tree.add_node("c", "m", "task")
    tree.add_node("g", "c", "explore")
    return tree


def test_a_grandchilds_usage_counts_for_all_its_ancestors() -> None:
    tree = family()
    tree.add("g", ONE_CALL)
    assert [tree.total(agent_id) for agent_id in "mcg"] == [ONE_CALL] * 3
    assert [tree.own(agent_id) for agent_id in "mcg"] == [Usage(), Usage(), ONE_CALL]
    assert tree.run_total() == ONE_CALL


def test_the_main_agent_is_listed_as_main_whatever_its_name() -> None:
    tree = family()
    tree.add("m", ONE_CALL)
    assert tree.by_name() == {"main": ONE_CALL, "task": Usage(), "explore": Usage()}


def test_agents_of_one_name_are_listed_together() -> None:
    tree = family()
    tree.add_node("h", "m", "explore")
    tree.add("g", ONE_CALL)
    tree.add("h", ONE_CALL)
    assert tree.by_name()["explore"] == ONE_CALL + ONE_CALL


def test_earlier_epochs_count_for_the_session_and_not_for_the_run() -> None:
    tree = UsageTree({"main": ONE_CALL, "verify": ONE_CALL})
    tree.add_node("m", None, "default")
    tree.add("m", ONE_CALL)
    assert tree.run_total() == ONE_CALL
    assert tree.by_name() == {"main": ONE_CALL}
    assert tree.by_name(with_base=True) == {"main": ONE_CALL + ONE_CALL, "verify": ONE_CALL}
    assert tree.session_total() == added_up([ONE_CALL] * 3)


def test_a_tree_without_agents_has_used_what_its_base_has() -> None:
    tree = UsageTree({"main": ONE_CALL})
    assert tree.run_total() == Usage()
    assert tree.session_total() == ONE_CALL


@pytest.mark.parametrize(
    ("agent_id", "parent_id"),
    [("c", "m"), ("x", "nobody"), ("x", None)],
    ids=["again", "no such parent", "second main"],
)
def test_a_node_that_can_not_be_is_refused(agent_id: str, parent_id: str | None) -> None:
    tree = family()
    with pytest.raises(ValueError, match=agent_id):
        tree.add_node(agent_id, parent_id, "task")
    assert list(tree.by_name()) == ["main", "task", "explore"]


def test_usage_of_an_unknown_agent_is_refused_and_counted_nowhere() -> None:
    tree = family()
    with pytest.raises(KeyError):
        tree.add("nobody", ONE_CALL)
    assert tree.run_total() == Usage()


class UsageTreeMachine(RuleBasedStateMachine):
    """Any tree, any calls in any order: all sums hold at every moment."""

    @initialize(base=st.dictionaries(st.sampled_from(["main", "task", "old"]), usages))
    def begin(self, base: dict[str, Usage]) -> None:
        self.tree = UsageTree(base)
        self.tree.add_node("0", None, "default")
        self.parents: dict[str, str | None] = {"0": None}
        self.calls: list[tuple[str, Usage]] = []

    @rule(data=st.data(), name=st.sampled_from(["task", "explore", "main"]))
    def start_a_child(self, data: st.DataObject, name: str) -> None:
        parent = data.draw(st.sampled_from(sorted(self.parents)))
        agent_id = str(len(self.parents))
        self.tree.add_node(agent_id, parent, name)
        self.parents[agent_id] = parent

    @rule(data=st.data(), usage=usages)
    def settle_a_call(self, data: st.DataObject, usage: Usage) -> None:
        agent_id = data.draw(st.sampled_from(sorted(self.parents)))
        self.tree.add(agent_id, usage)
        self.calls.append((agent_id, usage))

    @invariant()
    def a_total_is_the_nodes_own_usage_and_its_childrens_totals(self) -> None:
        for agent_id in self.parents:
            children = [child for child, parent in self.parents.items() if parent == agent_id]
            own = added_up([usage for caller, usage in self.calls if caller == agent_id])
            assert self.tree.own(agent_id) == own
            assert self.tree.total(agent_id) == own + added_up([self.tree.total(child) for child in children])

    @invariant()
    def the_names_add_up_to_the_run_and_to_the_session(self) -> None:
        assert self.tree.run_total() == self.tree.total("0") == added_up([usage for _, usage in self.calls])
        assert added_up(list(self.tree.by_name().values())) == self.tree.run_total()
        assert added_up(list(self.tree.by_name(with_base=True).values())) == self.tree.session_total()


TestUsageTreeMachine = UsageTreeMachine.TestCase
