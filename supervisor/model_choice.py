"""Which model an agent calls: provider, address, key, name, and what is asked of it.

An address and a key come from the command line, the environment or the table of providers (ours and the user's), never
from an agent's file: `AgentSpec` has no field for them, and a file that names another provider gets that one's own
address and key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from protocol.agent_spec import AgentSpec, ModelSettings
from protocol.scenario import MAX_SCENARIO_BYTES, ScenarioError, load_scenario
from supervisor.address import address_fault, is_on_this_machine
from supervisor.errors import ModelUnavailable
from supervisor.local_servers import LocalServer, LocalServers
from supervisor.provider_table import (
    BUILTIN_PROVIDERS,
    LOCAL_WINDOW,
    OPENAI_COMPATIBLE,
    SCRIPTED,
    ProviderEntry,
    ProviderTable,
    known_window,
)

SCRIPTED_MODEL = "scripted"
EXTERNAL = "acp"
"""The provider of an external agent, which calls a model of its own; its model has the agent's name."""
SMALL_WINDOW = 16_000
"""Tokens below which the system prompt, the tools and a few files leave no room to work."""


class ModelFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line and its variables say of the model; times in seconds, numbers already checked."""

    provider: str | None = None
    model: str | None = None
    base_url: str | None = None
    script: str | None = None
    max_context_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    connect_timeout: float = 15.0
    idle_timeout: float = 300.0
    call_timeout: float = 1800.0


def key_variables(environ: Mapping[str, str], providers: ProviderTable = BUILTIN_PROVIDERS) -> dict[str, str]:
    """Those of the providers' key variables that are set: all that `for_agent` looks at."""
    names = {entry.key_variable for entry in providers if entry.key_variable}
    return {name: environ[name] for name in sorted(names) if name in environ}


def choose_model(
    flags: ModelFlags,
    spec: AgentSpec,
    environ: Mapping[str, str],
    providers: ProviderTable = BUILTIN_PROVIDERS,
    servers: LocalServers | None = None,
) -> ModelSettings:
    """The model of the main agent: flags and their variables first, then the agent's file, then what is found.

    Without a provider's name, ``--script`` means the scripted one, ``--base-url`` an OpenAI-compatible one; else the
    one key variable that is set decides, else the first server of the table that answers on this machine. A server is
    asked for its only model where none is named. Without ``servers`` nobody is asked. Raises `ModelUnavailable`.
    An external agent needs none of it.
    """
    if spec.acp is not None:
        return _of_external(spec)
    entry, server = _choose_provider(flags, spec, environ, providers, servers)
    if flags.script is not None and entry.adapter != SCRIPTED:
        raise ModelUnavailable(f"--script belongs to --provider scripted, not to {entry.name}")
    base_url = _address(entry, flags.base_url)
    key = _key(entry, base_url, environ)
    own = spec.provider is None or providers.find(spec.provider) == entry
    model = flags.model or (spec.model if own else None) or entry.model
    if entry.adapter == SCRIPTED:
        model = model or SCRIPTED_MODEL
    if model is None:
        server = server or (servers.ask(entry, base_url, key) if servers is not None else None)
        model = _only_model(entry, base_url, server)
    return ModelSettings(
        provider=entry.name,
        adapter=entry.adapter,
        model=model,
        base_url=base_url,
        api_key=key,
        key_variable=entry.key_variable,
        context_window=flags.max_context_tokens or spec.max_context_tokens or _window(entry, base_url, model),
        max_tokens=spec.max_tokens if flags.max_tokens is None else flags.max_tokens,
        temperature=spec.temperature if flags.temperature is None else flags.temperature,
        reasoning_effort=spec.reasoning_effort,
        connect_timeout=flags.connect_timeout,
        idle_timeout=flags.idle_timeout,
        call_timeout=flags.call_timeout,
        scenario=_read_scenario(flags.script) if entry.adapter == SCRIPTED else "",
    )


def with_told_window(
    chosen: ModelSettings, flags: ModelFlags, spec: AgentSpec, providers: ProviderTable, servers: LocalServers
) -> ModelSettings:
    """``chosen`` with the context window that its server tells of, if nobody has said another and it is near enough."""
    entry = providers.find(chosen.provider)
    if entry is None or chosen.adapter == SCRIPTED or flags.max_context_tokens or spec.max_context_tokens:
        return chosen
    server = servers.ask(entry, chosen.base_url, chosen.api_key, chosen.model)
    found = server.find(chosen.model) if server is not None else None
    if found is None or found.window is None:
        return chosen
    return msgspec.structs.replace(chosen, context_window=found.window)


def model_notes(flags: ModelFlags, spec: AgentSpec, chosen: ModelSettings) -> tuple[str, ...]:
    """What a person should know of the choice: one that nobody made, and a window too small to work in."""
    notes: list[str] = []
    is_local = chosen.base_url and is_on_this_machine(chosen.base_url)
    if is_local and flags.provider is None and spec.provider is None and flags.base_url is None:
        notes.append(f"no provider was named: using {chosen.model} of {chosen.provider} at {chosen.base_url}")
    is_told = flags.max_context_tokens is not None or spec.max_context_tokens is not None
    if is_local and chosen.context_window < SMALL_WINDOW and not is_told:
        remedy = "OLLAMA_CONTEXT_LENGTH=32768 ollama serve" if chosen.provider == "ollama" else "load it with more"
        window = f"{chosen.model} has a context window of {chosen.context_window} tokens here"
        notes.append(f"{window}, which is little for an agent: {remedy}")
    return tuple(notes)


def for_agent(
    spec: AgentSpec,
    parent: ModelSettings,
    environ: Mapping[str, str],
    providers: ProviderTable = BUILTIN_PROVIDERS,
) -> ModelSettings:
    """The model of a sub-agent: its parent's, with what its own file says put over it.

    A file that names another provider gets that one's default address and key and must name a model too. Under the
    scripted model everything of ours stays scripted: a trial run calls nobody. Raises `ModelUnavailable`.
    """
    if spec.acp is not None:
        return _of_external(spec)
    changes = msgspec.structs.replace(
        parent,
        max_tokens=parent.max_tokens if spec.max_tokens is None else spec.max_tokens,
        temperature=parent.temperature if spec.temperature is None else spec.temperature,
        reasoning_effort=spec.reasoning_effort or parent.reasoning_effort,
        context_window=spec.max_context_tokens or parent.context_window,
    )
    if parent.adapter == SCRIPTED:
        return changes
    if spec.provider is not None and (entry := _entry(spec.provider, providers)).name != parent.provider:
        return _on_other_provider(spec, entry, changes, environ)
    if spec.model is None or spec.model == parent.model:
        return changes
    entry = providers.find(parent.provider) or ProviderEntry(name=parent.provider)
    window = spec.max_context_tokens or _window(entry, parent.base_url, spec.model)
    return msgspec.structs.replace(changes, model=spec.model, context_window=window)


def _of_external(spec: AgentSpec) -> ModelSettings:
    """No address and no key of ours: how large its context is it tells itself."""
    return ModelSettings(provider=EXTERNAL, adapter=EXTERNAL, model=spec.name)


def _on_other_provider(
    spec: AgentSpec, entry: ProviderEntry, settings: ModelSettings, environ: Mapping[str, str]
) -> ModelSettings:
    if not entry.base_url:
        raise ModelUnavailable(f"agent {spec.name} wants {entry.name}, whose address only the command line may give")
    model = spec.model or entry.model
    if model is None:
        raise ModelUnavailable(f"agent {spec.name} names the provider {entry.name} but no model of it")
    return msgspec.structs.replace(
        settings,
        provider=entry.name,
        adapter=entry.adapter,
        model=model,
        base_url=entry.base_url,
        api_key=_key(entry, entry.base_url, environ),
        key_variable=entry.key_variable,
        context_window=spec.max_context_tokens or _window(entry, entry.base_url, model),
    )


def _choose_provider(
    flags: ModelFlags,
    spec: AgentSpec,
    environ: Mapping[str, str],
    providers: ProviderTable,
    servers: LocalServers | None,
) -> tuple[ProviderEntry, LocalServer | None]:
    """The provider and, if it was found by asking, what its server said."""
    named = flags.provider or spec.provider
    if named is None and flags.script is not None:
        named = SCRIPTED
    if named is None and flags.base_url is not None:
        named = OPENAI_COMPATIBLE
    if named is not None:
        return _entry(named, providers), None
    with_key = [entry for entry in providers if entry.needs_key and environ.get(entry.key_variable, "").strip()]
    if len(with_key) == 1:
        return with_key[0], None
    if with_key:
        names = ", ".join(f"{entry.name} ({entry.key_variable})" for entry in with_key)
        raise ModelUnavailable(f"there are keys of several providers: choose with --provider one of {names}")
    found = servers.find(providers) if servers is not None else []
    wanted = flags.model or spec.model
    for server in found:
        if wanted is None or server.find(wanted) is not None:
            return server.provider, server
    if found:
        names = ", ".join(server.provider.name for server in found)
        hints = tuple(f"{model.name}  ({server.provider.name})" for server in found for model in server.usable())
        raise ModelUnavailable(f"{names} answers on this machine but has no model {wanted!r}; there are", hints=hints)
    raise ModelUnavailable(
        "no model to call: no provider's key is set, and no model server answers on this machine. Try one of",
        hints=(
            'corral "Say hello" --provider ollama --model qwen3     once it serves; or lm-studio, llama-cpp, vllm',
            'OPENAI_API_KEY=... corral "Say hello" --model gpt-5    or the key of another provider that --help names',
            'corral "Say hello" --base-url URL --model NAME         any server with /chat/completions',
        ),
    )


def _entry(name: str, providers: ProviderTable) -> ProviderEntry:
    entry = providers.find(name)
    if entry is None:
        known = ", ".join(each.name for each in providers)
        raise ModelUnavailable(f"there is no provider {name!r}; there are {known}")
    return entry


def _only_model(entry: ProviderEntry, base_url: str, server: LocalServer | None) -> str:
    """The model of a server that has only one to choose; raises `ModelUnavailable`."""
    if server is None:
        silent = f" (no server answers at {base_url})" if is_on_this_machine(base_url) else ""
        raise ModelUnavailable(f"which model of {entry.name}? name it with --model or CORRAL_MODEL{silent}")
    usable = server.usable()
    if len(usable) == 1:
        return usable[0].name
    names = tuple(model.name for model in usable or server.models)
    raise ModelUnavailable(f"which model of {entry.name}? name it with --model; there are", hints=names)


def _address(entry: ProviderEntry, asked: str | None) -> str:
    """The address, without a slash at its end; the scripted model has none."""
    if entry.adapter == SCRIPTED:
        return ""
    if asked is None and not entry.base_url:
        raise ModelUnavailable(f"{entry.name} needs --base-url, such as http://127.0.0.1:8000/v1")
    address = (entry.base_url if asked is None else asked).rstrip("/")
    if fault := address_fault(address):
        raise ModelUnavailable(f"--base-url {fault}")
    return address


def _key(entry: ProviderEntry, base_url: str, environ: Mapping[str, str]) -> str:
    """The key of the provider; empty where there is none and none is needed (another address than its own)."""
    key = environ.get(entry.key_variable, "").strip() if entry.key_variable else ""
    if not key and entry.needs_key and base_url == entry.base_url:
        raise ModelUnavailable(f"{entry.name} needs a key: set {entry.key_variable}")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ModelUnavailable(f"{entry.key_variable} holds characters that no key has: set it again")
    return key


def _window(entry: ProviderEntry, base_url: str, model: str) -> int:
    if entry.is_local or is_on_this_machine(base_url):
        return LOCAL_WINDOW
    return known_window(model)


def _read_scenario(script: str | None) -> str:
    """The text of the scenario file, checked."""
    if script is None:
        raise ModelUnavailable("the scripted model needs its scenario: give --script FILE")
    try:
        with Path(script).open("rb") as file:
            content = file.read(MAX_SCENARIO_BYTES + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise ModelUnavailable(f"the scenario {script} can't be read: {error.strerror or error}") from None
    except ValueError:  # UnicodeDecodeError, or a path with a NUL in it
        raise ModelUnavailable(f"the scenario {script} is not UTF-8 text") from None
    try:
        load_scenario(text, script)
    except ScenarioError as error:
        raise ModelUnavailable(str(error)) from None
    return text
