"""Every message both ways, against the JSON Schema that the protocol's own authors publish with their SDK."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from tests.workers.acp.memory_agent import SESSION, MemoryAgent, Message, run_with
from workers.acp import AcpControl
from workers.acp.effects import Send
from workers.acp.jsonrpc import Response
from workers.acp.opening import EarlierSession
from workers.acp.session import Session, SessionSettings

pytestmark = pytest.mark.interop

PACKAGE = "@agentclientprotocol/sdk"
VERSION = "2.4.0"


@pytest.fixture(scope="session")
def schema(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The schema of stable v1, from npm, once for this checkout."""
    cache = request.config.cache
    assert cache is not None
    folder = cache.mkdir(f"acp-sdk-{VERSION}")
    path = Path(folder) / "node_modules" / PACKAGE / "schema/v1/schema.json"
    if not path.exists():
        npm = shutil.which("npm")
        assert npm is not None, "npm is needed"
        arguments = ["install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run([npm, *arguments, f"{PACKAGE}@{VERSION}"], check=True, timeout=110, capture_output=True)
    return cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))


class Conversation:
    """Checks the messages of one conversation: each side's requests name what the other side's answers must be."""

    def __init__(self, schema: dict[str, Any]) -> None:
        jsonschema = pytest.importorskip("jsonschema")
        self._schema = schema
        self._make_validator = jsonschema.Draft202012Validator
        self._names: dict[tuple[str, str], dict[str, str]] = {}
        for name, definition in schema["$defs"].items():
            if "x-method" in definition:
                kinds = self._names.setdefault((definition["x-side"], definition["x-method"]), {})
                kinds["Response" if name.endswith("Response") else "Call"] = name

    def check(self, calls: list[Message], answers: list[Message], *, served_by: str) -> list[str]:
        """Check what ``served_by`` was called with, and its answers; returns the names of all that was checked."""
        methods: dict[object, str] = {}
        checked: list[str] = []
        for message in calls:
            if isinstance(method := message.get("method"), str):
                methods[message.get("id", "none")] = method
                checked.append(self._validate(served_by, method, "Call", message.get("params")))
        for message in answers:
            if "method" not in message and "result" in message:
                checked.append(self._validate(served_by, methods[message["id"]], "Response", message["result"]))
            elif "method" not in message:
                self._validate_as("Error", message["error"])
                checked.append("Error")
        return checked

    def _validate(self, side: str, method: str, kind: str, value: object) -> str:
        names = self._names.get((side, method))
        if names is None:
            return f"unknown {method}"
        self._validate_as(names[kind], value)
        return names[kind]

    def _validate_as(self, name: str, value: object) -> None:
        self._make_validator({"$ref": f"#/$defs/{name}", "$defs": self._schema["$defs"]}).validate(value)


async def test_every_message_of_a_rich_turn_is_valid(schema: dict[str, Any]) -> None:
    agent, control = MemoryAgent(), AcpControl()

    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
        params: Message = {"sessionId": SESSION, "toolCall": {"toolCallId": "c1"}, "options": options}
        await agent.send({"id": "consent", "method": "session/request_permission", "params": params})
        await agent.receive()
        await agent.send({"id": 7, "method": "fs/read_text_file", "params": {"sessionId": SESSION, "path": "/x"}})
        await agent.receive()
        await agent.say("one")
        await agent.receive_request("session/cancel")
        await agent.send({"id": None, "method": "session/request_permission", "params": params})
        await agent.receive()
        await agent.end_prompt(prompt, "cancelled")
        await agent.end_prompt(await agent.receive_prompt())

    def steer() -> None:
        if "session/cancel" not in agent.methods and not steered:
            steered.append(True)
            control.interrupt_and_steer("and then \u20ac \ud83d")

    steered: list[bool] = []
    await run_with(script, agent=agent, control=control, on_activity=steer)
    conversation = Conversation(schema)
    ours = conversation.check(agent.messages, agent.sent, served_by="agent")
    assert set(ours) >= {
        "InitializeRequest", "InitializeResponse", "NewSessionRequest", "NewSessionResponse",
        "PromptRequest", "PromptResponse", "CancelNotification",
    }  # fmt: skip
    theirs = conversation.check(agent.sent, agent.messages, served_by="client")
    assert set(theirs) >= {
        "RequestPermissionRequest", "RequestPermissionResponse", "SessionNotification", "ReadTextFileRequest", "Error",
    }  # fmt: skip


@pytest.mark.parametrize("way", ["session/resume", "session/load"])
def test_what_takes_a_session_up_again_is_valid(schema: dict[str, Any], way: str) -> None:
    settings = SessionSettings(prompt="new", cwd="/", earlier=EarlierSession(session_id="s", prompt="later"))
    session = Session(settings, AcpControl())
    resume: Message | None = {} if way == "session/resume" else None
    announced: Message = {"loadSession": True, "sessionCapabilities": {"resume": resume}}
    greeting: Message = {"protocolVersion": 1, "agentCapabilities": announced}
    answers: list[Message] = [{"id": 1, "result": greeting}, {"id": 2, "result": {}}]
    effects = session.begin()
    effects += session.receive(Response(1, greeting), 0)
    effects += session.receive(Response(2, {}), 0)
    effects += session.tick(1.0)
    calls = [json.loads(effect.line) for effect in effects if isinstance(effect, Send)]
    assert [call["method"] for call in calls] == ["initialize", way, "session/prompt"]
    name = "ResumeSession" if way == "session/resume" else "LoadSession"
    checked = Conversation(schema).check(calls, answers, served_by="agent")
    assert set(checked) >= {f"{name}Request", f"{name}Response"}


def test_the_check_knows_an_invalid_message(schema: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    broken: list[Message] = [{"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": 7}}]
    with pytest.raises(jsonschema.ValidationError):
        Conversation(schema).check(broken, [], served_by="agent")
