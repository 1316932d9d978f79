"""The official JSON Schema of the Agent Client Protocol, against which messages of both sides are validated.

What corral says is checked more strictly than by the schema itself: what that does not name is not allowed either, so
that a misspelt field is found. Other people's agents may say more, and do: what is not yet stable, or their own.
"""

from __future__ import annotations

import copy
import json
import subprocess
from typing import Any, TypeAlias

from tests.interop.installed import SCHEMA_PACKAGE, npm_packages, python_packages

Json: TypeAlias = dict[str, Any]
Case: TypeAlias = tuple[bool, str, object]
"""Whether it may be more than the schema names, its definition, the value."""

_VALIDATE = """
import json, sys
from jsonschema import Draft202012Validator
schemas, cases = json.load(sys.stdin)
for is_open, name, value in cases:
    whole = {"$ref": "#/$defs/" + name, **schemas[is_open]}
    for error in Draft202012Validator(whole).iter_errors(value):
        print(f"{name}: {error.message} at {error.json_path} in {json.dumps(value)[:500]}")
"""


class AcpSchema:
    """Knows which definition belongs to a message."""

    def __init__(self) -> None:
        file = npm_packages(SCHEMA_PACKAGE) / "@agentclientprotocol" / "sdk" / "schema" / "v1" / "schema.json"
        self._open: Json = {"$defs": json.loads(file.read_text(encoding="utf-8"))["$defs"]}
        self._closed: Json = copy.deepcopy(self._open) | {"unevaluatedProperties": False}
        self._names: dict[tuple[str, str, bool], str] = {
            (definition["x-method"], definition["x-side"], name.endswith("Response")): name
            for name, definition in self._open["$defs"].items()
            if "x-method" in definition
        }
        for definition in self._closed["$defs"].values():
            _close_values(definition)

    def faults(self, from_client: list[Json], from_agent: list[Json], *, agent_may_add: bool = False) -> list[str]:
        """What is wrong with the messages of one conversation; empty if nothing is.

        ``agent_may_add`` is for agents that are not ours: theirs may be more than the schema names.
        """
        cases: list[Case] = []
        for messages, answers, side in ((from_client, from_agent, "agent"), (from_agent, from_client, "client")):
            asked = {
                json.dumps(message["id"]): message["method"]
                for message in messages
                if "id" in message and "method" in message
            }
            # Those who call the client, and those who answer what the client asked, are agents.
            calls_may_add, answers_may_add = agent_may_add and side == "client", agent_may_add and side == "agent"
            for message in messages:
                if "method" in message and not (calls_may_add and message["method"].startswith("_")):
                    receiver = side if not message["method"].startswith("$/") else "protocol"
                    name = self._name(message["method"], receiver, is_response=False)
                    cases.append((calls_may_add, name, message["params"]))
            cases += [
                (answers_may_add, *self._answer(message, asked, side)) for message in answers if "method" not in message
            ]
        return self._validate(cases)

    def _answer(self, message: Json, asked: dict[str, str], side: str) -> tuple[str, object]:
        if "error" in message:
            return "Error", message["error"]
        return self._name(asked[json.dumps(message["id"])], side, is_response=True), message["result"]

    def _name(self, method: str, side: str, *, is_response: bool) -> str:
        name = self._names.get((method, side, is_response))
        assert name is not None, f"the schema has no {'answer to ' if is_response else ''}{method} for the {side}"
        return name

    def _validate(self, cases: list[Case]) -> list[str]:
        python = python_packages("jsonschema==4.26.0")
        done = subprocess.run(
            [str(python), "-c", _VALIDATE],
            input=json.dumps([[self._closed, self._open], cases]),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


def _close_values(schema: Json) -> None:
    """Allow no property in a value but those that its schema names, where it names any."""
    for value in schema.get("properties", {}).values():
        _close(value)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            _close(schema[key])
    for key in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(key, []):
            _close_values(part)


def _close(value: Json) -> None:
    _close_values(value)
    if {"allOf", "anyOf", "oneOf", "$ref", "properties"} & value.keys():
        value["unevaluatedProperties"] = False
