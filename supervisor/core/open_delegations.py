"""The sub-agents an agent asked for in the present round of calls, and the results it may not have taken in yet."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.frames import ChildResult, SpawnRequest


class OpenDelegations:
    """Kept outside the worker: a result must reach the next worker if this one dies with it.

    ``requests`` has the number of the request by call id, ``last_request`` the largest number there was.
    """

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.last_request = 0
        self._results: dict[int, ChildResult] = {}

    def ask(self, request: SpawnRequest) -> None:
        """The worker asked for a sub-agent."""
        self.requests[request.call_id] = request.request
        self.last_request = max(self.last_request, request.request)

    def end(self, result: ChildResult) -> None:
        """The sub-agent is over."""
        self._results[result.request] = result

    def results(self, requests: Iterable[int]) -> list[ChildResult]:
        """The results that are there for ``requests``."""
        return [self._results[request] for request in requests if request in self._results]

    def forget(self) -> None:
        """The results of the round are committed: call ids may be used again from here on."""
        self.requests.clear()
        self._results.clear()
