"""The adapters, by the name that `ModelSettings.adapter` gives.

A new adapter is one module with a function ``make`` and one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from protocol.agent_spec import ModelSettings
from workers.providers.provider import Provider, Refused

PROVIDERS: dict[str, str] = {
    "openai_chat": "workers.providers.openai_chat:make",
    "scripted": "workers.providers.scripted:make",
}
"""Adapter name to ``module:function``; the function takes a `ModelSettings` and returns a `Provider`."""


def load(settings: ModelSettings) -> Provider:
    """The provider for ``settings``. Raises `Refused` for an adapter that is not in the table.

    Only the adapter asked for is imported: a scripted run never loads an HTTP client.
    """
    target = PROVIDERS.get(settings.adapter)
    if target is None:
        known = ", ".join(sorted(PROVIDERS))
        raise Refused(f"there is no provider adapter {settings.adapter!r}; there are: {known}")
    module, _, function = target.partition(":")
    make = cast("Callable[[ModelSettings], Provider]", getattr(import_module(module), function))
    return make(settings)
