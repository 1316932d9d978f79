"""Agents that other people wrote, run as external agents against a model server of this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import pytest

from protocol.usage import Usage
from tests.interop.installed import npm_packages, python_packages
from tests.stubs.corral_run import Place, Run
from tests.stubs.model_server import Handler, ModelServer, ReceivedRequest, scripted
from tests.stubs.process_table import ended_within, lineage
from tests.stubs.replies import (
    Reply,
    delegations,
    event,
    hang,
    plain_text,
    stream,
    text,
    tool_call,
    tool_calls,
)
from tests.stubs.stream_rules import Line, check_stream

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SECONDS = 120.0
HELLO = "Hello from the stub."

SDK_AGENT = """
import asyncio
import acp
from acp.schema import InitializeResponse, NewSessionResponse, PromptResponse, Usage

class Echo(acp.Agent):
    def on_connect(self, conn):
        self.client = conn
    async def initialize(self, protocol_version, **_):
        return InitializeResponse(protocol_version=protocol_version)
    async def new_session(self, cwd, **_):
        return NewSessionResponse(session_id="echo")
    async def prompt(self, prompt, session_id, **_):
        for block in prompt:
            await self.client.session_update(session_id=session_id, update=acp.update_agent_message(block))
        usage = Usage(input_tokens=5, output_tokens=3, total_tokens=8)
        return PromptResponse(stop_reason="end_turn", usage=usage)

asyncio.run(acp.run_agent(Echo()))
"""


class AnyModelServer(ModelServer):
    """A `ModelServer` that also answers, with `HELLO`, in the two APIs that corral itself does not speak."""

    def __init__(self, handler: Handler, codex: Iterable[Reply] = ()) -> None:
        """``codex`` are the replies to codex's first calls; ``codex_has_asked`` is set at the first."""
        super().__init__(handler)
        self._codex = deque(codex)
        self.codex_has_asked = threading.Event()

    def __enter__(self) -> AnyModelServer:
        super().__enter__()
        return self

    def _answer(self, request: ReceivedRequest) -> Reply:
        if request.path.endswith("/responses"):
            self.codex_has_asked.set()
            return self._codex.popleft() if self._codex else said_as_response()
        if ":streamGenerateContent" in request.path:
            return said_as_candidate()
        return super()._answer(request)


def said_as_response() -> Reply:
    """`HELLO` as OpenAI's responses API streams it."""
    block = {"type": "output_text", "text": HELLO}
    message = {"type": "message", "role": "assistant", "id": "m1", "content": [block]}
    usage = {"input_tokens": 11, "output_tokens": 3, "total_tokens": 14}
    payloads: list[dict[str, object]] = [
        {"type": "response.created", "response": {"id": "r1"}},
        {"type": "response.output_item.done", "item": message, "output_index": 0},
        {"type": "response.completed", "response": {"id": "r1", "usage": usage}},
    ]
    return stream(*(f"event: {payload['type']}\n".encode() + event(payload) for payload in payloads))


def said_as_candidate() -> Reply:
    """`HELLO` as Gemini's API streams it."""
    content = {"role": "model", "parts": [{"text": HELLO}]}
    candidate = {"content": content, "finishReason": "STOP", "index": 0}
    counts = {"promptTokenCount": 11, "candidatesTokenCount": 3, "totalTokenCount": 14}
    return stream(event({"candidates": [candidate], "usageMetadata": counts}))


# -- the agents, each as its makers say that it is set up -------------------------------------------------------------


def write_external(place: Place, name: str, command: Path, *arguments: str, **env: str) -> None:
    """An agent file in the user's own folder."""
    folder = place.config / "corral" / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    acp = {"command": str(command), "args": arguments, "env": env}
    (folder / f"{name}.json").write_text(json.dumps({"name": name, "acp": acp, "description": "Somebody else's."}))


def write_codex(place: Place, server: ModelServer) -> None:
    home = place.home / "codex"
    home.mkdir()
    provider = f'[model_providers.stub]\nname = "stub"\nbase_url = "{server.url}"\nwire_api = "responses"\n'
    (home / "config.toml").write_text(f'model = "stub"\nmodel_provider = "stub"\n{provider}')
    programs = npm_packages("@zed-industries/codex-acp@0.16.0") / ".bin"
    write_external(place, "codex", programs / "codex-acp", CODEX_HOME=str(home))


def write_gemini(place: Place, server: ModelServer) -> None:
    home = place.home / ".gemini"
    home.mkdir()
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
    }
    (home / "settings.json").write_text(json.dumps(settings))
    program = npm_packages("@google/gemini-cli@0.61.0") / ".bin" / "gemini"
    address = server.url.removesuffix("/v1")
    arguments = ("--acp", "-m", "gemini-2.5-flash")
    write_external(place, "gemini", program, *arguments, GEMINI_API_KEY="x", GOOGLE_GEMINI_BASE_URL=address)


def write_opencode(place: Place, server: ModelServer) -> None:
    models: dict[str, object] = {"open": {}}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": server.url}, "models": models}
    config = {
        "provider": {"stub": provider}, "model": "stub/open", "small_model": "stub/open", "permission": {"bash": "ask"},
        "autoupdate": False, "share": "disabled",
    }  # fmt: skip
    program = npm_packages("opencode-ai@1.18.33") / ".bin" / "opencode"
    env = {"OPENCODE_CONFIG_CONTENT": json.dumps(config), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    write_external(place, "opencode", program, "acp", **env)


def write_echo(place: Place, _server: ModelServer) -> None:
    write_external(place, "echo", python_packages("agent-client-protocol==0.12.1"), "-c", SDK_AGENT)


def write_fast_agent(place: Place, _server: ModelServer) -> None:
    program = python_packages("fast-agent-mcp==0.10.48").with_name("fast-agent-acp")
    write_external(place, "fast", program, "--model", "passthrough")


AGENTS = {"codex": write_codex, "gemini": write_gemini, "opencode": write_opencode, "echo": write_echo}
SAID = {"codex": HELLO, "gemini": HELLO, "opencode": HELLO, "echo": "Say hello", "fast": "Say hello"}


def run_alone(place: Place, name: str) -> Run:
    """A one-shot whose main agent is the external one."""
    root = str(place.project)
    arguments = ["-p", "Say hello", "-a", name, "--output-format", "stream-json", "--project-root", root]
    run = place.command(*arguments, timeout=SECONDS)
    check_stream(run.lines, run.returncode)
    return run


# -- one at a time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AGENTS)
def test_a_whole_turn_of(place: Place, name: str) -> None:
    with AnyModelServer(lambda _: text(HELLO)) as server:
        AGENTS[name](place, server)
        run = run_alone(place, name)
    assert run.returncode == 0, run
    assert run.one("run_summary")["response"].endswith(SAID[name])
    notes = [line["message"] for line in run.of_type("info")]
    used = run.one("run_summary")["usage"]["prompt_tokens"]
    assert bool(used) != any("does not report what it used" in note for note in notes), run


@pytest.mark.skipif(sys.version_info < (3, 13), reason="it needs Python 3.13")
def test_a_whole_turn_of_fast_agent_without_any_model(place: Place) -> None:
    with AnyModelServer(lambda _: text(HELLO)) as server:
        write_fast_agent(place, server)
        run = run_alone(place, "fast")
    assert run.returncode == 0, run
    assert SAID["fast"] in run.one("run_summary")["response"]


@pytest.mark.parametrize("trust", ["auto", "safe"])
def test_a_call_that_asks_for_consent_is_as_free_as_trust(place: Place, trust: str) -> None:
    """Of opencode, which is told to ask before each command."""
    asks = tool_call("c1", "bash", {"command": "echo made > made.txt", "description": "Makes a file"})
    replies = iter([asks])
    with AnyModelServer(lambda request: next(replies, text(HELLO)) if offers_tools(request) else text("t")) as server:
        write_opencode(place, server)
        root = str(place.project)
        arguments = ["-p", "Make it", "-a", "opencode", "--output-format", "stream-json", "--project-root", root]
        run = place.command(*arguments, "--trust", trust, timeout=SECONDS)
    check_stream(run.lines, run.returncode)
    started = run.one("tool_call_start")
    assert started["name"] in ("bash", "execute"), run
    assert run.outcomes()[started["id"]] == ("success" if trust == "auto" else "denied"), run
    assert (place.project / "made.txt").exists() is (trust == "auto")


def test_codex_is_cancelled_while_its_model_thinks(place: Place) -> None:
    with AnyModelServer(lambda _: text(HELLO), [hang()]) as server:
        write_codex(place, server)
        with place.start(server, "-a", "codex") as live:
            assert server.codex_has_asked.wait(SECONDS)
            live.signal(signal.SIGTERM)
            run = live.finish(SECONDS)
    assert run.returncode == 143


# -- at once ----------------------------------------------------------------------------------------------------------


def test_two_real_agents_and_two_of_ours_work_at_once_and_one_is_killed(place: Place) -> None:
    """The killed one is codex, in the middle of its model call; the others and the run are complete."""
    wanted = [*delegations("codex", "a"), *delegations("echo", "b"), *delegations("task", "c", "d")]
    main = scripted([tool_calls(wanted), text("All done.")], lambda request: plain_text(f"{request.prompt} is done"))
    with AnyModelServer(main, [hang()]) as server:
        write_codex(place, server)
        write_echo(place, server)
        with place.start(server) as live:
            live.wait_for(lambda line: line["type"] == "sub_agent_end", count=3, timeout=SECONDS)
            assert server.codex_has_asked.wait(SECONDS)
            victim = lineage(live.process.pid, "codex-acp")[-1]
            os.kill(victim, signal.SIGKILL)
            run = live.finish(SECONDS)
            assert ended_within(victim, 5)
    assert run.returncode == 0, run
    ended: dict[str, Line] = {line["parent_id"]: line for line in run.of_type("sub_agent_end")}
    assert {call: line["outcome"] for call, line in ended.items()} == {
        "to-a": "error", "to-b": "complete", "to-c": "complete", "to-d": "complete",
    }  # fmt: skip
    assert run.outputs()["to-b"] == "b"
    assert Usage(**ended["to-b"]["usage"]) == Usage(prompt_tokens=5, completion_tokens=3, api_calls=1)


def offers_tools(request: ReceivedRequest) -> bool:
    """Whether this is the agent's own call, and not one for the title of its session."""
    return bool(request.body.get("tools"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A project and a home of its own."""
    return Place(tmp_path)
