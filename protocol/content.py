"""The items of a transcript: what was said to a model and what it answered.

A transcript is a sequence of `Message` in the order in which the model sees them, without the system prompt (that
comes from the agent, not from the session). Every `AssistantMessage` with tool calls is followed by exactly one
`ToolResult` for each of its calls, in call order, before the next assistant message.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Outcome: TypeAlias = Literal["success", "error", "denied", "cancelled", "interrupted"]
"""How a tool call ended. A non-zero exit and a failed read are ``error``."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of a reply.

    ``id`` is unique within its reply (the second use of one there has ``#2`` behind it), not within the turn.
    ``arguments`` is the text of a JSON object, always valid and free of lone surrogates. ``fault`` says why what the
    model sent as arguments could not be used (then ``arguments`` is ``{}`` and the call must not run); it is empty
    for a usable call.
    """

    id: str
    name: str
    arguments: str = "{}"
    fault: str = ""


class UserMessage(msgspec.Struct, frozen=True, kw_only=True, tag="user"):
    """A prompt, or a note of ours to the model."""

    text: str


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True, tag="assistant"):
    """A whole reply of the model.

    ``reasoning`` is the model's reasoning text and ``reasoning_field`` the name of the field it came in: some servers
    demand it back, under the same name, with the next request.
    """

    text: str = ""
    reasoning: str = ""
    reasoning_field: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, tag="tool"):
    """What a tool call came to, as the model reads it."""

    call_id: str
    name: str
    outcome: Outcome
    output: str


class Summary(msgspec.Struct, frozen=True, kw_only=True, tag="summary"):
    """The result of a compaction: ``text`` stands for the ``replaces`` messages before the kept tail.

    In a stored transcript the summary comes after everything it was made from; `compacted_view` moves it to its place.
    """

    text: str
    replaces: int


Message: TypeAlias = UserMessage | AssistantMessage | ToolResult | Summary
