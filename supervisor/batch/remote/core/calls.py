"""The model calls of an attempt that runs elsewhere, as the batch has to count them.

A pure machine. If the other machine is gone, a call may have been billed unseen in two cases: it was let go and not
answered yet, or it was answered and the usage that counts it has not arrived.
"""

from __future__ import annotations


class RemoteCalls:
    """Calls by number. Inputs that can't be raise ValueError and change nothing: numbers come from another machine."""

    def __init__(self) -> None:
        self._waiting: set[int] = set()
        self._under_way: set[int] = set()
        self._answered = 0
        self._most = 0

    @property
    def uncertain(self) -> int:
        """How many calls may have been billed without being counted in what has arrived of the usage."""
        return len(self._under_way) + self._answered

    @property
    def unfinished(self) -> tuple[int, ...]:
        """The calls that wait or are under way."""
        return (*sorted(self._waiting), *sorted(self._under_way))

    def ask(self, call: int) -> None:
        """A call wants to go. Numbers rise."""
        if call <= self._most:
            raise ValueError(f"the call {call} came after the call {self._most}")
        self._most = call
        self._waiting.add(call)

    def go(self, call: int) -> None:
        """The call was let go."""
        if call not in self._waiting:
            raise ValueError(f"the call {call} does not wait")
        self._waiting.remove(call)
        self._under_way.add(call)

    def answered(self, call: int) -> None:
        """The call was answered; the usage that counts it comes later."""
        self._end(call)
        self._answered += 1

    def failed(self, call: int) -> None:
        """The call brought nothing, and nothing was billed."""
        self._end(call)

    def dropped(self, call: int) -> None:
        """Nobody there waits for the call any more; what became of it is counted there."""
        if call not in self._waiting and call not in self._under_way:
            raise ValueError(f"the call {call} is not open")
        self._waiting.discard(call)
        self._under_way.discard(call)

    def usage_arrived(self) -> None:
        """What has been used so far has arrived: it counts all that was answered before."""
        self._answered = 0

    def _end(self, call: int) -> None:
        if call not in self._under_way:
            raise ValueError(f"the call {call} is not under way")
        self._under_way.remove(call)
