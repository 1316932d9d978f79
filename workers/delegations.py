"""The sub-agents that this agent waits for."""

from __future__ import annotations

from collections.abc import Callable

import trio

from protocol.codec import clean_text
from protocol.content import Outcome
from protocol.frames import ChildResult, SpawnRequest
from protocol.records import AgentOutcome
from workers.tools.tool import ToolOutput

_OUTCOMES: dict[AgentOutcome, Outcome] = {"complete": "success", "cancelled": "cancelled"}
"""What the delegating call comes to; every other end of a sub-agent is an ``error``."""


class Delegations:
    """Asks the supervisor for sub-agents and waits for their results, by the number of the request."""

    def __init__(self, send: Callable[[SpawnRequest], None], last_request: int = 0) -> None:
        """``last_request`` is the largest number that an earlier worker of this agent used."""
        self._send = send
        self._last_request = last_request
        self._arrived: dict[int, trio.Event] = {}
        self._results: dict[int, ChildResult] = {}

    def ask(self, call_id: str, agent_name: str, prompt: str) -> int:
        """Ask for a sub-agent; returns the number of the request. Never blocks."""
        self._last_request += 1
        request = self._last_request
        self._send(SpawnRequest(request=request, call_id=call_id, agent_name=agent_name, prompt=clean_text(prompt)))
        return request

    def take(self, result: ChildResult) -> None:
        """The supervisor says how a sub-agent ended. It may come before anybody waits for it."""
        self._results[result.request] = result
        self._event(result.request).set()

    async def result(self, request: int) -> ToolOutput:
        """Wait for the end of the sub-agent of ``request``. Cancelling leaves it to the supervisor."""
        await self._event(request).wait()
        result = self._results[request]
        return ToolOutput(output=result.text, outcome=_OUTCOMES.get(result.outcome, "error"))

    def _event(self, request: int) -> trio.Event:
        return self._arrived.setdefault(request, trio.Event())
