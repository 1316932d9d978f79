"""Whether the machine, and the run's own ceiling, have the memory for one more agent."""

from __future__ import annotations

import msgspec


class MemoryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """In bytes. ``free`` must be available on the machine before a new agent starts; ``tree`` is the most that all
    agents of the run may have together (None: no ceiling of the run's own).
    """

    free: int = 512 * 1024 * 1024
    tree: int | None = None


def shortage(limits: MemoryLimits, available: int | None, used: int, running: int) -> str | None:
    """Why a new agent has to wait, or None if it may start.

    ``available`` is the machine's free memory, None where it can't be told; ``used`` what the ``running`` agents have
    together. The only agent may always start: a run that waits for itself would never end.
    """
    if running == 0:
        return None
    if limits.tree is not None and used >= limits.tree:
        return f"the agents use {used >> 20} MiB, the run's ceiling is {limits.tree >> 20} MiB"
    if available is not None and available < limits.free:
        return f"{available >> 20} MiB of memory are free, {limits.free >> 20} MiB are to stay free"
    return None
