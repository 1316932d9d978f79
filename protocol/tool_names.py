"""The tools by name, for those who list them without running them.

The supervisor tells clients which tools an agent has, but imports no tool; a test holds this table to the tools
themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from protocol.agent_spec import AgentSpec

ToolEffect: TypeAlias = Literal["read", "write", "execute", "delegate"]
"""What a call may do to the world."""

TOOL_EFFECTS: Mapping[str, ToolEffect] = MappingProxyType(
    {
        "Read": "read",
        "Write": "write",
        "Edit": "write",
        "Delete": "write",
        "List": "read",
        "Grep": "read",
        "Glob": "read",
        "Bash": "execute",
        "WebFetch": "execute",
        "TodoWrite": "read",
        "AskUser": "read",
        "ListAgents": "read",
        "InvokeAgent": "delegate",
    }
)
"""Every tool with its effect, in the order in which they are listed."""

SHELL_TOOL = "Bash"
DELEGATING_TOOL = "InvokeAgent"

_FOR_DELEGATING = frozenset({DELEGATING_TOOL, "ListAgents"})


def tools_of(
    spec: AgentSpec, names: Iterable[str] = tuple(TOOL_EFFECTS), *, may_delegate: bool = True
) -> tuple[str, ...]:
    """Those of ``names`` that the agent has, in their order.

    An empty ``allowed_tools`` allows all, ``disallowed_tools`` is taken off afterwards; with ``may_delegate`` false
    (the deepest level of the tree) `DELEGATING_TOOL` is taken off too, and what is of no use without it. Source: the v1
    wire contract, "Agents".
    """
    return tuple(
        name
        for name in names
        if (not spec.allowed_tools or name in spec.allowed_tools)
        and name not in spec.disallowed_tools
        and (may_delegate or name not in _FOR_DELEGATING)
    )


def unknown_tools(spec: AgentSpec, names: Iterable[str] = tuple(TOOL_EFFECTS)) -> tuple[str, ...]:
    """The names in the agent's two lists that are no tools, sorted."""
    return tuple(sorted({*spec.allowed_tools, *spec.disallowed_tools}.difference(names)))
