"""What an agent is, and where its model is to be found."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Trust: TypeAlias = Literal["plan", "safe", "auto"]
"""``plan`` reads only; ``safe`` asks before each side effect (headless: denied); ``auto`` works in the project."""

TRUST_WIDTH: dict[Trust, int] = {"plan": 0, "safe": 1, "auto": 2}
"""Wider trust has the larger number; a child's is never wider than its parent's."""

ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class ExternalCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program of somebody else's that is the agent, and speaks the Agent Client Protocol on its standard streams.

    ``command`` is found by way of PATH or is a whole path; ``env`` is set on top of what the program inherits.
    ``timeout`` is the most that one turn of it may take, in seconds from the start of the program; None: no limit.
    """

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}  # msgspec copies it for each
    timeout: float | None = None


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent as its file, or the table of the built-in ones, describes it.

    ``allowed_tools`` empty means all; ``disallowed_tools`` is taken off afterwards. ``max_iterations`` is the cap of
    model calls in one turn, ``max_tokens`` that of one reply's tokens, ``max_context_tokens`` the context window to
    assume. What is None comes from the run. With ``acp`` it is an external agent, which has its own model and tools.
    Source: the v1 wire contract, "Agents".
    """

    name: str
    system_prompt: str = ""
    description: str = ""
    allowed_tools: tuple[str, ...] = ()
    disallowed_tools: tuple[str, ...] = ()
    model: str | None = None
    provider: str | None = None
    max_iterations: int | None = None
    max_tokens: int | None = None
    max_context_tokens: int | None = None
    temperature: float | None = None
    reasoning_effort: ReasoningEffort | None = None
    trust: Trust | None = None
    acp: ExternalCommand | None = None


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent may take of the machine; None: no ceiling.

    ``memory_bytes`` bounds the address space of the worker itself, not of the tools it starts: many runtimes reserve
    far more than they use. Where the supervisor can have a cgroup it bounds the memory of both. The others hold for
    its tools too: ``cpu_seconds`` and ``open_files`` for each process, ``file_bytes`` for each file that is written.
    """

    memory_bytes: int | None = None
    cpu_seconds: int | None = None
    open_files: int | None = None
    file_bytes: int | None = None


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a model and what to ask of it.

    ``provider`` is the canonical name a client reads, ``adapter`` the key of the table in ``workers.providers``.
    ``api_key`` travels only in frames, never in an environment, an argument, a log or a record. ``key_variable`` is
    the environment variable the key belongs in, for error messages. All times are in seconds: ``connect_timeout``
    bounds the connection, ``idle_timeout`` the silence before the first and between two events of a reply,
    ``call_timeout`` the whole call. ``scenario`` is the text of the scripted model's scenario file.
    """

    provider: str
    adapter: str
    model: str
    base_url: str = ""
    api_key: str = ""
    key_variable: str = ""
    context_window: int = 128_000
    max_tokens: int | None = None
    temperature: float | None = None
    reasoning_effort: ReasoningEffort | None = None
    connect_timeout: float = 15.0
    idle_timeout: float = 300.0
    call_timeout: float = 1800.0
    scenario: str = ""
