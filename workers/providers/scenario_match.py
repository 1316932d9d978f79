"""Which rule of a scenario answers a model request, and what its patterns captured. Pure: only the request counts.

A turn begins with a prompt, and every `UserMessage` is one, but for the note by which an agent at its cap of model
calls is told to answer without tools: it is the last message, behind tool results, of a request that offers no tools.
Where a compaction took the prompt away, the summary stands for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol.content import AssistantMessage, Message, Summary, ToolResult, UserMessage
from protocol.scenario import Conditions, NumberRange, ResultCondition, Rule, Scenario
from workers.providers.provider import ModelRequest


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What the conditions of a rule look at, read from one request.

    ``step`` is the number of the reply that is asked for, in its turn; ``results`` are those of the last reply's
    calls, ``texts`` all that was said, in order.
    """

    request: ModelRequest
    prompt: str
    step: int
    attempt: int
    results: tuple[ToolResult, ...]
    texts: tuple[str, ...]

    def describe(self) -> str:
        """The place in the scenario, for an error message."""
        after = ", ".join(f"{result.name} {result.outcome}" for result in self.results)
        place = f"agent {self.request.agent}, step {self.step}"
        return f"{place}, after {after}" if after else place


@dataclass(frozen=True, kw_only=True)
class Match:
    """A rule that holds, and the values for the placeholders in its texts."""

    rule: Rule
    values: dict[str, str]


def read_situation(request: ModelRequest, attempt: int) -> Situation:
    """What ``request`` says; ``attempt`` is 1 where this same reply is asked for the first time."""
    turn = _current_turn(request)
    replies = sum(isinstance(message, AssistantMessage) for message in turn)
    return Situation(
        request=request,
        prompt=turn[0].text if turn and isinstance(turn[0], UserMessage | Summary) else "",
        step=replies + 1,
        attempt=attempt,
        results=_last_results(turn),
        texts=tuple(_text_of(message) for message in request.messages),
    )


def find_rule(scenario: Scenario, situation: Situation) -> Match | None:
    """The first rule for the agent that holds, or None."""
    for rule in scenario.rules_for(situation.request.agent):
        captured = _captured(rule.when, situation)
        if captured is not None:
            built_in = {
                "agent": situation.request.agent,
                "prompt": situation.prompt,
                "step": str(situation.step),
            }
            return Match(rule=rule, values=captured | built_in)
    return None


def _captured(when: Conditions, situation: Situation) -> dict[str, str] | None:
    """The captured groups if all conditions hold, else None."""
    request = situation.request
    holds = (
        when.purpose == request.purpose
        and _in_range(when.step, situation.step)
        and _in_range(when.attempt, situation.attempt)
        and when.tools_offered in (None, bool(request.tools))
        and (when.not_said is None or _search(when.not_said, *situation.texts) is None)
    )
    if not holds:
        return None
    finds = [_result_captures(condition, situation.results) for condition in when.results]
    if when.prompt is not None:
        finds.append(_search(when.prompt, situation.prompt))
    if when.said is not None:
        finds.append(_search(when.said, *situation.texts))
    values: dict[str, str] = {}
    for found in finds:
        if found is None:
            return None
        values |= found
    return values


def _in_range(wanted: int | NumberRange | None, number: int) -> bool:
    if isinstance(wanted, NumberRange):
        return number >= wanted.at_least and (wanted.at_most is None or number <= wanted.at_most)
    return wanted is None or wanted == number


def _result_captures(condition: ResultCondition, results: tuple[ToolResult, ...]) -> dict[str, str] | None:
    """What the condition's pattern captured, of the first result that meets it; None where it does not hold."""
    selected = [
        result for result in results if condition.tool in (None, result.name) and condition.id in (None, result.call_id)
    ]
    finds = [_one_result(condition, result) for result in selected]
    met = [found for found in finds if found is not None]
    if condition.which == "none":
        return None if met else {}
    if not met or (condition.which == "all" and len(met) < len(selected)):
        return None
    return met[0]


def _one_result(condition: ResultCondition, result: ToolResult) -> dict[str, str] | None:
    if condition.outcome not in (None, result.outcome):
        return None
    return _search(condition.output or "", result.output)


def _search(pattern: str, *texts: str) -> dict[str, str] | None:
    """The named groups of the first find in ``texts``; a group that took no part in it is empty."""
    compiled = re.compile(pattern)
    for text in texts:
        found = compiled.search(text)
        if found is not None:
            return found.groupdict(default="")
    return None


def _current_turn(request: ModelRequest) -> tuple[Message, ...]:
    messages = request.messages
    end = len(messages)
    if end > 1 and not request.tools and isinstance(messages[-2], ToolResult):
        end -= 1
    for index in range(end - 1, -1, -1):
        if isinstance(messages[index], UserMessage):
            return messages[index:]
    return messages


def _last_results(turn: tuple[Message, ...]) -> tuple[ToolResult, ...]:
    results: list[ToolResult] = []
    for message in reversed(turn):
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, ToolResult):
            results.append(message)
    return tuple(reversed(results))


def _text_of(message: Message) -> str:
    if isinstance(message, ToolResult):
        return message.output
    if isinstance(message, AssistantMessage):
        return f"{message.reasoning}\n{message.text}" if message.reasoning else message.text
    return message.text
