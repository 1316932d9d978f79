from __future__ import annotations

import msgspec
import pytest

from protocol.content import ToolCall
from workers.tools.arguments import parse_arguments, schemas
from workers.tools.edit import EditArguments
from workers.tools.read import ReadArguments
from workers.tools.replacements import Replacement
from workers.tools.table import TOOLS, TOOLS_BY_NAME
from workers.tools.tool import ToolArguments, ToolError


class Schema(msgspec.Struct):
    type: str
    properties: dict[str, dict[str, msgspec.Raw]]
    required: list[str] = []


def parsed(name: str, arguments: str, fault: str = "") -> ToolArguments:
    call = ToolCall(id="1", name=name, arguments=arguments, fault=fault)
    return parse_arguments(TOOLS_BY_NAME[name], call)


def refusal(name: str, arguments: str, fault: str = "") -> str:
    with pytest.raises(ToolError) as refused:
        parsed(name, arguments, fault)
    return str(refused.value)


def test_names_and_parameters_are_those_that_models_know() -> None:
    told = {schema.name: msgspec.json.decode(schema.parameters, type=Schema) for schema in schemas(TOOLS)}
    assert {name: (list(schema.properties), schema.required) for name, schema in told.items()} == {
        "Read": (["file_path", "start_line", "num_lines"], ["file_path"]),
        "Write": (["file_path", "content"], ["file_path", "content"]),
        "Edit": (["file_path", "replacements"], ["file_path", "replacements"]),
        "Delete": (["file_path"], ["file_path"]),
        "List": (["file_path", "recursive"], []),
        "Grep": (["pattern", "path", "case_insensitive"], ["pattern"]),
        "Glob": (["pattern", "path"], ["pattern"]),
        "Bash": (["command", "timeout"], ["command"]),
        "WebFetch": (["url", "prompt"], ["url"]),
        "TodoWrite": (["items"], ["items"]),
        "AskUser": (["question", "options"], ["question"]),
        "ListAgents": ([], []),
        "InvokeAgent": (["agent_name", "prompt"], ["agent_name", "prompt"]),
    }
    for schema in told.values():
        assert schema.type == "object"
        assert all("type" in field for field in schema.properties.values())


def test_what_is_told_of_all_tools_costs_little() -> None:
    told = [schema.name + schema.description + schema.parameters for schema in schemas(TOOLS)]
    assert sum(map(len, told)) < 4_400  # about four characters are a token


def test_a_choice_of_words_is_told_with_its_type() -> None:
    (schema,) = schemas([TOOLS_BY_NAME["TodoWrite"]])
    assert (
        '"status":{"enum":["completed","in_progress","pending"],"default":"pending","type":"string"}'
        in schema.parameters
    )


def test_schemas_hold_no_references_and_no_nulls() -> None:
    for schema in schemas(TOOLS):
        assert "$ref" not in schema.parameters
        assert "null" not in schema.parameters
    edit = next(schema for schema in schemas(TOOLS) if schema.name == "Edit")
    assert '"old_str"' in edit.parameters


def test_effects_are_what_the_tools_do() -> None:
    assert {tool.name: tool.effect for tool in TOOLS} == {
        "Read": "read",
        "Write": "write",
        "Edit": "write",
        "Delete": "write",
        "List": "read",
        "Grep": "read",
        "Glob": "read",
        "Bash": "execute",
        "WebFetch": "execute",
        "TodoWrite": "read",
        "AskUser": "read",
        "ListAgents": "read",
        "InvokeAgent": "delegate",
    }


def test_sloppy_arguments_without_doubt_are_taken() -> None:
    expected = ReadArguments(file_path="a", start_line=5)
    assert parsed("Read", '{"file_path":"a","start_line":"5","num_lines":null,"invented":[1]}') == expected
    assert parsed("Read", '{"file_path":"a","start_line":5.0}') == expected
    as_text = msgspec.json.encode({"file_path": "a", "replacements": '[{"old_str":"x","new_str":"y"}]'}).decode()
    replacement = Replacement(old_str="x", new_str="y")
    assert parsed("Edit", as_text) == EditArguments(file_path="a", replacements=(replacement,))


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("Read", "{}", "missing the required field `file_path`"),
        ("Read", '{"file_path":"a","start_line":"x"}', "`start_line`: expected a whole number, got text"),
        ("Read", '{"file_path":["a"]}', "`file_path`: expected text, got a list"),
        ("Read", "[]", "expected an object, got a list"),
        ("Edit", '{"file_path":"a","replacements":[{"old_str":"x"}]}', "`replacements[0]`: missing the required field"),
        ("Edit", '{"file_path":"a","replacements":"[{"}', "`replacements`: expected a list, got text"),
        ("Bash", '{"command":"a","timeout":-1}', "`timeout`: expected a number > 0"),
        ("Bash", "{", "no valid JSON"),
    ],
)
def test_a_wrong_field_is_named_with_what_belongs_there(name: str, arguments: str, words: str) -> None:
    assert words in refusal(name, arguments)


def test_what_can_be_given_is_said_with_a_refusal() -> None:
    assert refusal("Read", "{}").endswith("It takes {file_path, start_line?, num_lines?}.")


def test_a_fault_of_the_call_is_reported_as_it_is() -> None:
    assert refusal("Read", '{"file_path":"a"}', "The arguments were cut off.") == "The arguments were cut off."
