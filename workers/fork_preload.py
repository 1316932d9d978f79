"""What the fork server imports, so that no worker has to."""

from __future__ import annotations

from importlib import import_module

from workers.kinds import KINDS, load
from workers.providers import http_transport
from workers.providers.table import PROVIDERS
from workers.tools.arguments import schemas
from workers.tools.table import TOOLS


def preload() -> None:
    """Import every module that an agent's worker may need, the parts that are loaded at their first use too.

    Opens nothing and starts no thread.
    """
    load("agent")
    for target in PROVIDERS.values():
        import_module(target.partition(":")[0])
    schemas(TOOLS)
    http_transport.preload()


def preload_kind(kind: str) -> None:
    """Import what workers of ``kind`` need, where it is in the table: most runs have agents of our own alone."""
    if kind in KINDS:
        load(kind)
