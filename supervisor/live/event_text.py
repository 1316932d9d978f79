"""The wire's lines as a person reads them: what ``corral tail --plain`` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from protocol.records import (
    AgentCrashed,
    Compaction,
    ContextUsage,
    Hello,
    Info,
    Record,
    RunSummary,
    SessionReady,
    SubAgentEnd,
    SubAgentStart,
    TextDelta,
    ThinkingDelta,
    ToolCallResult,
    ToolCallStart,
    ToolOutputLine,
    TurnEnd,
    TurnStart,
    TurnSummary,
    WorkerRecord,
)
from protocol.tool_names import DELEGATING_TOOL
from protocol.usage import Usage
from supervisor.live.figures import duration, tokens
from supervisor.live.snapshot import RunSnapshot, first_argument
from supervisor.live.tree_text import one_line
from supervisor.sinks.notes import note_of

_AnyRecord: TypeAlias = (
    Hello
    | SessionReady
    | TurnStart
    | SubAgentStart
    | SubAgentEnd
    | AgentCrashed
    | TurnSummary
    | TurnEnd
    | RunSummary
    | ToolCallStart
    | WorkerRecord
)
LONGEST_PIECE = 400
"""Characters of a reply that are gathered for one line; a longer line of it is cut there."""
MAIN = "main"


class _Tags(msgspec.Struct, frozen=True):
    """What the supervisor adds to a record."""

    type: str
    parent_id: str | None = None


_record_decoder: msgspec.json.Decoder[_AnyRecord] = msgspec.json.Decoder(_AnyRecord)
_tags_decoder = msgspec.json.Decoder(_Tags)


class EventText:
    """Makes text of lines, one after the other: a line for each event, indented by the depth of its agent.

    Pieces of a reply are gathered: they show at the end of a line of it, and before the next other event of the agent.
    ``run`` is the state that the first line follows upon; agents are told apart by the call that started them.
    """

    def __init__(self, run: RunSnapshot) -> None:
        self._names: dict[str | None, str] = {None: MAIN}
        self._depths: dict[str | None, int] = {None: 0}
        self._pieces: dict[str | None, tuple[str, str]] = {}
        calls = {agent.agent_id: agent.parent_call_id for agent in run.agents}
        for agent in run.agents:
            if agent.parent_agent_id is not None:
                self._names[agent.parent_call_id] = agent.agent_name
                self._depths[agent.parent_call_id] = self._depths.get(calls.get(agent.parent_agent_id), 0) + 1

    def lines(self, line: bytes) -> list[str]:
        """The text of one line of the wire: lines without line ends, without what could steer a terminal."""
        try:
            tags = _tags_decoder.decode(line)
        except msgspec.MsgspecError:
            return []
        try:
            record = _record_decoder.decode(line)
        except msgspec.MsgspecError:  # from a newer version
            return [*self._rest(tags.parent_id), self._labelled(tags.parent_id, tags.type.replace("_", " "))]
        if isinstance(record, TextDelta):
            return list(self._gather(tags.parent_id, "", record.text))
        if isinstance(record, ThinkingDelta):
            return list(self._gather(tags.parent_id, "~ ", record.text))
        self._learn(record, tags.parent_id)
        return [*self._rest(tags.parent_id), self._labelled(tags.parent_id, _text_of(record))]

    def rest(self) -> list[str]:
        """What was gathered and has yet to show."""
        return [line for agent in list(self._pieces) for line in self._rest(agent)]

    def _learn(self, record: Record, agent: str | None) -> None:
        if isinstance(record, ToolCallStart) and record.name == DELEGATING_TOOL:
            self._depths[record.id] = self._depths.get(agent, 0) + 1
        elif isinstance(record, SubAgentStart):
            self._names[agent] = record.agent_name

    def _gather(self, agent: str | None, mark: str, text: str) -> Iterator[str]:
        before, piece = self._pieces.get(agent, (mark, ""))
        if before != mark:
            yield from self._rest(agent)
            piece = ""
        *whole, piece = (piece + text).split("\n")
        while len(piece) > LONGEST_PIECE:
            whole.append(piece[:LONGEST_PIECE])
            piece = piece[LONGEST_PIECE:]
        self._pieces[agent] = (mark, piece)
        yield from (self._labelled(agent, mark + each) for each in whole if each.strip())

    def _rest(self, agent: str | None) -> list[str]:
        mark, piece = self._pieces.pop(agent, ("", ""))
        return [self._labelled(agent, mark + piece)] if piece.strip() else []

    def _labelled(self, agent: str | None, text: str) -> str:
        indent = "  " * self._depths.get(agent, 1)
        return f"{indent}{one_line(self._names.get(agent, agent or ''))}: {one_line(text)}"


def _text_of(record: Record) -> str:
    """What there is to say of a record that is no piece of a reply."""
    match record:
        case Hello():
            return f"corral {record.koda_version}"
        case SessionReady():
            return f"session ready: {record.model} by {record.provider}, trust {record.trust}"
        case TurnStart():
            return "turn begins"
        case SubAgentStart():
            return f"begins: {record.prompt}"
        case SubAgentEnd():
            return f"ends: {record.outcome}, {_cost(record.usage, record.elapsed_ms)}"
        case ToolCallStart():
            return f"> {record.name} {first_argument(bytes(record.args))}"
        case ToolOutputLine():
            return f"| {record.line}"
        case ToolCallResult():
            return f"< {record.name} {record.outcome} in {duration(record.elapsed_ms)}"
        case ContextUsage():
            return f"context: {tokens(record.used)} of {tokens(record.max)} tokens"
        case Compaction():
            return note_of(record) or f"summing up the history: {record.status}"
        case Info():
            return record.message
        case TurnSummary():
            return f"turn: {_cost(record.usage, record.elapsed_ms)}"
        case TurnEnd():
            return note_of(record) or "turn complete"
        case RunSummary():
            return f"run over: exit code {record.exit_code}"
        case _:
            return note_of(record) or type(record).__name__


def _cost(usage: Usage, elapsed_ms: int) -> str:
    return f"{tokens(usage.total_tokens)} tokens in {duration(elapsed_ms)}"
