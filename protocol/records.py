"""The public lines of the v1 wire: one struct for each ``type``.

A line on the wire is a record plus the tags that the supervisor adds to it: ``session_id``, ``turn_id``, ``parent_id``
and ``seq`` (see ``supervisor.core.tagger``); no record carries them itself, so no worker can claim another's identity.

Order, which every client may rely on:

- ``hello``, ``session_ready``, ``turn_start`` come first, ``turn_summary``, ``turn_end``, ``run_summary`` last, with
  nothing between the three;
- ``tool_call_start`` comes before all that its call causes, ``tool_call_result`` after it;
- ``sub_agent_start`` follows the ``tool_call_start`` of the delegating call, ``sub_agent_end`` is the last line of that
  agent and comes before its parent's ``tool_call_result``;
- a ``retry`` voids the text of the reply that was under way;
- each ``compaction`` that is ``started`` is closed by that agent's next ``compaction`` line.

Source: the v1 wire contract, "Lines".
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from protocol.content import Outcome
from protocol.usage import Usage

PROTOCOL_VERSION = 1

AgentOutcome: TypeAlias = Literal["complete", "error", "cancelled", "crashed", "limit"]
TurnKind: TypeAlias = Literal["complete", "error", "cancelled", "limit"]
RetryReason: TypeAlias = Literal["rate_limit", "server_error", "stream_failed", "empty_response", "network"]
TodoStatus: TypeAlias = Literal["pending", "in_progress", "completed"]
TodoPriority: TypeAlias = Literal["high", "medium", "low"]
CrashCause: TypeAlias = Literal[
    "signal", "exited_early", "out_of_memory", "unresponsive", "channel_closed", "protocol_error", "spawn_failed"
]


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all lines; the tag ``type`` is the snake_case name that clients switch on."""


# -- lines of the supervisor ------------------------------------------------------------------------------------------


class Hello(Record, frozen=True, kw_only=True, tag="hello"):
    """The first line. ``koda_version`` is our own version: the field's name is the one v1 clients read."""

    koda_version: str
    capabilities: tuple[str, ...]
    protocol_version: int = PROTOCOL_VERSION


class SessionReady(Record, frozen=True, kw_only=True, tag="session_ready"):
    """Which model serves the session and what its main agent may use. ``context_window`` is in tokens, over 0.

    ``epoch`` is new for each process that takes the session up: ``seq`` has no holes within one.
    """

    provider: str
    model: str
    context_window: int
    trust: str
    tools: tuple[str, ...]
    sandbox: str
    epoch: int


class TurnStart(Record, frozen=True, kw_only=True, tag="turn_start"):
    """A prompt was taken up; its ``turn_id`` is a tag."""


class SubAgentStart(Record, frozen=True, kw_only=True, tag="sub_agent_start"):
    """A child begins. ``parent_id`` (a tag) is the id of the delegating call; ``agent_id`` is unique in the session."""

    agent_name: str
    agent_id: str
    prompt: str


class SubAgentEnd(Record, frozen=True, kw_only=True, tag="sub_agent_end"):
    """A child's one terminal line; ``usage`` includes its own children's."""

    agent_name: str
    agent_id: str
    outcome: AgentOutcome
    usage: Usage
    elapsed_ms: int
    restarts: int


class AgentCrashed(Record, frozen=True, kw_only=True, tag="agent_crashed", omit_defaults=True):
    """A worker process died before its agent was done.

    ``signal`` is the number of the signal that ended it, else ``exit_code`` its exit code. ``restart`` counts the
    restarts of this agent from 1, or is null when this crash is final. ``detail`` is a sentence for a person.
    """

    agent_name: str
    agent_id: str
    cause: CrashCause
    restart: int | None
    signal: int | None = None
    exit_code: int | None = None
    detail: str = ""


class TurnSummary(Record, frozen=True, kw_only=True, tag="turn_summary"):
    """What the turn used, its children's calls and its summaries' included. Written for failed turns too."""

    usage: Usage
    elapsed_ms: int


class TurnEndReason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a turn ended. ``code`` is a word for a program, ``message`` a sentence for a person."""

    kind: TurnKind
    message: str = ""
    code: str = ""


class TurnEnd(Record, frozen=True, kw_only=True, tag="turn_end"):
    """The end of a turn."""

    reason: TurnEndReason


class AgentSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the tree of agents: ``usage`` includes its descendants'.

    ``parent_id`` is the call that started it, as on its lines; call ids may repeat, so ``parent_agent_id`` says whose
    call it was. Both are null for the main agent.
    """

    agent_id: str
    parent_id: str | None
    parent_agent_id: str | None
    agent_name: str
    outcome: AgentOutcome
    usage: Usage
    restarts: int


class RunSummary(Record, frozen=True, kw_only=True, tag="run_summary"):
    """The last line. ``usage`` and ``usage_by_agent`` cover the whole stored session, ``agents`` this run.

    ``uncertain_calls`` counts model calls that were in flight when their process died or their agent was cancelled:
    the server may have billed them, we can't know.
    """

    success: bool
    response: str
    usage: Usage
    usage_by_agent: dict[str, Usage]
    model: str
    provider: str
    elapsed_ms: int
    exit_code: int
    error: str | None
    uncertain_calls: int
    agents: tuple[AgentSummary, ...]


# -- lines that a worker causes ---------------------------------------------------------------------------------------


class TextDelta(Record, frozen=True, kw_only=True, tag="text_delta"):
    """A piece of the reply."""

    text: str


class ThinkingDelta(Record, frozen=True, kw_only=True, tag="thinking_delta"):
    """A piece of the model's reasoning."""

    text: str


class ToolCallStart(Record, frozen=True, kw_only=True, tag="tool_call_start"):
    """A call is about to run: exactly one for each call. ``args`` is the JSON object of its arguments."""

    id: str
    name: str
    args: msgspec.Raw


class ToolOutputLine(Record, frozen=True, kw_only=True, tag="tool_output_line"):
    """A line that a running command wrote."""

    id: str
    line: str
    is_stderr: bool


class TodoItem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an agent means to do."""

    content: str
    status: TodoStatus
    priority: TodoPriority


class TodoUpdate(Record, frozen=True, kw_only=True, tag="todo_update"):
    """An agent's list of what is to be done, all of it as it is now."""

    items: tuple[TodoItem, ...]


class ToolCallResult(Record, frozen=True, kw_only=True, tag="tool_call_result"):
    """How a call ended; ``output`` is what the model reads."""

    id: str
    outcome: Outcome
    name: str
    output: str
    elapsed_ms: int


class Retry(Record, frozen=True, kw_only=True, tag="retry"):
    """A model call failed and is sent again after ``delay_ms``; ``attempt`` counts from 1."""

    reason: RetryReason
    attempt: int
    max_attempts: int
    delay_ms: int


class LoopGuard(Record, frozen=True, kw_only=True, tag="loop_guard"):
    """The same call again and again: the model was told (``feedback``), or the turn ends (``stop``)."""

    action: Literal["feedback", "stop"]
    detail: str


class LoopCapRequest(Record, frozen=True, kw_only=True, tag="loop_cap_request"):
    """The cap of model calls in a turn was reached."""

    cap: int
    recent_tools: tuple[str, ...]


class Compaction(Record, frozen=True, kw_only=True, tag="compaction", omit_defaults=True):
    """The history is being summed up. ``context_percent`` comes with ``started``, the other two with ``completed``."""

    trigger: Literal["threshold", "overflow", "manual"]
    status: Literal["started", "completed", "skipped", "failed"]
    context_percent: int | None = None
    messages_removed: int | None = None
    summary_tokens: int | None = None
    detail: str = ""


class ContextUsage(Record, frozen=True, kw_only=True, tag="context_usage"):
    """How full the context was at the last model call, in tokens."""

    used: int
    max: int


class Info(Record, frozen=True, kw_only=True, tag="info"):
    """A note for a person."""

    message: str


class Warn(Record, frozen=True, kw_only=True, tag="warn"):
    """A warning for a person."""

    message: str


class Error(Record, frozen=True, kw_only=True, tag="error"):
    """An error for a person; how the turn ended stands in ``turn_end``."""

    message: str


WorkerRecord: TypeAlias = (
    TextDelta
    | ThinkingDelta
    | ToolOutputLine
    | TodoUpdate
    | ToolCallResult
    | Retry
    | LoopGuard
    | LoopCapRequest
    | Compaction
    | ContextUsage
    | Info
    | Warn
    | Error
)
"""The records that a worker may send as they are: nothing that speaks for the run, the session or another agent.

``tool_call_start`` is not among them: a worker sends `protocol.frames.ToolCallOpened`, so that the supervisor knows
which calls are open and reads the arguments itself.
"""
