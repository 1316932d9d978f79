"""Agents that other people wrote, each set up as its makers say, so that it calls a model server of this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from protocol.usage import Usage
from tests.interop import tap
from tests.interop.any_model_server import HELLO, READ, WRITTEN, Call
from tests.interop.installed import npm_packages, python_packages
from tests.stubs.corral_run import Place
from tests.stubs.model_server import ModelServer

COMMAND = "echo made > made.txt"
PROMPT = "Say hello"

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


@dataclass(frozen=True)
class Launch:
    """How an agent is started."""

    program: Path
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None


SetUp: TypeAlias = Callable[[Place, ModelServer], Launch]


@dataclass(frozen=True, kw_only=True)
class RealAgent:
    """What the tests must know of an agent.

    ``shell`` is the call by which its model makes it run `COMMAND`; None for an agent that asks for no consent.
    ``usage`` is what a turn has used by the agent's own account; None for one that gives none.
    """

    set_up: SetUp
    shell: Call | None = None
    usage: Usage | None = None
    says: str = HELLO


def write_agent(place: Place, name: str, server: ModelServer, *, record: Path | None = None) -> None:
    """Set the agent up and write its agent file into the user's own folder; ``record`` is for `tap`."""
    launch = AGENTS[name].set_up(place, server)
    command = [str(launch.program), *launch.arguments]
    if record is not None:
        command = [sys.executable, str(Path(tap.__file__)), str(record), *command]
    acp = {"command": command[0], "args": command[1:], "env": dict(launch.env or {})}
    folder = place.config / "corral" / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"name": name, "acp": acp, "description": "Somebody else's."}))


def npm_program(package: str, name: str) -> Path:
    """A program of an npm package."""
    return npm_packages(package) / ".bin" / name


# -- one by one -------------------------------------------------------------------------------------------------------


def claude(_place: Place, server: ModelServer) -> Launch:
    program = npm_program("@zed-industries/claude-code-acp@0.16.2", "claude-code-acp")
    address = server.url.removesuffix("/v1")
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    return Launch(program, env={"ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": "x", **quiet})


def codex(place: Place, server: ModelServer) -> Launch:
    home = place.home / "codex"
    home.mkdir()
    provider = f'[model_providers.stub]\nname = "stub"\nbase_url = "{server.url}"\nwire_api = "responses"\n'
    # Its own sandbox needs a program that not every machine has.
    freedom = 'approval_policy = "untrusted"\nsandbox_mode = "danger-full-access"\n'
    settings = f'model = "stub"\nmodel_provider = "stub"\n{freedom}'
    (home / "config.toml").write_text(settings + provider)
    return Launch(npm_program("@zed-industries/codex-acp@0.16.0", "codex-acp"), env={"CODEX_HOME": str(home)})


def echo(_place: Place, _server: ModelServer) -> Launch:
    return Launch(python_packages("agent-client-protocol==0.12.1"), ("-c", SDK_AGENT))


def fast_agent(_place: Place, server: ModelServer) -> Launch:
    program = python_packages("fast-agent-mcp==0.10.48", at_least=(3, 12)).with_name("fast-agent-acp")
    env = {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": server.url}
    return Launch(program, ("--model", "openai.stub", "--shell"), env)


def fast_agent_without_model(_place: Place, _server: ModelServer) -> Launch:
    program = python_packages("fast-agent-mcp==0.10.48", at_least=(3, 12)).with_name("fast-agent-acp")
    return Launch(program, ("--model", "passthrough"))


def gemini(place: Place, server: ModelServer) -> Launch:
    home = place.home / ".gemini"
    home.mkdir()
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
    }
    (home / "settings.json").write_text(json.dumps(settings))
    env = {"GEMINI_API_KEY": "x", "GOOGLE_GEMINI_BASE_URL": server.url.removesuffix("/v1")}
    return Launch(npm_program("@google/gemini-cli@0.61.0", "gemini"), ("--acp", "-m", "gemini-2.5-flash"), env)


def opencode(_place: Place, server: ModelServer) -> Launch:
    models: dict[str, object] = {"open": {}}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": server.url}, "models": models}
    config = {
        "provider": {"stub": provider}, "model": "stub/open", "small_model": "stub/open", "permission": {"bash": "ask"},
        "autoupdate": False, "share": "disabled",
    }  # fmt: skip
    env = {"OPENCODE_CONFIG_CONTENT": json.dumps(config), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return Launch(npm_program("opencode-ai@1.18.33", "opencode"), ("acp",), env)


def qwen(place: Place, server: ModelServer) -> Launch:
    home = place.home / ".qwen"
    home.mkdir()
    settings = {"security": {"auth": {"selectedType": "openai"}}, "privacy": {"usageStatisticsEnabled": False}}
    (home / "settings.json").write_text(json.dumps(settings))
    env = {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": server.url, "OPENAI_MODEL": "stub"}
    return Launch(npm_program("@qwen-code/qwen-code@0.15.10", "qwen"), ("--acp",), env)


def vibe(place: Place, server: ModelServer) -> Launch:
    home = place.home / "vibe"
    home.mkdir()
    settings = 'active_model = "stub"\nenable_telemetry = false\nenable_update_checks = false\n'
    provider = f'[[providers]]\nname = "stub"\napi_base = "{server.url}"\napi_key_env_var = ""\n'
    model = '[[models]]\nname = "stub"\nprovider = "stub"\nalias = "stub"\n'
    (home / "config.toml").write_text(settings + provider + model)
    program = python_packages("mistral-vibe==3.0.2", at_least=(3, 12)).with_name("vibe-acp")
    return Launch(program, env={"VIBE_HOME": str(home)})


_SHELL = {"command": COMMAND, "description": "Makes a file"}

_CHAT = Usage(prompt_tokens=200, completion_tokens=20, api_calls=1)

AGENTS: dict[str, RealAgent] = {
    "claude": RealAgent(set_up=claude, shell=Call("Bash", _SHELL)),
    "codex": RealAgent(set_up=codex, shell=Call("exec_command", {"cmd": COMMAND})),
    "echo": RealAgent(set_up=echo, usage=Usage(prompt_tokens=5, completion_tokens=3, api_calls=1), says=PROMPT),
    "fast": RealAgent(set_up=fast_agent),
    "fast-without-model": RealAgent(set_up=fast_agent_without_model, says=PROMPT),
    "gemini": RealAgent(
        set_up=gemini,
        shell=Call("run_shell_command", _SHELL),
        usage=Usage(prompt_tokens=READ, completion_tokens=WRITTEN, api_calls=1),
    ),
    "opencode": RealAgent(set_up=opencode, shell=Call("bash", _SHELL), usage=_CHAT),
    "qwen": RealAgent(set_up=qwen, shell=Call("run_shell_command", {**_SHELL, "is_background": False}), usage=_CHAT),
    "vibe": RealAgent(set_up=vibe, shell=Call("bash", {"command": COMMAND}), usage=_CHAT),
}
