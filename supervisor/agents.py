"""The agents that a run may use: the built-in ones, the user's and the project's.

An agent file ``NAME.json`` is an `AgentSpec`. The project's ``agents/`` wins over the user's folder, that over the
built-in agents. A file that is no agent takes its name all the same: it is a note, and an error once that agent is
asked for, so that nothing else runs in its place. Source: the v1 wire contract, "Agents".
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from protocol.agent_spec import TRUST_WIDTH, AgentSpec, Trust
from protocol.tool_names import unknown_tools
from supervisor.builtin_agents import BUILTIN_AGENTS
from supervisor.errors import AgentFileInvalid, UnknownAgent
from supervisor.provider_table import BUILTIN_PROVIDERS, ProviderTable
from supervisor.regular_file import read_regular_file

MAX_FILE_BYTES = 1024 * 1024
MAX_FILES = 200
"""Of one folder: a project's ``agents/`` may be something else entirely."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_decoder = msgspec.json.Decoder(AgentSpec)
_any_object = msgspec.json.Decoder(dict[str, msgspec.Raw])

_ADDRESS = "an address comes from --base-url or from your own config.toml"
_KEY = "a key comes from its environment variable"
_NETWORK = "the network is set up by your environment"
_COMMAND = "agents that are commands of their own are not supported"
_SANDBOX = "only --sandbox decides"
FORBIDDEN = {
    **dict.fromkeys(("base_url", "url", "address", "endpoint", "api_base"), _ADDRESS),
    **dict.fromkeys(("api_key", "key", "key_variable", "token", "headers", "authorization"), _KEY),
    **dict.fromkeys(("proxy", "certificate", "ca_bundle", "ca_file", "verify_tls", "env", "environment"), _NETWORK),
    **dict.fromkeys(("acp", "command", "args", "mcp", "mcp_servers", "hooks"), _COMMAND),
    **dict.fromkeys(("sandbox", "sandbox_mode"), _SANDBOX),
}
"""Fields that no agent file may have, and why. Source: the safety contract, rule 1."""


class AgentCatalog:
    """The agents by name. ``notes`` are sentences for a person on the files that are no agents."""

    def __init__(self, agents: Mapping[str, AgentSpec | AgentFileInvalid], notes: tuple[str, ...] = ()) -> None:
        self._agents = dict(agents)
        self.notes = notes

    def get(self, name: str) -> AgentSpec:
        """The agent called ``name``; raises `UnknownAgent`, or `AgentFileInvalid` if its file is none."""
        found = self._agents.get(name)
        if found is None:
            raise UnknownAgent(f"there is no agent {name!r}; there are {', '.join(self.names())}")
        if isinstance(found, AgentFileInvalid):
            raise found
        return found

    def with_instructions(self, text: str) -> AgentCatalog:
        """The same agents, each with ``text`` behind its system prompt."""
        agents = {
            name: msgspec.structs.replace(found, system_prompt=f"{found.system_prompt}\n\n{text}")
            if isinstance(found, AgentSpec)
            else found
            for name, found in self._agents.items()
        }
        return AgentCatalog(agents, self.notes)

    def names(self) -> tuple[str, ...]:
        """The names of the usable agents, sorted."""
        return tuple(self.specs())

    def specs(self) -> dict[str, AgentSpec]:
        """The usable agents by name, in the order of `names`."""
        usable = {name: found for name, found in self._agents.items() if isinstance(found, AgentSpec)}
        return dict(sorted(usable.items()))


def narrower_trust(run: Trust, spec: AgentSpec) -> Trust:
    """The trust of an agent in a run, or under a parent, that has ``run``: its own, unless that would be wider."""
    if spec.trust is None or TRUST_WIDTH[spec.trust] > TRUST_WIDTH[run]:
        return run
    return spec.trust


def load_agents(project_root: Path, config_folder: Path, providers: ProviderTable = BUILTIN_PROVIDERS) -> AgentCatalog:
    """Read both folders of agent files. Never fails: what can't be read is told in `AgentCatalog.notes`.

    ``config_folder`` is the user's folder of corral (`supervisor.xdg.config_folder`), which holds ``agents/``.
    """
    agents: dict[str, AgentSpec | AgentFileInvalid] = {spec.name: spec for spec in BUILTIN_AGENTS}
    notes: list[str] = []
    for folder in (config_folder / "agents", project_root / "agents"):
        for path in _agent_files(folder, notes):
            try:
                spec = read_agent_file(path, providers)
            except AgentFileInvalid as error:
                agents[path.stem] = error
                notes.append(str(error))
                continue
            agents[path.stem] = spec
            if strange := unknown_tools(spec):
                notes.append(f"{path}: there is no tool {', '.join(strange)}")
    return AgentCatalog(agents, tuple(notes))


def _agent_files(folder: Path, notes: list[str]) -> list[Path]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json") and name != ".json")  # noqa: PTH208 - a missing folder costs nothing this way
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        notes.append(f"{folder} can't be read: {error.strerror}")
        return []
    if len(names) > MAX_FILES:
        notes.append(f"{folder} holds {len(names)} files: only the first {MAX_FILES} are read")
    return [folder / name for name in names[:MAX_FILES]]


def read_agent_file(path: Path, providers: ProviderTable = BUILTIN_PROVIDERS) -> AgentSpec:
    """The agent in the file; raises `AgentFileInvalid` with a sentence that names the file and what to mend.

    A file that sets what only the person may set (`FORBIDDEN`) is none, whatever else it holds.
    """
    try:
        content = read_regular_file(path, MAX_FILE_BYTES)
        if fault := _forbidden(content):
            raise AgentFileInvalid(f"{path} is no agent: {fault}")
        spec = _decoder.decode(content)
    except OSError as error:
        raise AgentFileInvalid(f"{path} can't be read: {error.strerror or error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AgentFileInvalid(f"{path} is no agent: {error}") from None
    if fault := _fault(spec, path.stem, providers):
        raise AgentFileInvalid(f"{path} is no agent: {fault}")
    return spec


def _forbidden(content: bytes) -> str:
    """What an agent file may not set, whoever wrote it; empty if it sets no such thing.

    Any other unknown field is a mistake and is refused too, but these have a reason and another place.
    """
    for field in _any_object.decode(content):
        name = field.lower().replace("-", "_")
        if name in FORBIDDEN:
            return f"it may not set {field!r}: {FORBIDDEN[name]}"
    return ""


def _fault(spec: AgentSpec, stem: str, providers: ProviderTable) -> str:
    """What is wrong with values whose types are right; empty if nothing is."""
    if spec.name != stem:
        return f"its name is {spec.name!r}, the file's is {stem!r}: make them the same"
    if not _NAME.fullmatch(spec.name):
        return f"{spec.name!r} is no name: letters, digits, '.', '_' and '-', 64 at most"
    for field in ("max_iterations", "max_tokens", "max_context_tokens"):
        value: int | None = getattr(spec, field)
        if value is not None and value < 1:
            return f"{field} must be at least 1"
    if spec.temperature is not None and not (math.isfinite(spec.temperature) and spec.temperature >= 0):
        return "temperature must be at least 0"
    if spec.provider is not None and providers.find(spec.provider) is None:
        return f"there is no provider {spec.provider!r}"
    return ""
