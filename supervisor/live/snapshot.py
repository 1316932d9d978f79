"""What a run shows of itself to a second shell, and what a second shell may ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

from protocol.usage import Usage

if TYPE_CHECKING:
    from protocol.content import ToolCall
    from supervisor.core.agent_tree import AgentNode

ARGUMENT_CHARACTERS = 120
"""The most of a tool call's argument that is shown."""

AgentState: TypeAlias = Literal["starting", "running", "waiting", "ended"]
"""As in `supervisor.core.agent_tree`, which a client does not import: it opens faster without."""


class CurrentTool(msgspec.Struct, frozen=True, kw_only=True):
    """The tool call that an agent opened last and has yet to close.

    ``argument`` is the first of its arguments, at most `ARGUMENT_CHARACTERS` of it; ``others`` counts the calls that
    are open beside it.
    """

    name: str
    argument: str = ""
    others: int = 0


class AgentSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One agent at one moment.

    ``parent_call_id`` is the ``parent_id`` of its lines on the wire; both parents are None for the main agent. ``pid``
    and ``memory_bytes`` are its worker's, None where it has none (it waits for a place, or has ended) or the memory is
    unknown. ``usage`` includes its descendants'. ``outcome`` is None until the agent has ended.
    """

    agent_id: str
    parent_agent_id: str | None
    parent_call_id: str | None
    agent_name: str
    state: AgentState
    pid: int | None
    tool: CurrentTool | None
    age_ms: int
    usage: Usage
    memory_bytes: int | None
    restarts: int
    outcome: str | None = None

    @property
    def is_live(self) -> bool:
        """Whether the agent has yet to end."""
        return self.state != "ended"


class RunSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One run at one moment: ``agents`` has all of its agents, ended ones too, parents before their children.

    ``pid`` is the supervisor's. ``started`` is the time of the run's start, in UTC as RFC 3339 writes it.
    """

    session_id: str
    pid: int
    project_root: str
    model: str
    started: str
    agents: tuple[AgentSnapshot, ...]


class LiveRun(Protocol):
    """The run, as live control needs it. Everything is called in trio's thread and must not block."""

    def snapshot(self) -> RunSnapshot:
        """The run as it is now."""
        ...

    def cancel_agent(self, agent_id: str, reason: str) -> bool:
        """Cancel the agent and its descendants, none else; False if it had ended or was unknown. Does not wait.

        Its parent gets the result of a cancelled sub-agent with ``reason`` in it. It is never the main agent's id.
        """
        ...

    def cancel_run(self, reason: str) -> None:
        """Have the run end as by a SIGTERM: the turn cancelled, the last lines written, exit code 143."""
        ...


def agent_snapshot(
    node: AgentNode, *, pid: int | None, age_ms: int, usage: Usage, memory_bytes: int | None
) -> AgentSnapshot:
    """The snapshot of an agent of the tree with what others know of it."""
    return AgentSnapshot(
        agent_id=node.agent_id,
        parent_agent_id=node.parent_agent_id,
        parent_call_id=node.parent_call_id,
        agent_name=node.agent_name,
        state=node.state,
        pid=pid,
        tool=current_tool(node.open_calls),
        age_ms=age_ms,
        usage=usage,
        memory_bytes=memory_bytes,
        restarts=node.restarts,
        outcome=node.outcome,
    )


def current_tool(open_calls: Sequence[ToolCall]) -> CurrentTool | None:
    """What to show of the calls that an agent has open, in the order in which they began; None for no calls."""
    if not open_calls:
        return None
    newest = open_calls[-1]
    return CurrentTool(
        name=newest.name,
        argument=first_argument(newest.arguments),
        others=len(open_calls) - 1,
    )


def first_argument(arguments: str | bytes) -> str:
    """The first of a call's arguments, a JSON object, at most `ARGUMENT_CHARACTERS` of it; empty for none."""
    try:
        values = msgspec.json.decode(arguments, type=dict[str, object])
    except msgspec.MsgspecError:
        return ""
    first = next(iter(values.values()), "")
    text = first if isinstance(first, str) else msgspec.json.encode(first).decode()
    return text[:ARGUMENT_CHARACTERS]
