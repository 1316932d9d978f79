"""What a client is shown, as structs of the Agent Client Protocol: content, updates, modes and options.

Names and fields are those of its schema, version 1, in snake case; what we have no use for is left out. Unknown fields
are ignored, and so is ``_meta``.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from protocol.agent_spec import Trust
from protocol.records import TodoPriority, TodoStatus

ToolKind: TypeAlias = Literal["read", "edit", "delete", "search", "execute", "think", "fetch", "other"]
ToolStatus: TypeAlias = Literal["pending", "in_progress", "completed", "failed"]
NoticeSeverity: TypeAlias = Literal["info", "warning", "error"]
CompactionStatus: TypeAlias = Literal["in_progress", "completed", "failed", "cancelled"]


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base: camel case on the wire, defaults left out."""


# -- content ----------------------------------------------------------------------------------------------------------


class Block(Message, frozen=True, kw_only=True, tag_field="type"):
    """Base of the blocks of a prompt or a message."""


class Text(Block, frozen=True, kw_only=True, tag="text"):
    """Plain text or Markdown."""

    text: str


class Image(Block, frozen=True, kw_only=True, tag="image"):
    """A picture; ``data`` is not even looked at."""


class Audio(Block, frozen=True, kw_only=True, tag="audio"):
    """A sound; as above."""


class ResourceLink(Block, frozen=True, kw_only=True, tag="resource_link"):
    """The address of something that the agent may read."""

    name: str
    uri: str


class Resource(Message, frozen=True, kw_only=True):
    """The content of a resource: ``text``, or ``blob`` for what is none."""

    uri: str
    text: str | None = None
    blob: str | None = None


class EmbeddedResource(Block, frozen=True, kw_only=True, tag="resource"):
    """A resource with its content."""

    resource: Resource


PromptBlock: TypeAlias = Text | Image | Audio | ResourceLink | EmbeddedResource


class Content(Message, frozen=True, kw_only=True, tag_field="type", tag="content"):
    """What a tool call shows: a block."""

    content: Text


class Diff(Message, frozen=True, kw_only=True, tag_field="type", tag="diff"):
    """What a tool call changes in the file ``path`` (absolute); ``old_text`` is None for a new file."""

    path: str
    new_text: str
    old_text: str | None = None


class Location(Message, frozen=True, kw_only=True):
    """A file that a tool call works on; ``path`` is absolute, ``line`` counts from 1."""

    path: str
    line: int | None = None


ToolContent: TypeAlias = Content | Diff


# -- updates ----------------------------------------------------------------------------------------------------------


class Update(Message, frozen=True, kw_only=True, tag_field="sessionUpdate"):
    """Base of what a ``session/update`` may carry."""


class Chunk(Update, frozen=True, kw_only=True):
    """Base of the pieces of a message; pieces of one message have one ``message_id``."""

    content: Text
    message_id: str


class UserMessageChunk(Chunk, frozen=True, kw_only=True, tag="user_message_chunk"):
    """Of a prompt; sent only where a session is loaded."""


class AgentMessageChunk(Chunk, frozen=True, kw_only=True, tag="agent_message_chunk"):
    """Of the main agent's reply."""


class AgentThoughtChunk(Chunk, frozen=True, kw_only=True, tag="agent_thought_chunk"):
    """Of its reasoning."""


class ToolCall(Update, frozen=True, kw_only=True, tag="tool_call"):
    """A call begins. ``raw_input`` is the JSON object of its arguments."""

    tool_call_id: str
    title: str
    name: str
    kind: ToolKind
    status: ToolStatus
    raw_input: msgspec.Raw
    content: tuple[ToolContent, ...] = ()
    locations: tuple[Location, ...] = ()


class ToolCallFields(Message, frozen=True, kw_only=True):
    """What is new of a call; ``content`` replaces all content before it. Part of a permission request as it is."""

    tool_call_id: str
    title: str | None = None
    name: str | None = None
    kind: ToolKind | None = None
    status: ToolStatus | None = None
    content: tuple[ToolContent, ...] | None = None
    locations: tuple[Location, ...] | None = None
    raw_input: msgspec.Raw | None = None


class ToolCallUpdate(Update, frozen=True, kw_only=True, tag="tool_call_update"):
    """What is new of a call, as `ToolCallFields`."""

    tool_call_id: str
    title: str | None = None
    status: ToolStatus | None = None
    content: tuple[ToolContent, ...] | None = None


class PlanEntry(Message, frozen=True, kw_only=True):
    """One thing that the agent means to do."""

    content: str
    status: TodoStatus
    priority: TodoPriority


class Plan(Update, frozen=True, kw_only=True, tag="plan"):
    """The whole list of the main agent as it is now."""

    entries: tuple[PlanEntry, ...]


class UsageUpdate(Update, frozen=True, kw_only=True, tag="usage_update"):
    """How full the main agent's context is, in tokens."""

    used: int
    size: int


class CurrentModeUpdate(Update, frozen=True, kw_only=True, tag="current_mode_update"):
    """The session's mode changed."""

    current_mode_id: Trust


class ConfigOptionUpdate(Update, frozen=True, kw_only=True, tag="config_option_update"):
    """The session's options changed; all of them."""

    config_options: tuple[ConfigOption, ...]


class SessionInfoUpdate(Update, frozen=True, kw_only=True, tag="session_info_update"):
    """What the session is called."""

    title: str


class Notice(Update, frozen=True, kw_only=True, tag="notice"):
    """A note for the person; only for clients that announced ``session.notices``."""

    severity: NoticeSeverity
    title: str


class CompactionUpdate(Update, frozen=True, kw_only=True, tag="compaction_update"):
    """The history is being summed up; only for clients that announced ``session.compaction``."""

    compaction_id: str
    status: CompactionStatus


class SessionNotification(Message, frozen=True, kw_only=True):
    """The parameters of ``session/update``."""

    session_id: str
    update: Update


# -- modes and options ------------------------------------------------------------------------------------------------


class Mode(Message, frozen=True, kw_only=True):
    """A trust mode, as the client lists it."""

    id: Trust
    name: str
    description: str


class ModeState(Message, frozen=True, kw_only=True):
    """The modes there are and the one that holds."""

    current_mode_id: Trust
    available_modes: tuple[Mode, ...]


class ConfigValue(Message, frozen=True, kw_only=True):
    """A value to choose."""

    value: str
    name: str
    description: str


class ConfigOption(Message, frozen=True, kw_only=True, tag_field="type", tag="select"):
    """Something to choose for a session."""

    id: str
    name: str
    category: str
    current_value: str
    options: tuple[ConfigValue, ...]
