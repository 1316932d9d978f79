"""InvokeAgent: have a sub-agent do a part of the work."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from workers.tools.tool import Tool, ToolArguments, ToolContext, ToolOutput


class InvokeAgentArguments(ToolArguments, frozen=True, kw_only=True):
    """What the model gives."""

    agent_name: str
    prompt: Annotated[str, Meta(description="All it must know: it sees nothing of this conversation.")]


async def run(arguments: InvokeAgentArguments, context: ToolContext) -> ToolOutput:
    """Have the supervisor run the agent, and wait for its end."""
    return await context.delegate(arguments.agent_name, arguments.prompt)


TOOL = Tool(
    name="InvokeAgent",
    description=(
        "Give a task to a sub-agent and get its final answer. Several calls in one reply run at the same time."
    ),
    effect="delegate",
    arguments=InvokeAgentArguments,
    run=run,
)
