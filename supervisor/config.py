"""The settings of a one-shot run, read and checked before anything is started.

Precedence: flag, environment, agent file, default. Source: the v1 wire contract, "Flags and environment".
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
from supervisor.model_choice import ModelFlags, choose_model, key_variables
from supervisor.prompt import given_prompt, piped_prompt
from supervisor.xdg import config_folder, state_folder

OutputFormat: TypeAlias = Literal["text", "json", "stream-json"]
SpawnMode: TypeAlias = Literal["auto", "fork", "fresh"]
"""``fork``: workers are forks of a fork server; ``fresh``: an exec for each; ``auto``: fork where the system is fit."""


class OneShotSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that a one-shot run needs to know. Times are in seconds.

    ``project_root`` is absolute, without symbolic links, and was a folder when it was read; ``state_folder`` is the
    folder that holds the session store. ``session_id`` is the session to go on with, as given; None for a new one.
    ``catalog`` has all agents and the notes on their files, ``trust`` and ``model`` are the main agent's. ``environ``
    holds the key variables that are set, for sub-agents whose file names another provider. ``timeout`` bounds the whole
    run (None: no bound), ``retry_delay`` is the time before the first retry of a model call, ``cancel_grace`` what a
    cancelled worker has before it is killed.
    """

    prompt: str
    output_format: OutputFormat
    project_root: Path
    state_folder: Path
    session_id: str | None
    agent_name: str
    trust: Trust
    model: ModelSettings
    catalog: AgentCatalog
    environ: dict[str, str]
    limits: TreeLimits
    timeout: float | None
    retry_delay: float
    quiet: bool
    spawn: SpawnMode
    restart: bool
    worker_times: WorkerTimes
    ceilings: Ceilings
    memory: MemoryLimits


def read_settings(values: FlagValues, environ: Mapping[str, str], stdin: TextIO | None) -> OneShotSettings:
    """Read and check everything; raises `WrongUsage` at the first fault.

    Standard input is read last: what else is wrong is reported at once, though it may never end.
    """
    prompt = given_prompt(values, stdin)
    retry_delay = values.number("retry-delay", zero=True)
    worker_times = _read_worker_times(values)
    ceilings = Ceilings(
        memory_bytes=values.size("agent-memory"),
        cpu_seconds=values.whole_number("agent-cpu-seconds"),
        open_files=values.whole_number("agent-open-files", least=64),
        file_bytes=values.size("agent-file-size"),
    )
    memory = MemoryLimits(free=values.size("mem-free") or MemoryLimits().free, tree=values.size("tree-memory"))
    asked_trust = cast(Trust, values.choice("trust", get_args(Trust), "auto"))
    output_format = cast(OutputFormat, values.choice("output-format", get_args(OutputFormat), "text"))
    limits = _read_limits(values)
    timeout = values.number("timeout")
    quiet = values.switch("quiet")
    spawn = cast(SpawnMode, values.choice("spawn", get_args(SpawnMode), "auto"))
    model_flags = _read_model_flags(values)
    project_root = _read_project_root(values.text("project-root"))
    agent_name = values.text("agent") or DEFAULT_AGENT
    catalog = load_agents(project_root, config_folder(environ))
    spec = catalog.get(agent_name)
    model = choose_model(model_flags, spec, environ)
    return OneShotSettings(
        prompt=piped_prompt(stdin) if prompt is None else prompt,
        output_format=output_format,
        project_root=project_root,
        state_folder=state_folder(environ),
        session_id=values.text("session"),
        agent_name=agent_name,
        trust=narrower_trust(asked_trust, spec),
        model=model,
        catalog=catalog,
        environ=key_variables(environ),
        limits=limits,
        timeout=timeout,
        retry_delay=1.0 if retry_delay is None else retry_delay,
        quiet=quiet,
        spawn=spawn,
        restart=not values.switch("no-restart"),
        worker_times=worker_times,
        ceilings=ceilings,
        memory=memory,
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
