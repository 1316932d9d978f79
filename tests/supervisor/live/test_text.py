"""What a person reads of a run: the tree of ``corral ps`` and the lines of ``corral tail --plain``."""

from __future__ import annotations

import msgspec
import pytest

from protocol.content import ToolCall
from protocol.records import (
    Info,
    Record,
    RunSummary,
    SubAgentEnd,
    SubAgentStart,
    TextDelta,
    ThinkingDelta,
    ToolCallStart,
    TurnEnd,
    TurnEndReason,
)
from protocol.usage import Usage
from supervisor.core.agent_tree import AgentTree
from supervisor.core.tagger import Tagger
from supervisor.live.event_text import LONGEST_PIECE, EventText
from supervisor.live.figures import duration, memory, tokens
from supervisor.live.snapshot import ARGUMENT_CHARACTERS, CurrentTool, agent_snapshot, current_tool, first_argument
from supervisor.live.tree_text import tree_text
from tests.supervisor.live.staged_run import MAIN, StagedRun, agent

EVIL = "\x1b[31mred\x1b]0;title\x07\nnext\u202e\ttab"

# -- snapshots --------------------------------------------------------------------------------------------------------


def call(name: str, arguments: str) -> ToolCall:
    return ToolCall(id="c", name=name, arguments=arguments)


def test_the_tool_that_is_shown_is_the_call_opened_last_with_its_first_argument() -> None:
    calls = [call("Read", '{"file_path":"a.py"}'), call("Bash", '{"command":"make","timeout":5}')]
    assert current_tool([]) is None
    assert current_tool(calls[:1]) == CurrentTool(name="Read", argument="a.py")
    assert current_tool(calls) == CurrentTool(name="Bash", argument="make", others=1)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [("{}", ""), ("[1]", ""), ("{", ""), ('{"a":[1,2]}', "[1,2]"), ('{"a":"x","b":"y"}', "x"), ('{"a":null}', "null")],
)
def test_the_first_argument_is_shown_as_it_is_or_as_json(arguments: str, shown: str) -> None:
    assert first_argument(arguments) == shown


def test_a_long_argument_is_cut() -> None:
    assert first_argument(f'{{"a":"{"x" * 5000}"}}') == "x" * ARGUMENT_CHARACTERS


def test_the_snapshot_of_an_agent_has_what_the_tree_knows_of_it() -> None:
    tree = AgentTree()
    tree.add("main", agent_name="main")
    tree.add("task-1-1", agent_name="task", parent_agent_id="main", parent_call_id="c")
    tree.set_state("task-1-1", "running")
    tree.open_call("task-1-1", call("Bash", '{"command":"make"}'))
    found = agent_snapshot(tree["task-1-1"], pid=7, age_ms=9, usage=Usage(), memory_bytes=None)
    assert (found.parent_agent_id, found.parent_call_id, found.state, found.tool) == (
        "main",
        "c",
        "running",
        CurrentTool(name="Bash", argument="make"),
    )
    ended = agent_snapshot(tree.end("task-1-1", "complete"), pid=None, age_ms=9, usage=Usage(), memory_bytes=None)
    assert (ended.is_live, ended.outcome) == (False, "complete")


# -- the tree ---------------------------------------------------------------------------------------------------------


def test_the_tree_has_a_row_for_each_live_agent_below_its_parent_and_counts_those_that_ended() -> None:
    run = StagedRun(
        MAIN,
        agent("a-1", tool=CurrentTool(name="InvokeAgent", argument="explore")),
        agent("b-1", state="ended", outcome="complete"),
        agent("a-2", "a-1", name="explore", tool=CurrentTool(name="Bash", argument="make test", others=2)),
        agent("b-2", state="ended", outcome="error"),
    )
    assert tree_text(run.snapshot()).splitlines()[1:] == [
        "  AGENT        NAME     STATE    AGE    TOKENS  MEMORY  TOOL",
        "  main         main     waiting  1m01s  1.2k    34 MiB",
        "    a-1        task     running  1m01s  1.2k    34 MiB  InvokeAgent explore",
        "      a-2      explore  running  1m01s  1.2k    34 MiB  Bash make test (+2)",
        "    (2 ended)                           2.5k",
    ]


def test_a_run_without_agents_has_a_head_still() -> None:
    head, _headings = tree_text(StagedRun().snapshot()).splitlines()
    assert head.endswith("stub  /project")


def test_nothing_in_the_tree_can_steer_a_terminal_or_break_a_row() -> None:
    run = StagedRun(MAIN, agent("a-1", name=EVIL, tool=CurrentTool(name="Bash", argument=EVIL * 9)))
    text = tree_text(run.snapshot())
    assert len(text.splitlines()) == 4
    assert "red next tab" in text
    assert not set(text) & set("\x1b\x07\u202e\t")


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0, "0.0s"), (440, "0.4s"), (59_900, "59s"), (123_000, "2m03s"), (3_900_000, "1h05m")]
)
def test_durations(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (1000, "1.0k"), (999_949, "999.9k"), (999_950, "1.0M")]
)
def test_token_counts(count: int, text: str) -> None:
    assert tokens(count) == text


def test_memory_sizes() -> None:
    assert (memory(None), memory(35_000_000)) == ("-", "33 MiB")


# -- events -----------------------------------------------------------------------------------------------------------


class Wire:
    """Makes lines as the supervisor does and reads them as text."""

    def __init__(self, *present: str) -> None:
        self._tagger = Tagger("s")
        self._tagger.know_agent("main", None, "main")
        run = StagedRun(MAIN, *(agent(each, name="explore") for each in present))
        for each in run.agents[1:]:
            self._tagger.know_agent(each.agent_id, each.parent_call_id, each.agent_name)
        self.text = EventText(run.snapshot())

    def know(self, agent_id: str, call_id: str) -> None:
        """An agent that starts from now on."""
        self._tagger.know_agent(agent_id, call_id, "task")

    def see(self, record: Record, agent_id: str | None = "main") -> list[str]:
        """The text of one line."""
        return self.text.lines(self._tagger.tag(record, agent_id)[1])


def invoke(call_id: str) -> ToolCallStart:
    return ToolCallStart(id=call_id, name="InvokeAgent", args=msgspec.Raw(b'{"agent_name":"task","prompt":"p"}'))


def test_each_line_has_the_agent_s_name_and_is_indented_by_its_depth() -> None:
    wire = Wire("x-1")
    wire.know("t-1", "c1")
    wire.know("t-2", "c2")
    assert wire.see(Info(message="known before"), "x-1") == ["  explore: known before"]
    assert wire.see(invoke("c1")) == ["main: > InvokeAgent task"]
    assert wire.see(SubAgentStart(agent_name="task", agent_id="t-1", prompt="do\nit"), "t-1") == [
        "  task: begins: do it"
    ]
    wire.see(invoke("c2"), "t-1")
    wire.see(SubAgentStart(agent_name="task", agent_id="t-2", prompt="more"), "t-2")
    assert wire.see(Info(message="deep"), "t-2") == ["    task: deep"]
    end = SubAgentEnd(agent_name="task", agent_id="t-2", outcome="limit", usage=Usage(), elapsed_ms=1500, restarts=0)
    assert wire.see(end, "t-2") == ["    task: ends: limit, 0 tokens in 1.5s"]


def test_pieces_of_a_reply_are_gathered_to_lines() -> None:
    wire = Wire("x-1")
    assert wire.see(ThinkingDelta(text="hm")) == []
    assert wire.see(TextDelta(text="one ")) == ["main: ~ hm"]
    assert wire.see(TextDelta(text="of x"), "x-1") == []
    assert wire.see(TextDelta(text="line\n\nand ")) == ["main: one line"]
    assert wire.see(TextDelta(text="a rest")) == []
    assert wire.see(invoke("c")) == ["main: and a rest", "main: > InvokeAgent task"]
    assert wire.text.rest() == ["  explore: of x"]
    assert wire.text.rest() == []


def test_a_reply_without_line_ends_shows_before_its_end() -> None:
    wire = Wire()
    assert wire.see(TextDelta(text="x" * (LONGEST_PIECE + 1))) == ["main: " + "x" * LONGEST_PIECE]
    assert wire.text.rest() == ["main: x"]


def test_lines_of_the_run_itself_are_read_too() -> None:
    wire = Wire()
    assert wire.see(TurnEnd(reason=TurnEndReason(kind="complete")), None) == ["main: turn complete"]
    (line,) = wire.see(TurnEnd(reason=TurnEndReason(kind="error", message="no model")), None)
    assert "no model" in line
    summary = RunSummary(
        success=False,
        response="",
        usage=Usage(),
        usage_by_agent={},
        model="m",
        provider="p",
        elapsed_ms=1,
        exit_code=75,
        error="no model",
        uncertain_calls=0,
        agents=(),
    )
    assert wire.see(summary, None) == ["main: run over: exit code 75"]


def test_a_line_of_a_newer_version_shows_its_type_and_what_is_no_line_nothing() -> None:
    text = Wire().text
    assert text.lines(b'{"type":"brand_new","parent_id":"z"}\n') == ["  z: brand new"]
    assert text.lines(b"garbage\n") == []


def test_nothing_in_a_line_can_steer_a_terminal() -> None:
    assert Wire().see(Info(message=EVIL)) == ["main: red next tab"]
