"""The requests of the Agent Client Protocol and their answers, both ways, as structs; see also `updates`."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from supervisor.acp_agent.core.updates import ConfigOption, Message, ModeState, PromptBlock, ToolCallFields

PROTOCOL_VERSION = 1

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]
PermissionKind: TypeAlias = Literal["allow_once", "allow_always", "reject_once"]


# -- requests of the client -------------------------------------------------------------------------------------------


class ClientSessionCapabilities(Message, frozen=True, kw_only=True):
    """Kinds of updates that not every client takes; present means taken."""

    notices: dict[str, object] | None = None
    compaction: dict[str, object] | None = None


class ClientCapabilities(Message, frozen=True, kw_only=True):
    """What the client can do, as far as it matters to us."""

    session: ClientSessionCapabilities | None = None


class InitializeRequest(Message, frozen=True, kw_only=True):
    """``initialize``. Capabilities are read apart: what is wrong in them counts as absent."""

    protocol_version: int
    client_capabilities: msgspec.Raw = msgspec.Raw(b"{}")


class SessionPlace(Message, frozen=True, kw_only=True):
    """``session/new``; the base of what opens a session."""

    cwd: str
    mcp_servers: tuple[dict[str, object], ...] = ()
    additional_directories: tuple[str, ...] | None = None


class SessionReopen(SessionPlace, frozen=True, kw_only=True):
    """``session/load`` and ``session/resume``."""

    session_id: str


class ListRequest(Message, frozen=True, kw_only=True):
    """``session/list``."""

    cwd: str | None = None
    cursor: str | None = None


class SessionRequest(Message, frozen=True, kw_only=True):
    """``session/close``, ``session/cancel``."""

    session_id: str


class PromptRequest(SessionRequest, frozen=True, kw_only=True):
    """``session/prompt``."""

    prompt: tuple[PromptBlock, ...]


class SetModeRequest(SessionRequest, frozen=True, kw_only=True):
    """``session/set_mode``."""

    mode_id: str


class SetConfigOptionRequest(SessionRequest, frozen=True, kw_only=True):
    """``session/set_config_option``; we have options to select only."""

    config_id: str
    value: str


class CancelRequest(Message, frozen=True, kw_only=True):
    """``$/cancel_request``."""

    request_id: int | str | None


class PermissionOutcome(Message, frozen=True, kw_only=True):
    """What the person chose, or that the turn was cancelled."""

    outcome: Literal["selected", "cancelled"]
    option_id: str | None = None


class PermissionResponse(Message, frozen=True, kw_only=True):
    """The answer to ``session/request_permission``."""

    outcome: PermissionOutcome


# -- answers and requests of ours -------------------------------------------------------------------------------------


class Nothing(Message, frozen=True, kw_only=True):
    """``{}``: an answer that says it was done, or a capability that is there."""


class PromptCapabilities(Message, frozen=True, kw_only=True):
    """Which blocks a prompt may have beside text and links."""

    embedded_context: bool
    image: bool = False
    audio: bool = False


class SessionCapabilities(Message, frozen=True, kw_only=True):
    """Which methods on sessions there are."""

    list: Nothing | None = None
    resume: Nothing | None = None
    close: Nothing | None = None


class AgentCapabilities(Message, frozen=True, kw_only=True):
    """What we can do."""

    load_session: bool
    prompt_capabilities: PromptCapabilities
    session_capabilities: SessionCapabilities


class Implementation(Message, frozen=True, kw_only=True):
    """Who we are."""

    name: str
    title: str
    version: str


class InitializeResponse(Message, frozen=True, kw_only=True):
    """The answer to ``initialize``."""

    protocol_version: int
    agent_capabilities: AgentCapabilities
    agent_info: Implementation
    auth_methods: tuple[Nothing, ...]


class OpenedSession(Message, frozen=True, kw_only=True):
    """The answer to ``session/load`` and ``session/resume``."""

    modes: ModeState
    config_options: tuple[ConfigOption, ...]


class NewSession(OpenedSession, frozen=True, kw_only=True):
    """The answer to ``session/new``."""

    session_id: str


class SessionInfo(Message, frozen=True, kw_only=True):
    """A stored session in a list; ``updated_at`` is a time of ISO 8601."""

    session_id: str
    cwd: str
    title: str | None = None
    updated_at: str | None = None


class ListResponse(Message, frozen=True, kw_only=True):
    """The answer to ``session/list``."""

    sessions: tuple[SessionInfo, ...]
    next_cursor: str | None = None


class ConfigOptions(Message, frozen=True, kw_only=True):
    """The answer to ``session/set_config_option``."""

    config_options: tuple[ConfigOption, ...]


class PromptResponse(Message, frozen=True, kw_only=True):
    """The answer to ``session/prompt``."""

    stop_reason: StopReason


class PermissionOption(Message, frozen=True, kw_only=True):
    """Something that the person may answer."""

    option_id: str
    name: str
    kind: PermissionKind


class PermissionRequest(Message, frozen=True, kw_only=True):
    """The parameters of ``session/request_permission``."""

    session_id: str
    tool_call: ToolCallFields
    options: tuple[PermissionOption, ...]
