"""The agents that a run may use: the built-in ones, the user's and the project's.

An agent file ``NAME.json`` is an `AgentSpec`. The project's ``agents/`` wins over the user's folder, that over the
built-in agents. A file that is no agent takes its name all the same: it is a note, and an error once that agent is
asked for, so that nothing else runs in its place. A file with ``acp`` names a command: it counts in the user's own
folder, and in a project that the person trusts. Source: the v1 wire contract, "Agents"; the safety contract, rule 1.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from protocol.agent_spec import TRUST_WIDTH, AgentSpec, ExternalCommand, Trust
from protocol.tool_names import TOOL_EFFECTS, unknown_tools
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
_COMMAND = "the command of an external agent and its arguments are fields of 'acp'"
_SERVICES = "neither MCP servers nor hooks are supported"
_SANDBOX = "only --sandbox decides"
FORBIDDEN = {
    **dict.fromkeys(("base_url", "url", "address", "endpoint", "api_base"), _ADDRESS),
    **dict.fromkeys(("api_key", "key", "key_variable", "token", "headers", "authorization"), _KEY),
    **dict.fromkeys(("proxy", "certificate", "ca_bundle", "ca_file", "verify_tls", "env", "environment"), _NETWORK),
    **dict.fromkeys(("command", "args"), _COMMAND),
    **dict.fromkeys(("mcp", "mcp_servers", "hooks"), _SERVICES),
    **dict.fromkeys(("sandbox", "sandbox_mode"), _SANDBOX),
}
"""Fields that no agent file may have, and why. Source: the safety contract, rule 1."""

OF_OUR_OWN = ("allowed_tools", "disallowed_tools", "model", "provider", "max_iterations", "max_tokens",
              "max_context_tokens", "temperature", "reasoning_effort")  # fmt: skip
"""Fields that mean nothing to an external agent: it has its own model, tools and limits."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
        """The same agents, each with ``text`` behind its system prompt; external ones see to it themselves."""
        agents = {
            name: msgspec.structs.replace(found, system_prompt=f"{found.system_prompt}\n\n{text}")
            if isinstance(found, AgentSpec) and found.acp is None
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


def load_agents(
    project_root: Path,
    config_folder: Path,
    providers: ProviderTable = BUILTIN_PROVIDERS,
    *,
    project_is_trusted: bool = False,
) -> AgentCatalog:
    """Read both folders of agent files. Never fails: what can't be read is told in `AgentCatalog.notes`.

    ``config_folder`` is the user's folder of corral (`supervisor.xdg.config_folder`), which holds ``agents/``.
    ``project_is_trusted`` says that commands which the project's files name may run.
    """
    agents: dict[str, AgentSpec | AgentFileInvalid] = {spec.name: spec for spec in BUILTIN_AGENTS}
    notes: list[str] = []
    refusals = {
        config_folder / "agents": _refusal_of_own(project_root, config_folder),
        project_root / "agents": "" if project_is_trusted else _refusal_of_projects(project_root),
    }
    for folder, refusal in refusals.items():
        for path in _agent_files(folder, notes):
            try:
                spec = read_agent_file(path, providers, command_refusal=refusal)
            except AgentFileInvalid as error:
                agents[path.stem] = error
                notes.append(str(error))
                continue
            agents[path.stem] = spec
            if strange := unknown_tools(spec):
                notes.append(f"{path}: there is no tool {', '.join(strange)}")
    return AgentCatalog(agents, tuple(notes))


def _refusal_of_own(project_root: Path, config_folder: Path) -> str:
    """Why the user's folder may name no command: what lies in a project is the project's, whoever put it there."""
    if not Path(os.path.realpath(config_folder)).is_relative_to(os.path.realpath(project_root)):
        return ""
    return "it lies in the project, so it is not known to be yours: external agents belong in a folder outside of it"


def _refusal_of_projects(project_root: Path) -> str:
    trust = f"corral trust {shlex.quote(str(project_root))}"
    return (
        f"it names a command in a project that you don't trust yet: read it, then run `{trust}` or add --trust-project"
    )


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


def read_agent_file(
    path: Path, providers: ProviderTable = BUILTIN_PROVIDERS, *, command_refusal: str = ""
) -> AgentSpec:
    """The agent in the file; raises `AgentFileInvalid` with a sentence that names the file and what to mend.

    A file that sets what only the person may set (`FORBIDDEN`) is none, whatever else it holds. ``command_refusal`` is
    why this file may be no external agent; empty if it may.
    """
    try:
        content = read_regular_file(path, MAX_FILE_BYTES)
        if fault := _forbidden(content, command_refusal):
            raise AgentFileInvalid(f"{path} is no agent: {fault}")
        spec = _decoder.decode(content)
        if fault := _misplaced(content, spec):
            raise AgentFileInvalid(f"{path} is no agent: {fault}")
    except OSError as error:
        raise AgentFileInvalid(f"{path} can't be read: {error.strerror or error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AgentFileInvalid(f"{path} is no agent: {error}") from None
    if fault := _fault(spec, path.stem, providers) or _command_fault(spec.acp):
        raise AgentFileInvalid(f"{path} is no agent: {fault}")
    return spec if spec.acp is None else msgspec.structs.replace(spec, disallowed_tools=tuple(TOOL_EFFECTS))


def _forbidden(content: bytes, command_refusal: str) -> str:
    """What an agent file may not set, whoever wrote it; empty if it sets no such thing.

    Any other unknown field is a mistake and is refused too, but these have a reason and another place.
    """
    for field in _any_object.decode(content):
        name = field.lower().replace("-", "_")
        if name in FORBIDDEN:
            return f"it may not set {field!r}: {FORBIDDEN[name]}"
        if name == "acp" and command_refusal:
            return f"it may not set {field!r}: {command_refusal}"
    return ""


def _misplaced(content: bytes, spec: AgentSpec) -> str:
    """Which field is missing from an agent of ours, or means nothing to an external one; empty if all is well."""
    fields = _any_object.decode(content)
    if spec.acp is None:
        return "" if "system_prompt" in fields else "it needs a system_prompt"
    strange = [name for name in OF_OUR_OWN if name in fields]
    return f"an external agent has its own: leave out {', '.join(strange)}" if strange else ""


def _command_fault(acp: ExternalCommand | None) -> str:
    """What is wrong with the command of an external agent; empty if nothing is."""
    if acp is None:
        return ""
    if not acp.command.strip():
        return "acp.command is empty: name the program that starts the agent"
    if "/" in acp.command and not acp.command.startswith("/"):
        return "acp.command must be a name that PATH finds, or a whole path: it starts in whatever project there is"
    if any("\0" in text for text in (acp.command, *acp.args, *acp.env.values())):
        return "acp holds a NUL character"
    if acp.timeout is not None and not 0 < acp.timeout < math.inf:
        return "acp.timeout must be more than 0 seconds"
    strange = [name for name in acp.env if not _VARIABLE.fullmatch(name)]
    return f"{strange[0]!r} in acp.env is no name of a variable" if strange else ""


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
