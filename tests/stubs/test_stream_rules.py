"""The rules of the stream: a good stream passes, and each broken one is found."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.stubs.stream_rules import Line, check_stream

NOTHING = {
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "cache_read_tokens": 0,
    "cache_creation_tokens": 0,
    "thinking_tokens": 0,
    "api_calls": 0,
}


def usage(calls: int) -> Line:
    return {**NOTHING, "prompt_tokens": 10 * calls, "api_calls": calls}


def node(agent_id: str, parent: str | None, name: str, calls: int) -> Line:
    tags = {"parent_id": None if parent is None else "d", "parent_agent_id": parent}
    return {
        "agent_id": agent_id,
        **tags,
        "agent_name": name,
        "outcome": "complete",
        "usage": usage(calls),
        "restarts": 0,
    }


def good_stream() -> list[Line]:
    """A run with one sub-agent that makes one call."""
    child: Line = {"agent_name": "task", "agent_id": "a2", "parent_id": "d"}
    lines: list[Line] = [
        {"type": "hello", "protocol_version": 1},
        {"type": "session_ready", "epoch": 1},
        {"type": "turn_start"},
        {"type": "tool_call_start", "id": "d", "name": "InvokeAgent", "args": {}},
        {"type": "sub_agent_start", **child, "prompt": "look"},
        {"type": "tool_call_start", "id": "r", "name": "Read", "args": {}, "parent_id": "d"},
        result("r", "Read", "d"),
        {"type": "sub_agent_end", **child, "outcome": "complete", "usage": usage(2), "elapsed_ms": 5, "restarts": 0},
        result("d", "InvokeAgent", None),
        {"type": "text_delta", "text": "Do"},
        {"type": "text_delta", "text": "ne."},
        {"type": "turn_summary", "usage": usage(4), "elapsed_ms": 9},
        {"type": "turn_end", "reason": {"kind": "complete"}},
        {
            "type": "run_summary",
            "success": True,
            "response": "Done.",
            "usage": usage(4),
            "usage_by_agent": {"main": usage(2), "task": usage(2)},
            "elapsed_ms": 9,
            "exit_code": 0,
            "error": None,
            "uncertain_calls": 0,
            "agents": [node("a1", None, "default", 4), node("a2", "a1", "task", 2)],
        },
    ]
    return tagged(lines)


def result(call_id: str, name: str, parent_id: str | None) -> Line:
    line: Line = {"type": "tool_call_result", "id": call_id, "name": name, "outcome": "success", "output": ""}
    return {**line, "elapsed_ms": 1, **({} if parent_id is None else {"parent_id": parent_id})}


def tagged(lines: list[Line]) -> list[Line]:
    """The lines with the tags that belong to their places."""
    for number, line in enumerate(lines[1:], start=1):
        line |= {"session_id": "s", "seq": number}
    for line in lines[2:-1]:
        line["turn_id"] = "t"
    return lines


def test_a_good_stream_passes() -> None:
    check_stream(good_stream(), 0)


def drop(number: int) -> Callable[[list[Line]], None]:
    def broken(lines: list[Line]) -> None:
        del lines[number]
        tagged(lines)

    return broken


def swap(first: int, second: int) -> Callable[[list[Line]], None]:
    def broken(lines: list[Line]) -> None:
        lines[first], lines[second] = lines[second], lines[first]
        tagged(lines)

    return broken


def put(number: int, **fields: object) -> Callable[[list[Line]], None]:
    return lambda lines: lines[number].update(fields)


def insert(number: int, **line: object) -> Callable[[list[Line]], None]:
    def broken(lines: list[Line]) -> None:
        lines.insert(number, line)
        tagged(lines)

    return broken


BROKEN = {
    "no turn_start": drop(2),
    "no turn_summary": drop(-3),
    "no result": drop(8),
    "no start of a call": drop(5),
    "no end of an agent": drop(7),
    "a result before the end of its agent": swap(7, 8),
    "a result before its call": swap(5, 6),
    "an agent that ends with an open call": swap(6, 7),
    "the wrong order at the end": swap(-1, -2),
    "a hole in seq": put(5, seq=77),
    "a seq on hello": put(0, seq=0),
    "another session": put(5, session_id="other"),
    "a session on hello": put(0, session_id="s"),
    "another turn": put(5, turn_id="other"),
    "a turn on the last line": put(-1, turn_id="t"),
    "an unknown parent": put(5, parent_id="nobody"),
    "a flag of old": put(5, is_sub_agent=True),
    "a spinner": insert(4, type="spinner_start"),
    "a type that is no snake_case": insert(4, type="toolCall"),
    "words for a person": insert(4, type="warn", message="Loop detected"),
    "a fraction of a millisecond": put(-3, elapsed_ms=1.5),
    "a missing number of usage": put(-3, usage={"api_calls": 4}),
    "usage that does not add up": put(-1, usage_by_agent={"main": usage(2), "task": usage(1)}),
    "a turn that counts less than its tree": put(-3, usage=usage(3)),
    "an end that does not agree with the tree": put(7, usage=usage(1)),
    "a tree without a root": put(-1, agents=[node("a1", "a2", "default", 4), node("a2", "a1", "task", 2)]),
    "a child that used more than its parent": put(-1, agents=[node("a1", None, "x", 4), node("a2", "a1", "task", 5)]),
    "a tree without the child": put(-1, agents=[node("a1", None, "default", 4)]),
    "a response that was not said": put(-1, response="Something else."),
    "the wrong exit code": put(-1, exit_code=1),
    "success with an error": put(-1, error="but no"),
    "a retry without end": insert(4, type="retry", reason="network", attempt=6, max_attempts=5, delay_ms=1),
    "a compaction without an end": insert(4, type="compaction", status="started", context_percent=80),
    "a compaction without a start": insert(4, type="compaction", status="skipped"),
    "a compaction of nothing": insert(4, type="compaction", status="completed", messages_removed=0, summary_tokens=1),
    "output of no call": insert(4, type="tool_output_line", id="zzz", line="", is_stderr=False),
}


@pytest.mark.parametrize("breaking", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_stream_is_found(breaking: Callable[[list[Line]], None]) -> None:
    lines = copy.deepcopy(good_stream())
    breaking(lines)
    with pytest.raises((AssertionError, KeyError)):
        check_stream(lines, 0)


def test_an_exit_code_that_differs_from_the_summary_is_found() -> None:
    with pytest.raises(AssertionError):
        check_stream(good_stream(), 1)


def test_a_retry_voids_what_was_said_before_it() -> None:
    lines = good_stream()
    lines.insert(-3, {"type": "retry", "reason": "network", "attempt": 1, "max_attempts": 5, "delay_ms": 1})
    lines.insert(-3, {"type": "text_delta", "text": "Better."})
    lines[-1]["response"] = "Better."
    check_stream(tagged(lines), 0)
