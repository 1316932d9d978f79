"""The messages between the supervisor and one worker.

Upward (worker to supervisor) travel the `WorkerRecord` lines and the requests below; downward travel commands and
answers. Both directions are one ordered stream each, so nothing overtakes: what a worker said before it asked for a
grant has been handled when the grant is answered.

A worker's life: ``Ready`` up; ``Start``, any number of ``History`` and one ``Prompt`` down, or a ``Resume`` in its
place where an earlier worker of the same agent had begun the turn; then the turn; ``Finished`` up and the end of the
stream.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from protocol.agent_spec import AgentSpec, Ceilings, ModelSettings, Trust
from protocol.content import Message, ToolCall, ToolResult
from protocol.records import AgentOutcome, WorkerRecord
from protocol.usage import Usage

FRAMES_VERSION = 1
"""Both ends must have the same: workers are started from the supervisor's own installation."""

CallPurpose: TypeAlias = Literal["reply", "summary"]


class ExternalSession(msgspec.Struct, frozen=True, kw_only=True):
    """The session that an external agent keeps on its own side, and can take up again in a later process.

    ``cwd`` is the folder that it belongs to; ``known`` is how many items of the transcript, from its beginning, the
    agent has been told or has said itself.
    """

    session_id: str
    cwd: str
    known: int


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of the messages that are not public records."""


# -- upward -----------------------------------------------------------------------------------------------------------


class Ready(Frame, frozen=True, kw_only=True, tag="ready"):
    """The worker runs and reads. ``version`` is its `FRAMES_VERSION`."""

    version: int
    pid: int


class Heartbeat(Frame, frozen=True, kw_only=True, tag="heartbeat"):
    """The worker's event loop runs. ``memory_bytes`` is the memory of its own (resident, without what it shares),
    ``taken`` the number of messages that it has taken from its channel.
    """

    memory_bytes: int
    taken: int


class ToolCallOpened(Frame, frozen=True, kw_only=True, tag="tool_call_opened"):
    """A call is about to run; becomes the ``tool_call_start`` line. Its ``tool_call_result`` record closes it."""

    call: ToolCall


class AskGrant(Frame, frozen=True, kw_only=True, tag="ask_grant"):
    """May I make a model call? ``grant`` is a number of the worker's choice, new for each ask.

    ``prompt_tokens`` is the worker's estimate of the prompt, ``max_tokens`` the most the reply may have (None: no cap
    of its own).
    """

    grant: int
    purpose: CallPurpose
    prompt_tokens: int
    max_tokens: int | None


class CallFailed(Frame, frozen=True, kw_only=True, tag="call_failed"):
    """The granted call ended without a reply: it counts nothing.

    ``rate_limited_ms`` is the time that the server asked all its callers to wait, None where it was no rate limit.
    """

    grant: int
    rate_limited_ms: int | None = None


class Commit(Frame, frozen=True, kw_only=True, tag="commit"):
    """Store these items of the transcript, and count ``usage`` for the call of ``grant``, in one transaction.

    ``number`` counts a worker's commits from 1; the supervisor answers each with `Committed`. ``iterations`` is the
    number of model calls that the turn has made so far. ``files`` are the content hashes of the files that the agent
    has seen since its last commit, by path: a restarted worker goes on from them. ``external`` is the session that an
    external agent can go on with, as of this commit; None leaves the one before it.
    """

    number: int
    messages: tuple[Message, ...] = ()
    usage: Usage | None = None
    grant: int | None = None
    iterations: int = 0
    files: dict[str, str] = {}  # msgspec copies it for each frame
    external: ExternalSession | None = None


class SpawnRequest(Frame, frozen=True, kw_only=True, tag="spawn_request"):
    """Start a sub-agent for the open call ``call_id``. ``request`` is a number of the worker's choice, new for each."""

    request: int
    call_id: str
    agent_name: str
    prompt: str


class ApprovalRequest(Frame, frozen=True, kw_only=True, tag="approval_request"):
    """May the open call ``call_id`` run? ``denial`` is what the model is told if nobody is there to allow it.

    An id is enough: the calls that an agent has open are those of one reply.
    """

    call_id: str
    denial: str


class Finished(Frame, frozen=True, kw_only=True, tag="finished"):
    """The turn is over. ``response`` is the final reply, or what there was of it.

    ``code`` is a word for a program (the exit code depends on it), ``message`` a sentence for a person; both are empty
    for a complete turn. ``is_cut_off`` says that the final reply ended at its limit of tokens.
    """

    outcome: AgentOutcome
    response: str = ""
    code: str = ""
    message: str = ""
    is_cut_off: bool = False


# -- downward ---------------------------------------------------------------------------------------------------------


class Start(Frame, frozen=True, kw_only=True, tag="start"):
    """What the worker is to be. Keys travel here and nowhere else.

    ``tools`` are the names of the tools it is offered. ``agents`` are those it may delegate to, name and description.
    ``is_main`` is true for the main agent only, which streams. ``max_iterations`` is its cap of model calls in a turn,
    ``retry_delay`` the wait before the first resend and ``heartbeat`` the time between two heartbeats, in seconds.
    Besides the usual ones its commands get the variables named in ``pass_env``, from the supervisor's environment, and
    those of ``environment``. ``external`` is the session that an external agent may go on with.
    """

    agent_id: str
    spec: AgentSpec
    model: ModelSettings
    project_root: str
    trust: Trust
    is_main: bool
    tools: tuple[str, ...]
    agents: dict[str, str]
    max_iterations: int
    retry_delay: float = 1.0
    heartbeat: float = 5.0
    ceilings: Ceilings = Ceilings()
    pass_env: tuple[str, ...] = ()
    environment: dict[str, str] = {}  # msgspec copies it for each frame
    external: ExternalSession | None = None


class History(Frame, frozen=True, kw_only=True, tag="history"):
    """One item of the stored transcript, in order; sent item by item so that no frame holds a whole history."""

    message: Message


class Prompt(Frame, frozen=True, kw_only=True, tag="prompt"):
    """Begin a turn."""

    text: str


class Resume(Frame, frozen=True, kw_only=True, tag="resume"):
    """Go on with the turn that a worker before you began; the history is what it had committed.

    Calls of the last reply that have no result in the history: ``results`` has those whose end is known, and
    ``delegations`` those whose sub-agent goes on, call id to the ``request`` under which its `ChildResult` will come.
    Between them they name every such call. ``requests`` is the largest number that a request had so far. ``files`` is
    as in `Commit`, of all commits.
    """

    iterations: int
    requests: int = 0
    results: tuple[ToolResult, ...] = ()
    delegations: dict[str, int] = {}
    files: dict[str, str] = {}


class GrantAnswer(Frame, frozen=True, kw_only=True, tag="grant_answer"):
    """``go`` or ``stop`` (an answer that says wait is not sent: the worker waits for the answer itself).

    With ``stop`` come the ``code`` and the sentence of the limit. ``max_tokens`` narrows the reply of this one call.
    """

    grant: int
    decision: Literal["go", "stop"]
    code: str = ""
    message: str = ""
    max_tokens: int | None = None


class ApprovalAnswer(Frame, frozen=True, kw_only=True, tag="approval_answer"):
    """The answer to an `ApprovalRequest`: the call may run, or ``denial`` says to the model why not."""

    call_id: str
    denial: str | None


class Committed(Frame, frozen=True, kw_only=True, tag="committed"):
    """The commit ``number`` and all before it are on the disk."""

    number: int


class ChildResult(Frame, frozen=True, kw_only=True, tag="child_result"):
    """How the sub-agent of ``request`` ended; ``text`` is what the model is told."""

    request: int
    outcome: AgentOutcome
    text: str


class Cancel(Frame, frozen=True, kw_only=True, tag="cancel"):
    """Stop what you do, end your tools, send `Finished` and close. A worker not done in time is killed."""

    reason: str


UpwardFrame: TypeAlias = (
    Ready
    | Heartbeat
    | ToolCallOpened
    | ApprovalRequest
    | AskGrant
    | CallFailed
    | Commit
    | SpawnRequest
    | Finished
    | WorkerRecord
)
DownwardFrame: TypeAlias = (
    Start | History | Prompt | Resume | GrantAnswer | ApprovalAnswer | Committed | ChildResult | Cancel
)
