"""The model providers that corral knows by name, and the context windows of some well-known models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

OPENAI_CHAT = "openai_chat"
SCRIPTED = "scripted"
OPENAI_COMPATIBLE = "openai-compatible"

DEFAULT_WINDOW = 128_000
LOCAL_WINDOW = 32_768
"""What a server on this machine is taken to have: its window is what the model was loaded with, seldom all it can."""


class ProviderEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table.

    ``adapter`` is the key of the adapter in a worker. ``base_url`` is empty where there is no default address.
    ``key_variable`` is where the key is looked up; ``needs_key`` says that the default address answers nobody without.
    ``model`` is the model where none is named. ``is_local`` says that it is a server on the person's own machine, whose
    models and windows can be asked for.
    """

    name: str
    adapter: str = OPENAI_CHAT
    base_url: str = ""
    key_variable: str = ""
    needs_key: bool = False
    is_local: bool = False
    aliases: tuple[str, ...] = ()
    model: str | None = None


def _local(name: str, port: int, key_variable: str, *aliases: str) -> ProviderEntry:
    base_url = f"http://127.0.0.1:{port}/v1"
    return ProviderEntry(name=name, base_url=base_url, key_variable=key_variable, is_local=True, aliases=aliases)


def _hosted(name: str, base_url: str, key_variable: str, *aliases: str) -> ProviderEntry:
    return ProviderEntry(name=name, base_url=base_url, key_variable=key_variable, needs_key=True, aliases=aliases)


PROVIDERS: tuple[ProviderEntry, ...] = (
    _local("lm-studio", 1234, "LMSTUDIO_API_KEY", "lmstudio", "lm_studio"),
    _local("ollama", 11434, "OLLAMA_API_KEY"),
    _local("llama-cpp", 8080, "LLAMA_API_KEY", "llamacpp", "llama.cpp", "llama_cpp"),
    _local("vllm", 8000, "VLLM_API_KEY"),
    _hosted("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    _hosted("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "open-router"),
    _hosted("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    _hosted("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    _hosted("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", "mistralai"),
    _hosted("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY", "togetherai", "together-ai"),
    _hosted("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", "fireworks-ai"),
    _hosted("xai", "https://api.x.ai/v1", "XAI_API_KEY", "x-ai", "grok"),
    ProviderEntry(name=OPENAI_COMPATIBLE, key_variable="CORRAL_API_KEY", aliases=("openai_compatible", "custom")),
    ProviderEntry(name=SCRIPTED, adapter=SCRIPTED),
)
"""All of them, in the order in which they are named to a person."""


class ProviderTable:
    """Providers by name and alias, in any case of letters."""

    def __init__(self, entries: Iterable[ProviderEntry]) -> None:
        self._entries = tuple(entries)
        self._by_name = {name: entry for entry in self._entries for name in (entry.name, *entry.aliases)}

    def __iter__(self) -> Iterator[ProviderEntry]:
        """All of them, in the order in which they are named to a person."""
        return iter(self._entries)

    def find(self, name: str) -> ProviderEntry | None:
        """The provider of that name or alias."""
        return self._by_name.get(name.strip().lower())

    def with_entries(self, entries: Iterable[ProviderEntry]) -> ProviderTable:
        """This table with ``entries`` in the place of those of the same name, and before the others where new."""
        own = {entry.name: entry for entry in entries}
        kept = [own.pop(entry.name, entry) for entry in self._entries]
        return ProviderTable([*own.values(), *kept])


BUILTIN_PROVIDERS = ProviderTable(PROVIDERS)

# The longest prefix that fits decides. The figures are the ones that the models' makers publish.
_WINDOWS: dict[str, int] = {
    "claude-": 200_000,
    "codestral": 256_000,
    "deepseek-": 128_000,
    "devstral": 128_000,
    "gemini-2": 1_048_576,
    "glm-4.5": 128_000,
    "glm-4.6": 200_000,
    "gpt-4-turbo": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-4o": 128_000,
    "gpt-5": 400_000,
    "gpt-oss": 131_072,
    "grok-4": 256_000,
    "kimi-k2": 128_000,
    "llama-3.1": 131_072,
    "llama-3.3": 131_072,
    "mistral-large": 128_000,
    "mistral-medium": 128_000,
    "o3": 200_000,
    "o4-mini": 200_000,
    "qwen3-coder": 262_144,
}


def find_provider(name: str) -> ProviderEntry | None:
    """The built-in provider of that name or alias, in any case."""
    return BUILTIN_PROVIDERS.find(name)


def known_window(model: str) -> int:
    """The context window of a hosted model, in tokens; `DEFAULT_WINDOW` for an unknown one.

    A maker's name before a slash (``openai/gpt-5``) does not matter.
    """
    name = model.rpartition("/")[2].lower()
    fitting = [prefix for prefix in _WINDOWS if name.startswith(prefix)]
    return _WINDOWS[max(fitting, key=len)] if fitting else DEFAULT_WINDOW
