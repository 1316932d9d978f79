"""The settings of a one-shot run, read and checked before anything is started.

Precedence: flag, environment, the user's file, the agent's file, default. Source: the v1 wire contract, "Flags and
environment".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TextIO, TypeAlias, cast, get_args

import msgspec

from protocol.agent_spec import Ceilings, ModelSettings, Trust
from supervisor.agents import AgentCatalog, load_agents, narrower_trust
from supervisor.builtin_agents import DEFAULT_AGENT
from supervisor.core.admission import MemoryLimits
from supervisor.core.grants import TreeLimits
from supervisor.core.worker_times import WorkerTimes
from supervisor.errors import WrongUsage
from supervisor.flags import FlagValues
from supervisor.local_servers import LocalServers
from supervisor.model_choice import ModelFlags, choose_model, key_variables, model_notes, with_told_window
from supervisor.project_instructions import read_instructions
from supervisor.project_trust import TrustStore, files_with_commands
from supervisor.prompt import STDIN_SECONDS, given_prompt, joined_prompt, piped_prompt
from supervisor.provider_table import ProviderTable
from supervisor.settings_file import SettingsFile, read_settings_file
from supervisor.store.folder import find_session
from supervisor.xdg import config_folder, state_folder

OutputFormat: TypeAlias = Literal["text", "json", "stream-json"]
SpawnMode: TypeAlias = Literal["auto", "fork", "fresh"]
"""``fork``: workers are forks of a fork server; ``fresh``: an exec for each; ``auto``: fork where the system is fit."""


class PlainSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Those settings of a run that stand for themselves. Times are in seconds.

    ``timeout`` bounds the whole run (None: no bound), ``retry_delay`` is the time before the first retry of a model
    call. ``verbose`` says that the agents' doings are shown even where nobody sits at a terminal.
    """

    output_format: OutputFormat
    trust: Trust
    limits: TreeLimits
    timeout: float | None
    retry_delay: float
    quiet: bool
    verbose: bool
    spawn: SpawnMode
    restart: bool
    worker_times: WorkerTimes
    ceilings: Ceilings
    memory: MemoryLimits
    pass_env: tuple[str, ...]


class OneShotSettings(PlainSettings, frozen=True, kw_only=True):
    """All that a one-shot run needs to know.

    ``project_root`` is absolute, without symbolic links, and was a folder when it was read; ``project_is_trusted`` says
    that commands which its files name may run. ``state_folder`` is the folder that holds the session store.
    ``session_id`` is the stored session to go on with; None for a new one. ``catalog`` has all agents, ``trust`` and
    ``model`` are the main agent's. ``providers`` are ours and the user's, ``environ`` holds their key variables that
    are set, for sub-agents whose file names another provider. ``notes`` are sentences for a person, to be shown at the
    beginning. ``environment`` are variables for the agents' commands alone. ``restart_main`` says that the main agent
    is restarted too, where ``restart`` says that agents are.
    """

    prompt: str
    project_root: Path
    project_is_trusted: bool
    state_folder: Path
    session_id: str | None
    agent_name: str
    model: ModelSettings
    catalog: AgentCatalog
    providers: ProviderTable
    environ: dict[str, str]
    notes: tuple[str, ...]
    environment: dict[str, str] = {}  # msgspec copies it
    restart_main: bool = True


class PersonalValues(msgspec.Struct, frozen=True, kw_only=True):
    """What a person has set, the user's file included, and the project that it is for."""

    values: FlagValues
    file: SettingsFile
    project_root: Path
    notes: tuple[str, ...]


def read_personal_values(values: FlagValues, environ: Mapping[str, str]) -> PersonalValues:
    """Find the project and put the user's file behind ``values``; raises `WrongUsage`.

    Where the project's root is decides whether the file is the user's own: so the root never comes from it.
    """
    project_root = _read_project_root(values.text("project-root"))
    file, notes = read_settings_file(config_folder(environ), project_root)
    return PersonalValues(values=values.with_stored(file), file=file, project_root=project_root, notes=notes)


def read_settings(values: FlagValues, environ: Mapping[str, str], stdin: TextIO | None) -> OneShotSettings:
    """Read and check everything; raises `WrongUsage` at the first fault.

    Standard input is read last: what else is wrong is reported at once, though it may never end.
    """
    person = read_personal_values(values, environ)
    try:
        return _read_the_rest(person, environ, stdin)
    except WrongUsage as error:
        error.notes = person.notes  # what is missing may be in the file that was ignored
        raise


def _read_the_rest(person: PersonalValues, environ: Mapping[str, str], stdin: TextIO | None) -> OneShotSettings:
    given = given_prompt(person.values, stdin)
    patience = person.values.number("stdin-timeout", zero=True)
    servers = LocalServers()
    settings = _read_all_but_prompt(person, environ, servers)
    notes: list[str] = []
    if given is None:
        prompt = piped_prompt(stdin)
    else:
        patience = STDIN_SECONDS if patience is None else patience
        prompt, notes = joined_prompt(given, stdin, _folders_of_mentions(person.project_root), patience)
    # A server is asked last: until all else is right there is nothing to ask for.
    flags, spec = _read_model_flags(person.values), settings.catalog.get(settings.agent_name)
    model = with_told_window(settings.model, flags, spec, person.file.providers, servers)
    notes = [*settings.notes, *notes, *model_notes(flags, spec, model)]
    return msgspec.structs.replace(settings, prompt=prompt, model=model, notes=tuple(notes))


def _read_all_but_prompt(person: PersonalValues, environ: Mapping[str, str], servers: LocalServers) -> OneShotSettings:
    values, providers, project_root = person.values, person.file.providers, person.project_root
    plain = read_plain_settings(values)
    flags = _read_model_flags(values)
    agent_name = values.text("agent") or DEFAULT_AGENT
    project_is_trusted = values.switch("trust-project") or _is_trusted(project_root, environ)
    catalog = load_agents(project_root, config_folder(environ), providers, project_is_trusted=project_is_trusted)
    instructions, notes = read_instructions(project_root)
    if instructions:
        catalog = catalog.with_instructions(instructions)
    spec = catalog.get(agent_name)
    model = choose_model(flags, spec, environ, providers, servers)
    if (session_id := values.text("session")) is not None:
        session_id = find_session(state_folder(environ), session_id).name
    plain = msgspec.structs.replace(plain, trust=narrower_trust(plain.trust, spec))
    return OneShotSettings(
        **msgspec.structs.asdict(plain),
        prompt="",
        project_root=project_root,
        project_is_trusted=project_is_trusted,
        state_folder=state_folder(environ),
        session_id=session_id,
        agent_name=agent_name,
        model=model,
        catalog=catalog,
        providers=providers,
        environ=key_variables(environ, providers),
        notes=(*person.notes, *notes, *catalog.notes),
    )


def read_plain_settings(values: FlagValues) -> PlainSettings:
    """Those settings that need nothing but their values; raises `WrongUsage` at the first that is wrong."""
    retry_delay = values.number("retry-delay", zero=True)
    return PlainSettings(
        output_format=cast(OutputFormat, values.choice("output-format", get_args(OutputFormat), "text")),
        trust=cast(Trust, values.choice("trust", get_args(Trust), "auto")),
        limits=_read_limits(values),
        timeout=values.number("timeout"),
        retry_delay=1.0 if retry_delay is None else retry_delay,
        quiet=values.switch("quiet"),
        pass_env=tuple(filter(None, map(str.strip, (values.text("pass-env") or "").split(",")))),
        verbose=values.switch("verbose"),
        spawn=cast(SpawnMode, values.choice("spawn", get_args(SpawnMode), "auto")),
        restart=not values.switch("no-restart"),
        worker_times=_read_worker_times(values),
        ceilings=_read_ceilings(values),
        memory=MemoryLimits(free=values.size("mem-free") or MemoryLimits().free, tree=values.size("tree-memory")),
    )


def _is_trusted(project_root: Path, environ: Mapping[str, str]) -> bool:
    return TrustStore(state_folder(environ)).is_trusted(project_root, files_with_commands(project_root))


def _folders_of_mentions(project_root: Path) -> tuple[Path, ...]:
    """Where a file that the prompt names is looked for: in the project, then where the person is."""
    try:
        return (project_root, Path.cwd())
    except FileNotFoundError:
        return (project_root,)


def _read_ceilings(values: FlagValues) -> Ceilings:
    return Ceilings(
        memory_bytes=values.size("agent-memory"),
        cpu_seconds=values.whole_number("agent-cpu-seconds"),
        open_files=values.whole_number("agent-open-files", least=64),
        file_bytes=values.size("agent-file-size"),
    )


def _read_limits(values: FlagValues) -> TreeLimits:
    defaults = TreeLimits()
    agents = values.whole_number("max-agents", least=0)
    depth = values.whole_number("max-agent-depth", least=0)
    return TreeLimits(
        max_turns=values.whole_number("max-turns"),
        max_tokens_total=values.whole_number("max-tokens-total"),
        max_agents=defaults.max_agents if agents is None else agents,
        max_parallel_agents=values.whole_number("max-parallel-agents") or defaults.max_parallel_agents,
        max_agent_depth=defaults.max_agent_depth if depth is None else depth,
    )


def _read_worker_times(values: FlagValues) -> WorkerTimes:
    defaults = WorkerTimes()
    grace = values.number("cancel-grace", zero=True)
    return WorkerTimes(
        grace=defaults.grace if grace is None else grace,
        silence=values.number("heartbeat-timeout") or defaults.silence,
    )


def _read_model_flags(values: FlagValues) -> ModelFlags:
    defaults = ModelFlags()
    return ModelFlags(
        provider=values.text("provider"),
        model=values.text("model"),
        base_url=values.text("base-url"),
        script=values.text("script"),
        max_context_tokens=values.whole_number("max-context-tokens"),
        max_tokens=values.whole_number("max-tokens"),
        temperature=values.number("temperature", zero=True),
        connect_timeout=values.number("connect-timeout") or defaults.connect_timeout,
        idle_timeout=values.number("idle-timeout") or defaults.idle_timeout,
        call_timeout=values.number("call-timeout") or defaults.call_timeout,
    )


def _read_project_root(asked: str | None) -> Path:
    try:
        root = (Path.cwd() if asked is None else Path(asked)).resolve(strict=True)
    except FileNotFoundError:
        missing = "the current folder is gone" if asked is None else f"there is no folder {asked}"
        raise WrongUsage(f"{missing}: name the project's with --project-root") from None
    except (OSError, ValueError) as error:
        raise WrongUsage(f"the project root {asked or 'here'} can't be used: {error}") from None
    if not root.is_dir():
        raise WrongUsage(f"the project root {root} is not a folder")
    return root
