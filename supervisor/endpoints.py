"""The endpoints that several runs of this process share, each with one gate for all their agents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Protocol

import trio

from supervisor.core.endpoint_gate import CallKey, EndpointGate


class SharedEndpoints(Protocol):
    """What runs share: `Endpoints` where they are runs of one process, else one that asks another process."""

    def join(self) -> int:
        """See `Endpoints.join`."""
        ...

    def ask(self, endpoint: str, key: CallKey, go: Callable[[], None]) -> None:
        """See `Endpoints.ask`."""
        ...

    def clean(self, key: CallKey) -> None:
        """See `Endpoints.clean`."""
        ...

    def failed(self, key: CallKey) -> None:
        """See `Endpoints.failed`."""
        ...

    def limited(self, key: CallKey) -> None:
        """See `Endpoints.limited`."""
        ...

    def leave(self, member: int, agent_id: str) -> int:
        """See `Endpoints.leave`."""
        ...


class Endpoints:
    """One `EndpointGate` for each endpoint. Every method is sync and never blocks."""

    def __init__(self) -> None:
        self._gates: dict[str, EndpointGate] = {}
        self._gate_of: dict[CallKey, EndpointGate] = {}
        self._go: dict[CallKey, Callable[[], None]] = {}
        self._members = count(1)
        self._limited_since: float | None = None

    def join(self) -> int:
        """A number for a run, which makes the keys of its calls its own."""
        return next(self._members)

    def ask(self, endpoint: str, key: CallKey, go: Callable[[], None]) -> None:
        """Call ``go`` when the call ``key`` may go to ``endpoint``, now or later."""
        gate = self._gates.setdefault(endpoint, EndpointGate())
        self._gate_of[key] = gate
        self._go[key] = go
        self._let_go(gate.ask(key))

    def clean(self, key: CallKey) -> None:
        """The call was answered."""
        self._limited_since = None
        if (gate := self._gate_of.pop(key, None)) is not None:
            self._let_go(gate.clean(key))

    def failed(self, key: CallKey) -> None:
        """The call failed, for another reason than a rate limit."""
        if (gate := self._gate_of.pop(key, None)) is not None:
            self._let_go(gate.failed(key))

    def limited(self, key: CallKey) -> None:
        """The endpoint refused the call as one too many."""
        self._note_limit()
        if (gate := self._gate_of.pop(key, None)) is not None:
            self._let_go(gate.limited(trio.current_time(), key))

    def gave_up(self, endpoint: str) -> None:
        """A call was refused as one too many through all its tries."""
        self._note_limit()
        if (gate := self._gates.get(endpoint)) is not None:
            gate.cut(trio.current_time())

    def leave(self, member: int, agent_id: str) -> int:
        """The agent's process is gone, and its calls with it. Returns how many of them had not gone out yet."""
        waiting = 0
        for key in [key for key in self._gate_of if key[:2] == (member, agent_id)]:
            gate = self._gate_of.pop(key)
            waiting += gate.is_waiting(key)
            self._go.pop(key, None)
            self._let_go(gate.leave(key))
        return waiting

    @property
    def has_queue(self) -> bool:
        """Whether any call waits for its endpoint."""
        return any(gate.waiting for gate in self._gates.values())

    def limited_for(self) -> float:
        """Seconds since the first rate limit after the last answered call; 0 if there was none."""
        return 0.0 if self._limited_since is None else trio.current_time() - self._limited_since

    def _note_limit(self) -> None:
        if self._limited_since is None:
            self._limited_since = trio.current_time()

    def _let_go(self, keys: Iterable[CallKey]) -> None:
        for key in keys:
            self._go.pop(key)()
