"""Who started whom, who still runs, and which tool calls are open.

A pure machine. Ids come from outside, from the connection of each worker, never from what a worker says of itself.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from protocol.content import ToolCall
from protocol.records import AgentOutcome
from supervisor.core.grants import TreeLimits

AgentState: TypeAlias = Literal["starting", "running", "waiting", "ended"]
"""``waiting``: for sub-agents. A restart leads back to ``starting``; nothing leads out of ``ended``."""

_NEXT_STATES: dict[AgentState, tuple[AgentState, ...]] = {
    "starting": ("starting", "running"),
    "running": ("starting", "running", "waiting"),
    "waiting": ("starting", "running", "waiting"),
    "ended": (),
}


class AgentNode(msgspec.Struct, frozen=True, kw_only=True):
    """One agent as it is now; a snapshot that does not change when the agent does.

    ``depth`` is 0 for the main agent. ``parent_call_id`` is the id of the call that started the agent, as its parent's
    model gave it: not unique. ``open_calls`` are in the order in which they began. ``outcome`` is None until the end.
    """

    agent_id: str
    parent_agent_id: str | None
    parent_call_id: str | None
    agent_name: str
    depth: int
    state: AgentState = "starting"
    open_calls: tuple[ToolCall, ...] = ()
    outcome: AgentOutcome | None = None
    restarts: int = 0

    @property
    def is_live(self) -> bool:
        """Whether the agent has yet to end."""
        return self.state != "ended"


class SpawnRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a sub-agent may not be started: ``code`` for a program, ``message`` for the model that asked."""

    code: Literal["max_agents", "max_agent_depth", "agent_ended"]
    message: str


class AgentTree:
    """The agents of one run. Unknown ids raise KeyError, calls out of order ValueError; neither changes anything."""

    def __init__(self) -> None:
        self._nodes: dict[str, AgentNode] = {}
        self._children: dict[str, list[str]] = {}

    def __getitem__(self, agent_id: str) -> AgentNode:
        """The agent as it is now."""
        return self._nodes[agent_id]

    def __contains__(self, agent_id: str) -> bool:
        return agent_id in self._nodes

    @property
    def nodes(self) -> tuple[AgentNode, ...]:
        """All agents, ended ones too, in the order in which they were added: the main agent first."""
        return tuple(self._nodes.values())

    def add(
        self,
        agent_id: str,
        *,
        agent_name: str,
        parent_agent_id: str | None = None,
        parent_call_id: str | None = None,
    ) -> AgentNode:
        """Add an agent in state ``starting``; the first one is the main agent and the only one without a parent.

        Raises ValueError for an id that was used before, for a second agent without a parent, for a child of an agent
        that has ended, and for a child without the call that started it.
        """
        if agent_id in self._nodes:
            raise ValueError(f"agent {agent_id!r} is in the tree already")
        if (parent_agent_id is None) == bool(self._nodes) or (parent_agent_id is None) != (parent_call_id is None):
            raise ValueError(
                f"agent {agent_id!r}: only the first agent has no parent, all others have one and its call"
            )
        depth = 0
        if parent_agent_id is not None:
            depth = self._live(parent_agent_id).depth + 1
            self._children[parent_agent_id].append(agent_id)
        self._children[agent_id] = []
        self._nodes[agent_id] = node = AgentNode(
            agent_id=agent_id,
            parent_agent_id=parent_agent_id,
            parent_call_id=parent_call_id,
            agent_name=agent_name,
            depth=depth,
        )
        return node

    def may_spawn(self, agent_id: str, limits: TreeLimits) -> SpawnRefusal | None:
        """None if the agent may start one more sub-agent, else why not.

        ``max_agents`` counts all sub-agents that were ever started in the run, ended ones too; restarts are the same
        agent. An agent at ``max_agent_depth`` may start none.
        """
        node = self._nodes[agent_id]
        if not node.is_live:
            return SpawnRefusal(code="agent_ended", message="The agent that asked for a sub-agent has ended.")
        if node.depth >= limits.max_agent_depth:
            return SpawnRefusal(
                code="max_agent_depth",
                message=f"Agents may be nested {limits.max_agent_depth} deep at most. Do this task yourself.",
            )
        if len(self._nodes) - 1 >= limits.max_agents:
            return SpawnRefusal(
                code="max_agents",
                message=f"All {limits.max_agents} sub-agents of this run were used. Do this task yourself.",
            )
        return None

    def set_state(self, agent_id: str, state: Literal["starting", "running", "waiting"]) -> AgentNode:
        """Note that the agent runs, or waits for its sub-agents. Raises ValueError for a step that can't be."""
        node = self._live(agent_id)
        if state not in _NEXT_STATES[node.state]:
            raise ValueError(f"agent {agent_id!r} can't go from {node.state} to {state}")
        return self._put(node, state=state)

    def restart(self, agent_id: str) -> AgentNode:
        """Count a restart: the agent is ``starting`` again. Its open calls stay open: its sub-agents go on."""
        node = self._live(agent_id)
        return self._put(node, state="starting", restarts=node.restarts + 1)

    def end(self, agent_id: str, outcome: AgentOutcome) -> AgentNode:
        """The one end of an agent; raises ValueError for a second one.

        ``open_calls`` of the node that is returned are the calls that nobody will answer any more: the caller does.
        """
        return self._put(self._live(agent_id), state="ended", outcome=outcome)

    def open_call(self, agent_id: str, call: ToolCall) -> None:
        """A tool call began. Ids may repeat; each use of one is a call of its own."""
        node = self._live(agent_id)
        self._put(node, open_calls=(*node.open_calls, call))

    def close_call(self, agent_id: str, call_id: str, name: str) -> bool:
        """The result of a call came: close the oldest open call of that id and name. False if there is none.

        An ended agent's calls can be closed too: the supervisor answers what was left open.
        """
        node = self._nodes[agent_id]
        for index, call in enumerate(node.open_calls):
            if call.id == call_id and call.name == name:
                self._put(node, open_calls=node.open_calls[:index] + node.open_calls[index + 1 :])
                return True
        return False

    def children(self, agent_id: str) -> tuple[AgentNode, ...]:
        """The agents that this one started, ended ones too, in the order of their start."""
        return tuple(self._nodes[child] for child in self._children[agent_id])

    def ancestors(self, agent_id: str) -> tuple[AgentNode, ...]:
        """The agent's parent, its parent's parent and so on up to the main agent."""
        found: list[AgentNode] = []
        parent = self._nodes[agent_id].parent_agent_id
        while parent is not None:
            found.append(self._nodes[parent])
            parent = found[-1].parent_agent_id
        return tuple(found)

    def live_descendants(self, agent_id: str) -> tuple[AgentNode, ...]:
        """The live agents below this one, deepest first, so that each can be ended before its parent is."""
        found: list[AgentNode] = []
        level = list(self.children(agent_id))
        while level:
            found.extend(level)
            level = [child for node in level for child in self.children(node.agent_id)]
        return tuple(node for node in reversed(found) if node.is_live)

    def _live(self, agent_id: str) -> AgentNode:
        node = self._nodes[agent_id]
        if not node.is_live:
            raise ValueError(f"agent {agent_id!r} has ended")
        return node

    def _put(
        self,
        node: AgentNode,
        *,
        state: AgentState | None = None,
        open_calls: tuple[ToolCall, ...] | None = None,
        outcome: AgentOutcome | None = None,
        restarts: int | None = None,
    ) -> AgentNode:
        changed = msgspec.structs.replace(
            node,
            state=node.state if state is None else state,
            open_calls=node.open_calls if open_calls is None else open_calls,
            outcome=node.outcome if outcome is None else outcome,
            restarts=node.restarts if restarts is None else restarts,
        )
        self._nodes[node.agent_id] = changed
        return changed
