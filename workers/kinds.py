"""The kinds of worker: what runs in a worker process. One line for each kind."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

import trio

WorkerEntry: TypeAlias = Callable[[trio.SocketStream], Awaitable[None]]
"""Runs until the work is done or the stream ends; then the process exits."""

KINDS: dict[str, str] = {
    "acp": "workers.acp.worker:run_external_agent",
    "agent": "workers.agent:run_agent",
    "command": "workers.command:run_command",
}


def load(kind: str) -> WorkerEntry:
    """The entry of ``kind``, imported now; raises `KeyError` for a kind that is not in the table."""
    module, _, name = KINDS[kind].partition(":")
    return cast("WorkerEntry", getattr(importlib.import_module(module), name))
