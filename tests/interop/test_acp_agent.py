"""``corral acp`` against what other people wrote: the official schema, the official Python client, acpx."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.acp_schema import AcpSchema
from tests.interop.installed import npm_packages, python_packages
from tests.stubs.acp_client import AcpClient, acp_client
from tests.stubs.corral_run import Place
from tests.stubs.model_server import ModelServer, ReceivedRequest, scripted
from tests.stubs.replies import (
    CallTuple,
    Reply,
    content,
    delegations,
    delta,
    finish,
    hang,
    plain_text,
    sse,
    text,
    tool_calls,
    used,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SECONDS = 120.0

SDK_CLIENT = """
import asyncio, json, os, sys
import acp
from acp.schema import AllowedOutcome, ClientCapabilities, RequestPermissionResponse, TextContentBlock

class Client:
    def __init__(self):
        self.updates, self.asked = [], 0
    async def request_permission(self, session_id, tool_call, options, **_):
        self.asked += 1
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=options[0].option_id))
    async def session_update(self, session_id, update, **_):
        self.updates.append(update.model_dump(by_alias=True, exclude_none=True, mode="json"))
    def on_connect(self, conn):
        pass

async def main(folder, command, *arguments):
    client = Client()
    async with acp.spawn_agent_process(client, command, *arguments, env=dict(os.environ)) as (agent, process):
        told = await agent.initialize(protocol_version=1, client_capabilities=ClientCapabilities())
        session = (await agent.new_session(cwd=folder, mcp_servers=[])).session_id
        block = TextContentBlock(type="text", text="Fix the parser")
        first = await agent.prompt(session_id=session, prompt=[block])
        await agent.set_session_mode(session_id=session, mode_id="plan")
        listed = await agent.list_sessions()
        await agent.close_session(session_id=session)
        await agent.load_session(cwd=folder, session_id=session, mcp_servers=[])
        seen = len(client.updates)
        turn = asyncio.create_task(agent.prompt(session_id=session, prompt=[block]))
        while not any(update["sessionUpdate"] == "agent_thought_chunk" for update in client.updates[seen:]):
            await asyncio.sleep(0.05)
        await agent.cancel(session_id=session)
        second = await turn
    print(json.dumps({
        "version": told.protocol_version, "first": first.stop_reason, "second": second.stop_reason,
        "asked": client.asked, "listed": [each.session_id for each in listed.sessions] == [session],
        "kinds": sorted({update["sessionUpdate"] for update in client.updates}),
    }))

asyncio.run(main(*sys.argv[1:]))
"""


def work(then: Reply) -> Iterator[Reply]:
    """A turn that writes, edits, runs and fails, and one that goes on with ``then``."""
    wanted: list[CallTuple] = [
        ("1", "Write", {"file_path": "a.txt", "content": "one\n"}),
        ("2", "Edit", {"file_path": "b.txt", "replacements": [{"old_str": "two", "new_str": "three"}]}),
        ("3", "Bash", {"command": "echo hello; sleep 0.4; echo there"}),
        ("4", "Read", {"file_path": "b.txt", "start_line": 1}),
        ("5", "Read", {"file_path": "missing"}),
        ("6", "TodoWrite", {"items": [{"content": "x", "status": "pending"}]}),
        *delegations("explore", "look"),
    ]
    yield tool_calls(wanted)
    yield sse([delta({"reasoning_content": "Hm."}), content("Done."), finish("stop"), used(100, 10)])
    yield then


def explore(_request: ReceivedRequest) -> Reply:
    return plain_text("It is there.")


def thinking_for_ever() -> Reply:
    hanging = hang()
    begun = sse([delta({"reasoning_content": "Hm."})])
    return Reply(steps=(*begun.steps[:-1], *hanging.steps))


def whole_conversation(client: AcpClient, place: Place) -> None:
    """All methods once, and every kind of update."""
    client.initialize(session={"notices": {}, "compaction": {}})
    session = client.new(place.project)
    assert client.turn(session) == "end_turn"
    client.call("session/set_mode", sessionId=session, modeId="auto")
    client.call("session/set_config_option", sessionId=session, configId="mode", value="safe")
    folder = str(place.project)
    client.call("session/list", cwd=folder)
    client.call("session/close", sessionId=session)
    client.call("session/load", sessionId=session, cwd=folder, mcpServers=[])
    client.call("session/resume", sessionId=session, cwd=folder)
    turn = client.prompt(session)
    client.wait_for(lambda message: message.get("params", {}).get("update", {}).get("sessionUpdate") == "notice")
    client.notify("session/cancel", sessionId=session)
    assert client.response(turn)["result"]["stopReason"] == "cancelled"
    client.notify("$/cancel_request", requestId=turn)
    client.error("session/close", sessionId="none")
    client.error("authenticate", methodId="none")


def test_every_message_is_as_the_official_schema_has_it(place: Place) -> None:
    place.write("b.txt", "two\n")
    broken = Reply(steps=(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",), keep_alive=True)
    replies = [*work(broken), hang()]
    with (
        ModelServer(scripted(replies, explore)) as server,
        acp_client(place, server, "--trust", "safe", "--retry-delay", "0") as client,
    ):
        whole_conversation(client, place)
    kinds = {update["sessionUpdate"] for update in client.updates()}
    assert kinds >= {"tool_call", "tool_call_update", "usage_update", "current_mode_update", "notice", "plan"}
    assert AcpSchema().faults(client.sent, client.received) == []


def test_the_schema_finds_what_is_wrong() -> None:
    prompt: list[str] = []
    asked = {"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {"sessionId": "x", "prompt": prompt}}
    said = {"jsonrpc": "2.0", "id": 1, "result": {"stopReason": "tired"}}
    block = {"type": "text", "text": "x"}
    chunk = {"sessionUpdate": "agent_message_chunk", "content": block, "message_id": "m"}
    update = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "x", "update": chunk}}
    faults = AcpSchema().faults([asked], [said, update])
    assert any("tired" in fault for fault in faults) and any("message_id" in fault for fault in faults)


def test_the_official_python_client_gets_on_with_it(place: Place) -> None:
    place.write("b.txt", "two\n")
    python = python_packages("agent-client-protocol==0.12.1")
    with ModelServer(scripted(work(thinking_for_ever()), explore)) as server:
        command = [str(place.executable), "acp", *place.model_flags(server)[:-2], "--trust", "safe"]
        done = run([str(python), "-c", SDK_CLIENT, str(place.project), *command], place, {})
    said = json.loads(done.stdout)
    assert said["version"] == 1 and (said["first"], said["second"]) == ("end_turn", "cancelled")
    assert said["asked"] == 3 and said["listed"]
    assert {"agent_message_chunk", "agent_thought_chunk", "tool_call", "user_message_chunk"} <= set(said["kinds"])
    assert (place.project / "a.txt").read_text() == "one\n"


def test_acpx_gets_on_with_it(place: Place) -> None:
    place.write("b.txt", "two\n")
    programs = npm_packages("acpx@0.19.1", "node@22") / ".bin"
    with ModelServer(scripted(work(text("x")), explore)) as server:
        agent = " ".join([str(place.executable), "acp", *place.model_flags(server)[:-2], "--trust", "safe"])
        command = [str(programs / "acpx"), "--approve-all", "--format", "json", "--agent", agent, "exec", "hello"]
        done = run(command, place, {"PATH": f"{programs}:{os.environ['PATH']}"})
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert messages[-1]["result"] == {"stopReason": "end_turn"}
    assert sum(message.get("method") == "session/request_permission" for message in messages) == 3
    assert (place.project / "a.txt").read_text() == "one\n"
    assert (place.project / "b.txt").read_text() == "three\n"


def run(command: list[str], place: Place, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A client to its end, in the project."""
    done = subprocess.run(
        command,
        cwd=place.project,
        env={**place.environment(), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done
    return done


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A project and a home of its own."""
    return Place(tmp_path)
