"""The tags of a line: who caused it is said by the supervisor, and the numbers have no holes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.records import Hello, RunSummary, TextDelta, TurnStart
from protocol.usage import Usage
from supervisor.core.tagger import Tagger

HELLO = Hello(koda_version="1.2.3", capabilities=("one_shot",))
SUMMARY = RunSummary(
    success=True,
    response="",
    usage=Usage(),
    usage_by_agent={},
    model="m",
    provider="p",
    elapsed_ms=0,
    exit_code=0,
    error=None,
    uncertain_calls=0,
    agents=(),
)


def read(line: bytes) -> dict[str, Any]:
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.fixture
def tagger() -> Tagger:
    tagger = Tagger("session-1")
    tagger.know_agent("main-1", None, "main")
    tagger.know_agent("task-1", "call-7", "task")
    return tagger


def test_hello_carries_no_tag_and_no_number(tagger: Tagger) -> None:
    assert set(read(tagger.tag(HELLO)[1])) == {"type", "koda_version", "capabilities", "protocol_version"}
    assert read(tagger.tag(TurnStart())[1])["seq"] == 1


def test_lines_are_numbered_from_one_without_holes_whoever_caused_them(tagger: Tagger) -> None:
    agents = (None, "main-1", "task-1", "main-1", None)
    lines = [read(tagger.tag(TextDelta(text="x"), agent_id)[1]) for agent_id in agents]
    assert [line["seq"] for line in lines] == [1, 2, 3, 4, 5]
    assert {line["session_id"] for line in lines} == {"session-1"}


def test_only_lines_between_the_beginning_and_the_end_of_a_turn_carry_its_id(tagger: Tagger) -> None:
    before = read(tagger.tag(TextDelta(text="x"))[1])
    tagger.begin_turn("turn-1")
    within = read(tagger.tag(TurnStart())[1])
    tagger.end_turn()
    after = read(tagger.tag(SUMMARY)[1])
    assert [line.get("turn_id") for line in (before, within, after)] == [None, "turn-1", None]


def test_only_a_sub_agent_s_lines_carry_the_call_that_started_it(tagger: Tagger) -> None:
    lines = [read(tagger.tag(TextDelta(text="x"), agent_id)[1]) for agent_id in ("main-1", "task-1", None)]
    assert [line.get("parent_id") for line in lines] == [None, "call-7", None]


def test_an_agent_that_was_never_made_known_has_no_lines(tagger: Tagger) -> None:
    with pytest.raises(KeyError):
        tagger.tag(TextDelta(text="x"), "stranger")[1]


def test_the_name_of_an_agent_is_the_one_it_was_made_known_by(tagger: Tagger) -> None:
    names = [tagger.tag(TextDelta(text="x"), agent_id)[0] for agent_id in ("main-1", "task-1", None)]
    assert names == ["main", "task", ""]


@given(st.text(), st.text(), st.text(), st.text())
def test_no_text_breaks_a_line_or_adds_a_field(session: str, turn: str, call: str, text: str) -> None:
    tagger = Tagger(session)
    tagger.begin_turn(turn)
    tagger.know_agent("a", call, "task")
    assert read(tagger.tag(TextDelta(text=text), "a")[1]) == {
        "type": "text_delta",
        "text": text,
        "session_id": session,
        "turn_id": turn,
        "parent_id": call,
        "seq": 1,
    }
