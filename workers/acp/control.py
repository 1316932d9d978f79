"""The hand on a running turn: follow-up prompts and interrupts, from whoever watches the agent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

QUEUE_CAPACITY = 32
"""How many follow-ups wait at most, where the caller says nothing else."""


class SteeringMessage(msgspec.Struct, frozen=True):
    """A follow-up prompt; ``actor`` is who gave it, None where that doesn't matter."""

    text: str
    actor: str | None = None


class AcpControl:
    """Steers one turn, before or while it runs; not thread-safe: call it where the turn runs.

    What is queued when the turn ends stays queued.
    """

    def __init__(self) -> None:
        self._queue: deque[SteeringMessage] = deque()
        self._is_interrupted = False
        self._on_interrupt: Callable[[], object] | None = None

    def steer(self, message: str | SteeringMessage, capacity: int = QUEUE_CAPACITY) -> SteeringMessage | None:
        """Queue a follow-up prompt, which is sent in the same session once the current prompt ends.

        A queue that holds ``capacity`` messages gives up its oldest one, which is returned.
        """
        self._queue.append(SteeringMessage(message) if isinstance(message, str) else message)
        evicted: SteeringMessage | None = None
        while len(self._queue) > capacity:
            oldest = self._queue.popleft()
            evicted = evicted or oldest
        return evicted

    def interrupt(self) -> None:
        """Cancel the current prompt, or the first one where none is open yet.

        The turn goes on with the next follow-up; where there is none it ends as cancelled. An agent that does not end
        its prompt within 500 ms is terminated, and its turn ends as cancelled.
        """
        self._is_interrupted = True
        if self._on_interrupt is not None:
            self._on_interrupt()

    def interrupt_and_steer(
        self, message: str | SteeringMessage, capacity: int = QUEUE_CAPACITY
    ) -> SteeringMessage | None:
        """Cancel the current prompt and go on with ``message``; returns what `steer` returns."""
        evicted = self.steer(message, capacity)
        self.interrupt()
        return evicted

    # -- for the turn -------------------------------------------------------------------------------------------------

    def connect(self, on_interrupt: Callable[[], object] | None) -> None:
        """From now on ``on_interrupt`` is called at each interrupt; None disconnects."""
        self._on_interrupt = on_interrupt

    def take_interrupt(self) -> bool:
        """Whether there was an interrupt since this was last asked."""
        taken, self._is_interrupted = self._is_interrupted, False
        return taken

    def take_next(self) -> SteeringMessage | None:
        """The oldest follow-up, which leaves the queue; None where there is none."""
        return self._queue.popleft() if self._queue else None
