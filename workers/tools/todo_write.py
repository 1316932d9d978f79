"""TodoWrite: the agent's list of what is to be done, for itself and for those who watch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from protocol.codec import clean_text
from protocol.content import AssistantMessage, Message, ToolResult
from protocol.records import TodoItem, TodoPriority, TodoStatus, TodoUpdate
from workers.tools.tool import Tool, ToolArguments, ToolContext, ToolError, ToolOutput

MOST_ITEMS = 100
MOST_CHARACTERS = 1_000
"""How many items a list may have, and characters an item's content."""

Items: TypeAlias = tuple[TodoItem, ...]


class GivenItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item as the model gives it."""

    content: str
    status: TodoStatus = "pending"
    priority: TodoPriority = "medium"


class TodoWriteArguments(ToolArguments, frozen=True, kw_only=True):
    """What the model gives."""

    items: Annotated[tuple[GivenItem, ...], Meta(description="The whole list.")]


async def run(arguments: TodoWriteArguments, context: ToolContext) -> ToolOutput:
    """Take the list as it is now, and show it."""
    items = _items_of(arguments)
    if len(items) > MOST_ITEMS or any(len(item.content) > MOST_CHARACTERS for item in items):
        raise ToolError(f"A list has {MOST_ITEMS} items at most, an item {MOST_CHARACTERS} characters.")
    context.emit(TodoUpdate(items=items))
    counts = Counter(item.status for item in items)
    said = ", ".join(f"{counts[status]} {status}" for status in ("completed", "in_progress", "pending"))
    return ToolOutput(output=f"The list is kept: {said}.")


def todos_of(messages: Iterable[Message]) -> Items:
    """The list as the last successful call in ``messages`` left it; empty where there was none.

    The list lives in the transcript alone: whoever takes a transcript up again, or shortens it, finds it with this.
    """
    items: Items = ()
    open_calls: dict[str, str] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            open_calls = {call.id: call.arguments for call in message.tool_calls if call.name == TOOL.name}
        elif isinstance(message, ToolResult) and message.outcome == "success" and message.call_id in open_calls:
            items = _decoded(open_calls[message.call_id])
    return items


def _decoded(arguments: str) -> Items:
    try:
        return _items_of(msgspec.json.decode(arguments, type=TodoWriteArguments, strict=False))
    except msgspec.ValidationError:
        # Some models send a list as the text of one: `parse_arguments` takes that too.
        text = msgspec.json.decode(arguments, type=dict[str, str])["items"]
        return _items_of(TodoWriteArguments(items=msgspec.json.decode(text, type=tuple[GivenItem, ...], strict=False)))


def _items_of(arguments: TodoWriteArguments) -> Items:
    return tuple(
        TodoItem(content=clean_text(item.content), status=item.status, priority=item.priority)
        for item in arguments.items
    )


TOOL = Tool(
    name="TodoWrite",
    description="Keep a list of the steps of a longer task. Give all of it each time a step begins or is done.",
    effect="read",
    arguments=TodoWriteArguments,
    run=run,
)
