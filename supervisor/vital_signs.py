"""Whether a worker still responds: it gives signs of life, and takes what it is told."""

from __future__ import annotations

import math

import trio

from protocol.frames import Heartbeat
from supervisor.core.hearing import Hearing


class VitalSigns:
    """Judges one worker; ``silence`` is the time in seconds after which it counts as unresponsive.

    Time in which nobody reads its channel does not count: then silence is no fault of the worker.
    """

    def __init__(self, silence: float) -> None:
        self._silence = silence
        self._heard_at = math.inf
        self._hearing = Hearing()
        self._is_deaf = trio.Event()

    @property
    def is_listened_to(self) -> bool:
        """Whether its channel is being read."""
        return self._heard_at != math.inf

    def listen(self) -> None:
        """Its channel is read, or something came: it counts from here."""
        self._heard_at = trio.current_time()

    def look_away(self) -> None:
        """Its channel is not read for a while."""
        self._heard_at = math.inf

    def take(self, heartbeat: Heartbeat, sent: int) -> None:
        """Liveness is progress, not only a pulse: a worker that beats but takes nothing it is told waits for ever.

        ``sent`` is the number of messages that were sent to it.
        """
        if self._hearing.report(trio.current_time(), sent, heartbeat.taken) >= self._silence:
            self._is_deaf.set()

    async def silent(self) -> str:
        """Return, with the reason, once the worker has been silent for too long; else never."""
        while True:
            due = self._heard_at + self._silence
            await trio.sleep_until(min(due, trio.current_time() + self._silence))
            if trio.current_time() < due:
                continue
            # After a pause of our own (a suspended terminal) its frames are still waiting to be read.
            await trio.sleep(self._silence / 20)
            if trio.current_time() >= self._heard_at + self._silence:
                return f"it was silent for {self._silence:g} s"

    async def deaf(self) -> str:
        """Return, with the reason, once the worker has taken nothing for too long of what it was told; else never."""
        await self._is_deaf.wait()
        return f"it took nothing it was told for {self._silence:g} s"
