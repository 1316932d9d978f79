"""Model servers on this machine: which there are, what they serve, and how long a prompt may be.

Each kind tells it in a way of its own; what is not told, or not in time, is left open. Sources: the HTTP interfaces of
LM Studio (``/api/v0/models``), Ollama (``/api/ps``, ``/api/show``), llama.cpp's server (``/props``) and vLLM
(``max_model_len`` in ``/v1/models``).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from supervisor.address import is_on_this_machine
from supervisor.plain_http import Question, ask_all
from supervisor.provider_table import ProviderEntry, ProviderTable

PATIENCE_SECONDS = 0.3
"""For all questions of a process together: a run must not wait longer for what it can do without."""

OLLAMA_WINDOW = 4096
"""What Ollama gives a model that nobody gave another window. Source: its FAQ on the context window."""

MODELS, PROPS, LM_STUDIO, OLLAMA_RUNNING, OLLAMA_SHOW = "models", "/props", "/api/v0/models", "/api/ps", "/api/show"
_PATHS = {
    "lm-studio": (MODELS, LM_STUDIO),
    "ollama": (MODELS, OLLAMA_RUNNING, OLLAMA_SHOW),
    "llama-cpp": (MODELS, PROPS),
    "vllm": (MODELS,),
}
_EVERY_PATH = (MODELS, PROPS, LM_STUDIO, OLLAMA_RUNNING)
"""What is asked of a server of unknown kind; an absolute path is below its root, the other below its API."""


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a server. ``window`` is its context window in tokens, None where it is not told."""

    name: str
    is_loaded: bool = False
    window: int | None = None


class LocalServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that has answered."""

    provider: ProviderEntry
    base_url: str
    models: tuple[ServedModel, ...]

    def find(self, name: str) -> ServedModel | None:
        """The model called ``name``; Ollama's ``:latest`` may be left out."""
        return next((model for model in self.models if model.name in (name, f"{name}:latest")), None)

    def usable(self) -> tuple[ServedModel, ...]:
        """The loaded models, or all where none is; those that only embed are left out."""
        chatting = [model for model in self.models if "embed" not in model.name.lower()]
        return tuple([model for model in chatting if model.is_loaded] or chatting)


class LocalServers:
    """Asks servers on this machine, no other, within `PATIENCE_SECONDS` from the first question to the last answer."""

    def __init__(self, seconds: float = PATIENCE_SECONDS) -> None:
        self._seconds = seconds
        self._deadline: float | None = None

    def find(self, providers: ProviderTable) -> list[LocalServer]:
        """Those of the providers' own addresses on this machine at which a model server answers."""
        local = [entry for entry in providers if entry.is_local and is_on_this_machine(entry.base_url)]
        return self._ask([(entry, entry.base_url, "") for entry in local], "")

    def ask(self, entry: ProviderEntry, base_url: str, key: str, model: str = "") -> LocalServer | None:
        """What the server at ``base_url`` says of itself and of ``model``; None if it is elsewhere or says nothing."""
        if urlsplit(base_url).scheme != "http" or not is_on_this_machine(base_url):
            return None
        return next(iter(self._ask([(entry, base_url, key)], model)), None)

    def _ask(self, servers: Sequence[tuple[ProviderEntry, str, str]], model: str) -> list[LocalServer]:
        asked = [
            (entry, base_url, path, _question(base_url, path, key, model))
            for entry, base_url, key in servers
            for path in _PATHS.get(entry.name, _EVERY_PATH)
            if path != OLLAMA_SHOW or model
        ]
        now = time.monotonic()
        self._deadline = self._deadline or now + self._seconds
        answers = ask_all([question for *_, question in asked], self._deadline - now)
        told: dict[str, dict[str, bytes]] = {}
        for (_, base_url, path, _), answer in zip(asked, answers, strict=True):
            if answer is not None:
                told.setdefault(base_url, {})[path] = answer
        return [
            LocalServer(provider=entry, base_url=base_url, models=models)
            for entry, base_url, _ in servers
            if (models := read_models(told.get(base_url, {}), model))
        ]


def _question(base_url: str, path: str, key: str, model: str) -> Question:
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    return Question(
        host=host if ":" in host or host[:1].isdigit() else "127.0.0.1",
        port=parts.port or 80,
        path=path if path.startswith("/") else f"{parts.path}/{path}",
        body=msgspec.json.encode({"model": model}) if path == OLLAMA_SHOW else b"",
        key=key,
    )


# -- answers ----------------------------------------------------------------------------------------------------------


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Listing(msgspec.Struct):
    data: list[_Model]


class _LmStudioModel(msgspec.Struct):
    id: str
    type: str = ""
    state: str = ""
    loaded_context_length: int | None = None


class _LmStudioListing(msgspec.Struct):
    data: list[_LmStudioModel]


class _Generation(msgspec.Struct):
    n_ctx: int


class _Props(msgspec.Struct):
    default_generation_settings: _Generation


class _RunningModel(msgspec.Struct):
    name: str
    context_length: int | None = None


class _Running(msgspec.Struct):
    models: list[_RunningModel]


class _Shown(msgspec.Struct):
    parameters: str = ""


_Answer = TypeVar("_Answer")


def read_models(told: Mapping[str, bytes], asked_for: str = "") -> tuple[ServedModel, ...]:
    """The models that a server's answers, by path, name. ``asked_for`` is the model of the ``/api/show`` answer."""
    listing = _read(told, MODELS, _Listing)
    if listing is None:
        return ()
    studio = _read(told, LM_STUDIO, _LmStudioListing)
    if studio is not None:
        return tuple(map(_of_lm_studio, (model for model in studio.data if model.type != "embeddings")))
    running = _read(told, OLLAMA_RUNNING, _Running)
    if running is not None:
        return tuple(_of_ollama(model.id, running, told, asked_for) for model in listing.data)
    props = _read(told, PROPS, _Props)
    window = _positive(props.default_generation_settings.n_ctx) if props else None
    return tuple(
        ServedModel(name=model.id, is_loaded=True, window=window or _positive(model.max_model_len))
        for model in listing.data
    )


def _of_lm_studio(model: _LmStudioModel) -> ServedModel:
    is_loaded = model.state == "loaded"
    return ServedModel(name=model.id, is_loaded=is_loaded, window=_positive(model.loaded_context_length))


def _of_ollama(name: str, running: _Running, told: Mapping[str, bytes], asked_for: str) -> ServedModel:
    """A running model tells its window; one that is not will have what its file says, or the default."""
    loaded = next((model for model in running.models if model.name == name), None)
    window = _positive(loaded.context_length) if loaded else None
    if window is None and asked_for and name in (asked_for, f"{asked_for}:latest"):
        shown = _read(told, OLLAMA_SHOW, _Shown)
        window = _window_in(shown.parameters) if shown else None
    return ServedModel(name=name, is_loaded=loaded is not None, window=window or OLLAMA_WINDOW)


def _window_in(parameters: str) -> int | None:
    found = re.search(r"^num_ctx\s+([0-9]{1,9})\s*$", parameters, re.MULTILINE)
    return _positive(int(found[1])) if found else None


def _positive(number: int | None) -> int | None:
    return number if number is not None and number > 0 else None


def _read(told: Mapping[str, bytes], path: str, kind: type[_Answer]) -> _Answer | None:
    """The answer to ``path`` as ``kind``; None where there is none, or what came is something else."""
    if path not in told:
        return None
    try:
        return msgspec.json.decode(told[path], type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
