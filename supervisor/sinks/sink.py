"""What a sink is: it takes every event of a run, in order."""

from __future__ import annotations

from typing import Protocol

import msgspec

from protocol.records import Record


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A record, the name and the id of the agent that caused it ("": the run itself) and its line on the wire."""

    record: Record
    agent_name: str
    line: bytes
    agent_id: str = ""


class Sink(Protocol):
    """Takes events without blocking; pushes back in ``room``."""

    def take(self, event: Event) -> None:
        """The next event."""
        ...

    async def room(self) -> None:
        """Return at once while the sink keeps up, else when it has caught up. Cancellation loses nothing."""
        ...

    def release(self) -> None:
        """Push back no more: the run is being ended, and whoever waits for room must be able to end."""
        ...

    async def finish(self) -> None:
        """Return once all that was taken is written, or can't be any more."""
        ...
