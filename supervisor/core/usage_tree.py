"""What the agents of a run used, added up along their tree.

A pure machine. At every moment the total of an agent is its own usage plus its children's totals, so the numbers that
a client reads add up even while agents run, crash or are cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.usage import Usage

MAIN_AGENT = "main"
"""The name under which the main agent's usage is listed, whatever its agent is called."""

_NOTHING = Usage()


class UsageTree:
    """Usage of one run, by agent, with what earlier runs of the same session used as its base.

    Unknown agents raise KeyError. An agent stays in the tree when it has ended, crashed or was restarted: what it used
    stays used.
    """

    def __init__(self, base: Mapping[str, Usage] | None = None) -> None:
        """``base`` is the usage of the session's earlier epochs: own calls, by agent name."""
        self.base: dict[str, Usage] = dict(base or {})
        self._parents: dict[str, str | None] = {}
        self._names: dict[str, str] = {}
        self._own: dict[str, Usage] = {}
        self._totals: dict[str, Usage] = {}

    def add_node(self, agent_id: str, parent_id: str | None, agent_name: str) -> None:
        """Add an agent that has used nothing yet; ``parent_id`` is None for the main agent only.

        Raises ValueError for an agent that is in the tree already, an unknown parent and a second main agent.
        """
        if agent_id in self._parents:
            raise ValueError(f"agent {agent_id!r} is in the tree already")
        if parent_id is None and self._parents:
            raise ValueError(f"agent {agent_id!r} needs a parent: the tree has its main agent")
        if parent_id is not None and parent_id not in self._parents:
            raise ValueError(f"the parent {parent_id!r} of agent {agent_id!r} is unknown")
        self._parents[agent_id] = parent_id
        self._names[agent_id] = MAIN_AGENT if parent_id is None else agent_name
        self._own[agent_id] = _NOTHING
        self._totals[agent_id] = _NOTHING

    def add(self, agent_id: str, usage: Usage) -> None:
        """Count ``usage`` as the agent's own, and in the totals of all its ancestors."""
        self._own[agent_id] += usage
        node: str | None = agent_id
        while node is not None:
            self._totals[node] += usage
            node = self._parents[node]

    def own(self, agent_id: str) -> Usage:
        """What the agent's own model calls used, its summaries and empty replies included."""
        return self._own[agent_id]

    def total(self, agent_id: str) -> Usage:
        """What the agent and all its descendants used."""
        return self._totals[agent_id]

    def run_total(self) -> Usage:
        """What all agents of this run used."""
        return next(iter(self._totals.values()), _NOTHING)  # The main agent is the first that was added.

    def by_name(self, with_base: bool = False) -> dict[str, Usage]:
        """Own usage summed by agent name, the main agent first under `MAIN_AGENT`; agents without calls included.

        The values add up to `run_total`, with ``with_base`` to `session_total`.
        """
        sums: dict[str, Usage] = {}
        for agent_id, name in self._names.items():
            sums[name] = sums.get(name, _NOTHING) + self._own[agent_id]
        if with_base:
            for name, usage in self.base.items():
                sums[name] = sums.get(name, _NOTHING) + usage
        return sums

    def session_total(self) -> Usage:
        """What the whole session used, over all its epochs."""
        return sum(self.base.values(), self.run_total())
