"""What the agents do, for a person who watches: a short line for each step."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from protocol.records import (
    ContextUsage,
    SubAgentEnd,
    SubAgentStart,
    ToolCallResult,
    ToolCallStart,
    ToolOutputLine,
    TurnSummary,
)
from protocol.tool_names import DELEGATING_TOOL
from protocol.usage import Usage
from supervisor.live.figures import duration, tokens
from supervisor.live.snapshot import first_argument
from supervisor.sinks.sink import Event

LONG_CALL_MS = 1000
"""A call that takes longer is worth a line at its end too."""
LONGEST_TEXT = 300

Tone: TypeAlias = Literal["step", "agent", "trouble", "detail"]


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """A step: ``agent`` is the sub-agent's id, empty for the main agent; ``text`` is one line, as it came."""

    agent: str
    text: str
    tone: Tone


class ActivityReader:
    """Makes steps of a run's events, in order. ``detailed`` adds what tools write and how full the context is."""

    def __init__(self, *, detailed: bool = False) -> None:
        self._detailed = detailed
        self._open: dict[tuple[str, str], str] = {}

    def read(self, event: Event) -> Activity | None:
        """The step that the event is; None for what is no news."""
        agent = "" if event.agent_name in ("", "main") else event.agent_id
        match event.record:
            case ToolCallStart(id=call_id, name=name, args=arguments):
                text = f"{name} {first_argument(bytes(arguments))}".strip()
                self._open[agent, call_id] = text
                # The sub-agent itself says that it begins.
                return None if name == DELEGATING_TOOL else _activity(agent, text, "step")
            case ToolCallResult() as result:
                return self._end_of_call(agent, result)
            case SubAgentStart(prompt=prompt):
                return _activity(agent, f"begins: {prompt}", "agent")
            case SubAgentEnd(outcome=outcome) as end:
                tone: Tone = "agent" if outcome == "complete" else "trouble"
                return _activity(agent, f"ends: {outcome}, {_cost(end.usage, end.elapsed_ms)}", tone)
            case TurnSummary(usage=usage, elapsed_ms=elapsed_ms):
                return _activity("", f"{_cost(usage, elapsed_ms)}, {_count(usage.api_calls, 'model call')}", "agent")
            case ToolOutputLine(line=line) if self._detailed:
                return _activity(agent, f"| {line}", "detail")
            case ContextUsage(used=used, max=most) if self._detailed:
                return _activity(agent, f"context: {tokens(used)} of {tokens(most)} tokens", "detail")
            case _:
                return None

    def _end_of_call(self, agent: str, result: ToolCallResult) -> Activity | None:
        text = self._open.pop((agent, result.id), result.name)
        if result.outcome != "success":
            first_line = result.output.strip().partition("\n")[0]
            return _activity(agent, f"{text}: {result.outcome}: {first_line}".rstrip(": "), "trouble")
        if result.elapsed_ms >= LONG_CALL_MS and result.name != DELEGATING_TOOL:
            return _activity(agent, f"{text}: {duration(result.elapsed_ms)}", "detail")
        return None


def _activity(agent: str, text: str, tone: Tone) -> Activity:
    return Activity(agent=agent, text=text[:LONGEST_TEXT], tone=tone)


def _cost(usage: Usage, elapsed_ms: int) -> str:
    return f"{tokens(usage.total_tokens)} tokens in {duration(elapsed_ms)}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
