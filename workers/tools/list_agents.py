"""ListAgents: which sub-agents there are."""

from __future__ import annotations

from workers.tools.tool import Tool, ToolArguments, ToolContext, ToolOutput


class ListAgentsArguments(ToolArguments, frozen=True, kw_only=True):
    """The model gives nothing."""


async def run(_arguments: ListAgentsArguments, context: ToolContext) -> ToolOutput:
    """Name them, sorted, each with its description."""
    lines = [f"{name}: {description}" for name, description in sorted(context.agents.items())]
    return ToolOutput(output="\n".join(lines) or "There are no sub-agents here.")


TOOL = Tool(
    name="ListAgents",
    description="List the sub-agents that InvokeAgent takes.",
    effect="read",
    arguments=ListAgentsArguments,
    run=run,
)
