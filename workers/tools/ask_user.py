"""AskUser: a question to the person. In a headless run nobody is there, which is said at once."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from workers.tools.tool import Tool, ToolArguments, ToolContext, ToolOutput

NOBODY = (
    "Nobody is there to answer in this run. Decide by yourself: take the plainest reading, "
    "and say in your final reply what you chose and what was open."
)


class AskUserArguments(ToolArguments, frozen=True, kw_only=True):
    """What the model gives."""

    question: str
    options: Annotated[tuple[str, ...], Meta(description="Answers to choose from.")] = ()


async def run(_arguments: AskUserArguments, _context: ToolContext) -> ToolOutput:
    """Say that nobody is there."""
    return ToolOutput(output=NOBODY, outcome="error")


TOOL = Tool(
    name="AskUser",
    description="Ask the person a question, if one is there.",
    effect="read",
    arguments=AskUserArguments,
    run=run,
)
