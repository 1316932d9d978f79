"""What a person who watches sees of the agents."""

from __future__ import annotations

import io

import msgspec
import pytest

from protocol.records import (
    ContextUsage,
    Record,
    SubAgentEnd,
    SubAgentStart,
    TextDelta,
    ToolCallResult,
    ToolCallStart,
    ToolOutputLine,
    TurnSummary,
)
from protocol.usage import Usage
from supervisor.sinks.activity import Activity, ActivityReader
from supervisor.sinks.sink import Event
from supervisor.sinks.terminal import line_writer

USED = Usage(prompt_tokens=1200, completion_tokens=34, api_calls=1)


def call(name: str = "Bash", args: str = '{"command": "pytest -q"}') -> ToolCallStart:
    return ToolCallStart(id="c", name=name, args=msgspec.Raw(args.encode()))


def result(outcome: str = "success", output: str = "", elapsed_ms: int = 0, name: str = "Bash") -> ToolCallResult:
    return ToolCallResult(id="c", outcome=outcome, name=name, output=output, elapsed_ms=elapsed_ms)  # type: ignore[arg-type]  # only outcomes come in


def read(*records: Record, agent: str = "main", detailed: bool = False) -> list[tuple[str, str, str]]:
    """The steps of one agent."""
    reader = ActivityReader(detailed=detailed)
    name = "main" if agent == "main" else agent.partition("-")[0]
    steps = [reader.read(Event(record=each, agent_name=name, agent_id=agent, line=b"")) for each in records]
    return [(step.agent, step.text, step.tone) for step in steps if step is not None]


def test_a_call_shows_at_its_begin_and_again_if_it_fails_or_takes_long() -> None:
    assert read(call(), result()) == [("", "Bash pytest -q", "step")]
    assert read(call(), result(elapsed_ms=3200))[1] == ("", "Bash pytest -q: 3.2s", "detail")
    assert read(call(), result("error", "2 failed\nmore"))[1] == ("", "Bash pytest -q: error: 2 failed", "trouble")
    assert read(call(), result("denied"))[1] == ("", "Bash pytest -q: denied", "trouble")


def test_a_sub_agent_shows_with_its_id_and_what_it_cost() -> None:
    end = SubAgentEnd(
        agent_name="explore", agent_id="explore-1-1", outcome="complete", usage=USED, elapsed_ms=2500, restarts=0
    )
    start = SubAgentStart(agent_name="explore", agent_id="explore-1-1", prompt="Look around")
    assert read(start, call("Read", '{"file_path": "a.py"}'), end, agent="explore-1-1") == [
        ("explore-1-1", "begins: Look around", "agent"),
        ("explore-1-1", "Read a.py", "step"),
        ("explore-1-1", "ends: complete, 1.2k tokens in 2.5s", "agent"),
    ]
    assert read(call("InvokeAgent", "{}"), result(name="InvokeAgent", elapsed_ms=9000)) == []


def test_the_end_says_what_the_turn_cost_and_the_reply_is_no_step() -> None:
    records = (TextDelta(text="Hello"), TurnSummary(usage=USED, elapsed_ms=61_000))
    assert read(*records) == [("", "1.2k tokens in 1m01s, 1 model call", "agent")]


def test_details_are_for_those_who_ask() -> None:
    records = (ToolOutputLine(id="c", line="ok", is_stderr=False), ContextUsage(used=100, max=2000))
    assert read(*records) == []
    assert [text for _, text, _ in read(*records, detailed=True)] == ["| ok", "context: 100 of 2.0k tokens"]


class Screen(io.StringIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


STEP = Activity(agent="explore-1-1", text="Read \x1b[31mred\x1b]0;t\x07\u202e\nnext " + "x" * 200, tone="trouble")


def test_elsewhere_than_on_a_terminal_a_step_is_a_plain_line() -> None:
    stream = Screen(False)
    line_writer(stream)(STEP)
    assert stream.getvalue() == "  explore-1-1: Read red next " + "x" * 200 + "\n"


@pytest.mark.parametrize("no_colour", [True, False])
def test_on_a_terminal_a_step_is_a_coloured_line_that_fits(monkeypatch: pytest.MonkeyPatch, no_colour: bool) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1" if no_colour else "")
    stream = Screen(True)
    line_writer(stream)(STEP)
    written = stream.getvalue()
    assert written.count("\n") == 1
    assert "31mred" not in written
    assert "\u202e" not in written
    assert ("\x1b[" not in written) is no_colour
    if no_colour:
        assert written == "  explore-1-1 Read red next xxxxxxxxxxx…\n"


def test_a_closed_stream_is_no_error() -> None:
    for is_terminal in (True, False):
        stream = Screen(is_terminal)
        write = line_writer(stream)
        stream.close()
        write(STEP)
