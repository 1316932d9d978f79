"""How a restarted worker takes up the calls that its predecessor left open.

A call whose process is gone is never run again by itself: the model is told that it was interrupted, and decides. A
delegation is different: its sub-agent is a process of its own and goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from protocol.content import AssistantMessage, Message, Outcome, ToolCall, ToolResult

_OUTPUT = "{outcome}: the agent's process ended before this call did; it may have run in part"


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """``opened`` and ``ended`` are still to be told to the client; ``results`` and ``delegations`` go to the worker."""

    opened: tuple[ToolCall, ...]
    ended: tuple[ToolResult, ...]
    results: tuple[ToolResult, ...]
    delegations: dict[str, int]


def plan_resumption(
    history: Sequence[Message],
    known: Mapping[str, ToolResult],
    open_calls: Sequence[ToolCall],
    delegations: Mapping[str, int],
) -> Resumption:
    """What becomes of the calls in ``history`` without a result.

    ``known`` are the results that came but were not committed, by call id; ``open_calls`` have begun for the client;
    ``delegations`` are the requests of sub-agents whose end the worker has not taken in, by call id.
    """
    calls = unanswered(history)
    begun = {call.id for call in open_calls}
    opened: list[ToolCall] = []
    ended: list[ToolResult] = []
    results: list[ToolResult] = []
    for call in calls:
        if call.id in known:
            results.append(known[call.id])
        elif call.id not in delegations:
            result = unfinished_result(call, "interrupted")
            results.append(result)
            ended.append(result)
            if call.id not in begun:
                opened.append(call)
    # An external agent's calls are committed once they have ended: what else it had open only the client knows of.
    asked = {call.id for call in calls}
    ended += [unfinished_result(call, "interrupted") for call in open_calls if call.id not in asked]
    waiting = {call.id: delegations[call.id] for call in calls if call.id in delegations and call.id not in known}
    return Resumption(opened=tuple(opened), ended=tuple(ended), results=tuple(results), delegations=waiting)


def unanswered(history: Sequence[Message]) -> tuple[ToolCall, ...]:
    """The calls of the last reply that have no result after it, in call order."""
    answered: set[str] = set()
    for message in reversed(history):
        if isinstance(message, ToolResult):
            answered.add(message.call_id)
        elif isinstance(message, AssistantMessage):
            return tuple(call for call in message.tool_calls if call.id not in answered)
        else:
            return ()
    return ()


def unfinished_result(call: ToolCall, outcome: Outcome) -> ToolResult:
    """The result of a call whose process is gone."""
    return ToolResult(call_id=call.id, name=call.name, outcome=outcome, output=_OUTPUT.format(outcome=outcome))
