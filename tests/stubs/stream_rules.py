"""The rules that every stream holds, whatever the run did.

`check_stream` reads the lines in their order as a client would and fails with the line that breaks a rule.
Source: the v1 wire contract, "Framing", "Lines" and "Usage".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Line: TypeAlias = dict[str, Any]
"""A line as a client reads it: JSON without a schema, so that the tests do not lean on the structs they check."""

PRESENTATION = {"spinner_start", "spinner_stop", "status_update", "response_start", "footer", "model_usage"}
PRESENTATION_TEXTS = ("Loop detected", "Loop guard:", "compacting before")
USAGE_FIELDS = {
    "prompt_tokens",
    "completion_tokens",
    "cache_read_tokens",
    "cache_creation_tokens",
    "thinking_tokens",
    "api_calls",
}
WHOLE_NUMBERS = ("elapsed_ms", "delay_ms", "context_percent", "messages_removed", "summary_tokens", "attempt", "seq")
OUTCOMES = {"success", "error", "denied", "cancelled", "interrupted"}
AGENT_OUTCOMES = {"complete", "error", "cancelled", "crashed", "limit"}
EXIT_CODES = {"complete": {0}, "limit": {3}, "error": {1, 5, 75}, "cancelled": {129, 130, 141, 143}}


def check_stream(lines: list[Line], returncode: int | None = None) -> None:
    """Fail unless the whole stream of a run that reached its three last lines holds every rule."""
    check_frame(lines)
    check_tags(lines)
    for line in lines:
        check_line(line)
    story = Story()
    for line in lines:
        story.read(line)
    story.check_end()
    check_accounts(lines)
    check_ending(lines, returncode)


def check_frame(lines: list[Line]) -> None:
    """The first three and the last three lines, each once in the stream."""
    types = [line["type"] for line in lines]
    assert types[:3] == ["hello", "session_ready", "turn_start"], types
    assert types[-3:] == ["turn_summary", "turn_end", "run_summary"], types
    for kind in types[:3] + types[-3:]:
        assert types.count(kind) == 1, f"{kind} is there {types.count(kind)} times"


def check_tags(lines: list[Line]) -> None:
    """Session, turn and sequence number of each line."""
    hello, ready, turn, last = lines[0], lines[1], lines[2], lines[-1]
    assert not {"session_id", "turn_id", "parent_id", "seq"} & hello.keys(), hello
    assert ready["session_id"], ready
    assert turn["turn_id"], turn
    for number, line in enumerate(lines[1:], start=1):
        assert line["session_id"] == ready["session_id"], line
        assert line["seq"] == number, line
    for line in lines[2:-1]:
        assert line["turn_id"] == turn["turn_id"], line
    assert "turn_id" not in ready, ready
    assert "turn_id" not in last, last


def check_line(line: Line) -> None:
    """One line by itself: a known shape, whole numbers, no presentation."""
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", line["type"]), line
    assert line["type"] not in PRESENTATION, line
    assert "is_sub_agent" not in line, line
    for field_name in WHOLE_NUMBERS:
        value = line.get(field_name, 0)
        assert type(value) is int, f"{field_name} is no whole number: {line}"
        assert value >= 0, line
    if line["type"] in ("warn", "info", "loop_guard", "compaction", "error"):
        words = line.get("message", "") + line.get("detail", "")
        assert not any(text in words for text in PRESENTATION_TEXTS), line
    if line["type"] == "retry":
        assert line["max_attempts"] == 5, line
        assert 1 <= line["attempt"] <= 5, line


def check_usage(usage: Line, where: Line) -> None:
    """All six numbers, nothing else, whole and not negative."""
    assert usage.keys() == USAGE_FIELDS, where
    for value in usage.values():
        assert type(value) is int, where
        assert value >= 0, where


@dataclass
class Story:
    """What happened so far, read line by line. The main agent's key is None, a child's its ``parent_id``."""

    open_calls: dict[tuple[str | None, str], Line] = field(default_factory=dict[tuple[str | None, str], Line])
    delegations: set[str] = field(default_factory=set[str])
    live_agents: dict[str, Line] = field(default_factory=dict[str, Line])
    ended_agents: set[str] = field(default_factory=set[str])
    open_compactions: set[str | None] = field(default_factory=set[str | None])
    reply_text: str = ""

    def read(self, line: Line) -> None:
        """Take one line; fails when it can't come here."""
        agent = line.get("parent_id")
        kind = line["type"]
        if agent is not None:
            self._check_parent(agent, line)
        match kind:
            case "tool_call_start":
                self._open_call(agent, line)
            case "tool_output_line":
                assert (agent, line["id"]) in self.open_calls, f"output of a call that is not open: {line}"
            case "tool_call_result":
                self._close_call(agent, line)
            case "sub_agent_start":
                self._start_agent(line)
            case "sub_agent_end":
                self._end_agent(line)
            case "compaction":
                self._compact(agent, line)
            case "text_delta" | "retry" | "agent_crashed":
                self._hear(agent, line)
            case "run_summary":
                if line["success"]:
                    assert line["response"] == self.reply_text, (line["response"], self.reply_text)
            case _:
                pass

    def check_end(self) -> None:
        """Nothing is open when the stream ends."""
        assert not self.open_calls, f"calls without a result: {list(self.open_calls)}"
        assert not self.live_agents, f"agents without an end: {list(self.live_agents)}"
        assert not self.open_compactions, f"compactions without an end: {self.open_compactions}"

    def _check_parent(self, parent_id: str, line: Line) -> None:
        assert parent_id in self.delegations, f"parent_id names no delegating call: {line}"
        if line["type"] not in ("sub_agent_start", "agent_crashed"):
            alive = {start["parent_id"] for start in self.live_agents.values()}
            assert parent_id in alive, f"a line of an agent that does not live: {line}"

    def _open_call(self, agent: str | None, line: Line) -> None:
        key = (agent, line["id"])
        assert key not in self.open_calls, f"a call was started twice: {line}"
        assert type(line["args"]) is dict, line
        assert line["name"], line
        self.open_calls[key] = line
        if line["name"] == "InvokeAgent":
            self.delegations.add(line["id"])
        if agent is None:
            self.reply_text = ""

    def _close_call(self, agent: str | None, line: Line) -> None:
        start = self.open_calls.pop((agent, line["id"]), None)
        assert start is not None, f"result of a call that is not open: {line}"
        assert start["name"] == line["name"], line
        assert line["outcome"] in OUTCOMES, line
        assert type(line["output"]) is str, line
        assert type(line["elapsed_ms"]) is int, line
        if line["name"] == "InvokeAgent":
            still = [child for child in self.live_agents.values() if child["parent_id"] == line["id"]]
            assert not still, f"the result came before the end of {still}: {line}"

    def _start_agent(self, line: Line) -> None:
        assert line["agent_id"] not in {*self.live_agents, *self.ended_agents}, f"agent_id is not unique: {line}"
        assert any(call_id == line["parent_id"] for _agent, call_id in self.open_calls), line
        assert line["agent_name"], line
        assert type(line["prompt"]) is str, line
        self.live_agents[line["agent_id"]] = line

    def _end_agent(self, line: Line) -> None:
        start = self.live_agents.pop(line["agent_id"], None)
        assert start is not None, f"end of an agent that does not live: {line}"
        self.ended_agents.add(line["agent_id"])
        assert (start["agent_name"], start["parent_id"]) == (line["agent_name"], line["parent_id"]), line
        assert line["outcome"] in AGENT_OUTCOMES, line
        assert type(line["restarts"]) is int, line
        open_calls = [call_id for agent, call_id in self.open_calls if agent == line["parent_id"]]
        assert not open_calls, f"{line['agent_name']} ended with open calls {open_calls}"

    def _compact(self, agent: str | None, line: Line) -> None:
        if line["status"] == "started":
            assert agent not in self.open_compactions, line
            self.open_compactions.add(agent)
            assert type(line["context_percent"]) is int, line
            return
        assert agent in self.open_compactions, f"no compaction was started: {line}"
        self.open_compactions.remove(agent)
        assert line["status"] in ("completed", "skipped", "failed"), line
        if line["status"] == "completed":
            assert line["messages_removed"] > 0, line
            assert line["summary_tokens"] > 0, line

    def _hear(self, agent: str | None, line: Line) -> None:
        if agent is None:
            self.reply_text = self.reply_text + line["text"] if line["type"] == "text_delta" else ""


def check_accounts(lines: list[Line]) -> None:
    """Usage is whole everywhere and adds up: by agent, up the tree, and on each agent's last line."""
    turn, summary = lines[-3], lines[-1]
    for line in lines:
        if "usage" in line:
            check_usage(line["usage"], line)
    for usage in summary["usage_by_agent"].values():
        check_usage(usage, summary)
    assert total(summary["usage_by_agent"].values()) == summary["usage"], summary
    nodes = {node["agent_id"]: node for node in summary["agents"]}
    ends = [line for line in lines if line["type"] == "sub_agent_end"]
    assert len(nodes) == len(summary["agents"]) == len(ends) + 1, summary
    for end in ends:
        node = nodes[end["agent_id"]]
        assert [node[key] for key in ("agent_name", "outcome", "usage", "parent_id")] == [
            end[key] for key in ("agent_name", "outcome", "usage", "parent_id")
        ], (node, end)
    root = check_tree(nodes)
    assert root["usage"] == turn["usage"], (root, turn)
    if lines[1]["epoch"] == 1:
        assert turn["usage"] == summary["usage"], (turn, summary)


def check_tree(nodes: dict[str, Line]) -> Line:
    """The root of the tree of agents, each of whose nodes has used at least what its children used."""
    roots = [node for node in nodes.values() if node["parent_id"] is None]
    assert len(roots) == 1, nodes
    for node in nodes.values():
        check_usage(node["usage"], node)
        assert (node["parent_id"] is None) is (node["parent_agent_id"] is None), node
        assert node["parent_agent_id"] is None or node["parent_agent_id"] in nodes, node
        below = total(child["usage"] for child in nodes.values() if child["parent_agent_id"] == node["agent_id"])
        assert all(node["usage"][key] >= below[key] for key in USAGE_FIELDS), (node, below)
    return roots[0]


def total(usages: Iterable[Line]) -> dict[str, int]:
    """The sum of usages."""
    found: Counter[str] = Counter()
    for usage in usages:
        found.update(usage)
    return {key: found[key] for key in USAGE_FIELDS}


def check_ending(lines: list[Line], returncode: int | None) -> None:
    """The reason, the summary and the exit code agree with each other."""
    reason, summary = lines[-2]["reason"], lines[-1]
    assert summary["exit_code"] in EXIT_CODES[reason["kind"]], (reason, summary)
    assert summary["success"] is (reason["kind"] == "complete"), (reason, summary)
    assert (summary["error"] is None) is summary["success"], summary
    assert type(summary["response"]) is str, summary
    assert type(summary["uncertain_calls"]) is int, summary
    if returncode is not None:
        assert summary["exit_code"] == returncode, (returncode, summary)
