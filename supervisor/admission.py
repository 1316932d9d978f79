"""Makes new agents wait while memory is short, rather than taking the machine down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

from protocol.records import Info
from supervisor.core.admission import MemoryLimits, shortage
from supervisor.hub import Hub

LOOK_AGAIN_SECONDS = 0.25


class Admission:
    """Asked before each worker is started. ``usage`` tells the bytes in use and the number of running agents."""

    def __init__(self, limits: MemoryLimits, hub: Hub, usage: Callable[[], tuple[int, int]]) -> None:
        self._limits = limits
        self._hub = hub
        self._usage = usage

    async def wait_for_memory(self, agent_id: str, is_cancelled: Callable[[], bool]) -> None:
        """Return when there is memory for one more agent, or ``is_cancelled`` says that the agent need not start.

        Says once, on the agent's lines, why it waits.
        """
        has_told = False
        while not is_cancelled():
            used, running = self._usage()
            why = shortage(self._limits, available_memory(), used, running)
            if why is None:
                return
            if not has_told:
                self._hub.publish(Info(message=f"waiting for memory: {why}"), agent_id)
                has_told = True
            await trio.sleep(LOOK_AGAIN_SECONDS)


def available_memory() -> int | None:
    """Bytes that could be had without swapping; None where the system does not tell. Source: proc(5), MemAvailable."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
