"""The language of scenarios: what is read, and how a fault in a file is told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.scenario import (
    MAX_SCENARIO_BYTES,
    NumberRange,
    Scenario,
    ScenarioError,
    fill_template,
    load_scenario,
    placeholders,
)


def load_rules(*rules: object, agent: str = "main") -> Scenario:
    return load_scenario(json.dumps({"agents": {agent: rules}}), "demo.json")


def fault_of(text: str | bytes) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(text, "demo.json")
    assert isinstance(caught.value, ProtocolError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def fault_of_rule(rule: object) -> str:
    good = {"reply": {"text": "fine"}}
    return fault_of(json.dumps({"agents": {"main": [good, rule]}}))


def test_a_rule_with_everything_left_out_but_its_reply_answers_always() -> None:
    (rule,) = load_rules({"reply": {"text": "Done."}}).rules_for("main")
    assert rule.reply is not None
    assert (rule.reply.text, rule.reply.tool_calls, rule.reply.delay) == ("Done.", (), 0.0)
    assert rule.when.purpose == "reply"
    assert rule.when.captures() == []


def test_a_step_is_a_number_or_a_range() -> None:
    one, two = load_rules(
        {"when": {"step": 2}, "reply": {}}, {"when": {"step": {"at_least": 3}}, "reply": {}}
    ).rules_for("main")
    assert one.when.step == 2
    assert two.when.step == NumberRange(at_least=3, at_most=None)


def test_an_agents_own_rules_come_before_those_for_any_agent() -> None:
    scenario = load_scenario(
        json.dumps({"agents": {"*": [{"name": "any", "reply": {}}], "task": [{"name": "own", "reply": {}}]}}), "x"
    )
    assert [rule.name for rule in scenario.rules_for("task")] == ["own", "any"]
    assert [rule.name for rule in scenario.rules_for("main")] == ["any"]
    assert [rule.name for rule in scenario.rules_for("*")] == ["any"]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"reply": {"txt": "x"}}, "unknown field `txt` - at `$.reply`"),
        ({"reply": {"text": 3}}, "Expected `str`, got `int` - at `$.reply.text`"),
        ({"when": {"promt": "x"}, "reply": {}}, "unknown field `promt` - at `$.when`"),
        ({"when": {"step": 0}, "reply": {}}, "Expected `int` >= 1 - at `$.when.step`"),
        ({"when": {"prompt": "("}, "reply": {}}, "the pattern in `prompt` is no regular expression"),
        ({"when": {"results": [{"output": "["}]}, "reply": {}}, "at `$.when.results[0]`"),
        ({}, "a rule needs either `reply` or `error`"),
        ({"reply": {}, "error": {"kind": "refused"}}, "a rule needs either `reply` or `error`"),
        ({"error": {"kind": "sulking"}}, "Invalid enum value 'sulking' - at `$.error.kind`"),
        ({"reply": {"delay": -1}}, "at `$.reply.delay`"),
        ({"reply": {"tool_calls": [{"name": "Read", "arguments": [1]}]}}, "`arguments` must be an object"),
        ({"reply": {"tool_calls": [{"name": "A", "id": "x"}, {"name": "B", "id": "x"}]}}, "have the same id"),
        ({"reply": {"text": "{{who}}"}}, "`{{who}}` is used, but no pattern of the rule captures it"),
        ({"reply": {"tool_calls": [{"name": "A", "arguments": {"x": [{"y": "{{who}}"}]}}]}}, "`{{who}}` is used"),
        ({"error": {"kind": "refused", "message": "{{who}}"}}, "`{{who}}` is used"),
        ({"when": {"not_said": "(?P<who>x)"}, "reply": {"text": "{{who}}"}}, "`{{who}}` is used"),
        ({"when": {"prompt": "(?P<a>x)", "said": "(?P<a>y)"}, "reply": {}}, "the name of the group `a` is already"),
        ({"when": {"prompt": "(?P<step>x)"}, "reply": {}}, "the name of the group `step` is already taken"),
    ],
)
def test_a_fault_in_a_rule_names_the_file_the_agent_the_rule_and_the_field(rule: object, words: str) -> None:
    message = fault_of_rule(rule)
    assert message.startswith("demo.json: rule 2 of agent main: ")
    assert words in message


def test_a_fault_in_the_json_names_line_and_column() -> None:
    assert (
        fault_of('{"agents":\n  {"main": [oops]}}')
        == "demo.json: JSON is malformed: invalid character at line 2, column 13"
    )


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "{}", b"\xff\xfe", '{"agents": {"main": {}}}'])
def test_text_that_is_no_scenario_is_refused_in_one_sentence(text: str | bytes) -> None:
    assert fault_of(text).startswith("demo.json: ")


def test_a_later_version_of_the_language_is_refused() -> None:
    assert "$.version" in fault_of('{"version": 2, "agents": {}}')


def test_nesting_without_end_is_refused_and_does_not_exhaust_the_stack() -> None:
    fault_of('{"agents": {"main": ' + "[" * 200_000)


def test_a_scenario_over_the_size_limit_is_refused() -> None:
    assert str(MAX_SCENARIO_BYTES) in fault_of(" " * (MAX_SCENARIO_BYTES + 1))


@given(st.text() | st.binary())
def test_any_text_is_a_scenario_or_one_clear_error(text: str | bytes) -> None:
    try:
        load_scenario(text, "some file")
    except ScenarioError as error:
        assert str(error).startswith("some file: ")


def test_braces_that_are_no_placeholder_stay_as_they_are() -> None:
    text = "{{ x }} {x} {{1}} {{}} {{x"
    assert placeholders(text) == []
    assert fill_template(text, {"x": "no"}) == text


def test_a_backslash_keeps_a_placeholder_from_being_filled_in() -> None:
    assert placeholders(r"\{{a}} {{b}}") == ["b"]
    assert fill_template(r"\{{a}} {{b}}", {"a": "1", "b": "2"}) == "{{a}} 2"


def test_a_value_that_looks_like_a_placeholder_is_not_filled_in_again() -> None:
    assert fill_template("{{a}}", {"a": "{{b}}", "b": "2"}) == "{{b}}"


def test_every_example_in_the_documentation_is_a_scenario() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "scripted-model.md").read_text()
    whole, rules = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert set(load_scenario(whole, "the example").agents) == {"main", "explore"}
    assert len(load_rules(*json.loads(rules)).rules_for("main")) == 2
