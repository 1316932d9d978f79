"""Who may run: a bounded number of places and the queue for them."""

from __future__ import annotations


class Places:
    """At most ``size`` agents hold a place at once.

    An agent enters the queue, holds a place, may give it back while it waits for its sub-agents (`park`) and queue for
    one again (`unpark`), and leaves. Free places go to returning agents first, then to newcomers, each in the order in
    which they came: what has begun is finished before something new begins. Because an agent that waits holds no place,
    delegating agents can't lock each other out.
    """

    def __init__(self, size: int) -> None:
        """Raises ValueError for less than one place."""
        if size < 1:
            raise ValueError(f"there must be at least one place, not {size}")
        self._size = size
        # Dicts without values: sets that keep their order.
        self._newcomers: dict[str, None] = {}
        self._returning: dict[str, None] = {}
        self._holding: dict[str, None] = {}
        self._parked: dict[str, None] = {}

    def __contains__(self, agent_id: str) -> bool:
        """Whether the agent has entered and not left."""
        return any(agent_id in group for group in self._groups())

    @property
    def held(self) -> int:
        """How many places are taken; never over the size."""
        return len(self._holding)

    def holds(self, agent_id: str) -> bool:
        """Whether the agent holds a place now."""
        return agent_id in self._holding

    def enter(self, agent_id: str) -> None:
        """Queue as a newcomer. Raises ValueError for an agent that is here already."""
        if agent_id in self:
            raise ValueError(f"agent {agent_id!r} was admitted already")
        self._newcomers[agent_id] = None

    def park(self, agent_id: str) -> None:
        """Give the place back, or stop queueing to return. Raises ValueError for a newcomer without a place."""
        if agent_id in self._parked:
            return
        if agent_id not in self._holding and agent_id not in self._returning:
            raise ValueError(f"agent {agent_id!r} holds no place that it could give back")
        self.leave(agent_id)
        self._parked[agent_id] = None

    def unpark(self, agent_id: str) -> None:
        """Queue to return; no effect unless the agent is parked."""
        if agent_id in self._parked:
            del self._parked[agent_id]
            self._returning[agent_id] = None

    def leave(self, agent_id: str) -> None:
        """Be gone, wherever the agent was; no effect for one that is not here."""
        for group in self._groups():
            group.pop(agent_id, None)

    def fill(self) -> list[str]:
        """Give the free places away; returns the newcomers that got one, in order."""
        admitted: list[str] = []
        while len(self._holding) < self._size and (self._returning or self._newcomers):
            queue = self._returning or self._newcomers
            agent_id = next(iter(queue))
            if queue is self._newcomers:
                admitted.append(agent_id)
            del queue[agent_id]
            self._holding[agent_id] = None
        return admitted

    def _groups(self) -> tuple[dict[str, None], ...]:
        return self._newcomers, self._returning, self._holding, self._parked
