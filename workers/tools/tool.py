"""What a tool is.

A tool is one module with its arguments as a struct, an async ``run`` and a module-level ``TOOL``, and one line in
`workers.tools.table`. The JSON schema that a model sees is made from the struct, so the two can't differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeAlias, TypeVar

import msgspec

from protocol.content import Outcome
from protocol.records import TodoUpdate
from protocol.tool_names import ToolEffect
from workers.tools.file_memory import FileMemory

Effect: TypeAlias = ToolEffect
"""What a call may do to the world: the trust mode decides by it whether the call may run."""


class ToolArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the structs of arguments. Unknown fields are ignored: models invent some."""


ArgumentsType = TypeVar("ArgumentsType", bound=ToolArguments)


class ToolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a call came to. ``output`` is text without lone surrogates, bounded by the tool itself."""

    output: str
    outcome: Outcome = "success"


class ToolError(Exception):
    """The call can't be done; the message is one sentence for the model that says what to do instead."""


class Delegate(Protocol):
    """Runs a sub-agent to its end and returns what the model is told of it.

    Cancelling the call leaves the sub-agent to the supervisor, which ends it with its parent.
    """

    async def __call__(self, agent_name: str, prompt: str) -> ToolOutput: ...


def _nobody_watches(_record: TodoUpdate) -> None:
    """Where records go by default."""


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """What a call is given of its surroundings.

    ``root`` is the project root, absolute and without symbolic links; file tools work below it. ``emit_line`` puts a
    line of live output on the wire (text, is it stderr); it never blocks. ``delegate`` is what `InvokeAgent` runs.
    ``wait_for_room`` is to be awaited now and then by what emits much: it returns at once unless the supervisor is
    behind. ``files`` is one object for the whole life of an agent: what it knows of the files it has seen.

    ``emit`` puts a record on the wire, as ``emit_line`` does. ``agents`` are the sub-agents that may be invoked, name
    to description. ``variables`` names the environment variables that commands get besides the usual ones,
    ``environment`` has others with their values.
    """

    root: Path
    files: FileMemory
    emit_line: Callable[[str, bool], None]
    wait_for_room: Callable[[], Awaitable[None]]
    delegate: Delegate
    emit: Callable[[TodoUpdate], None] = _nobody_watches
    agents: Mapping[str, str] = field(default_factory=dict[str, str])
    variables: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class Tool(Generic[ArgumentsType]):
    """A tool as the table lists it.

    ``run`` raises `ToolError` for what the model can mend; any other exception is a defect of the tool and becomes an
    ``error`` result that names its type. It must be cancellable at any time and leave nothing behind.
    """

    name: str
    description: str
    effect: Effect
    arguments: type[ArgumentsType]
    run: Callable[[ArgumentsType, ToolContext], Awaitable[ToolOutput]]
