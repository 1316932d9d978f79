"""The times at which a turn ends by itself, and how; among them those that the end of its process brings."""

from __future__ import annotations

from workers.acp.effects import Ending, Exited, Failed

DRAIN_TIME = 0.5
"""Seconds after the exit of the process in which what it had written may still come in."""
EXIT_PATIENCE = 1.0
"""Seconds after one of its streams has ended in which the process must be gone."""


class Deadlines:
    """Named times, in seconds, and the endings that they bring."""

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[float, Ending]] = {}

    @property
    def next(self) -> float | None:
        """The earliest time; None where there is none."""
        return min((at for at, _ in self._by_name.values()), default=None)

    def set(self, name: str, at: float, ending: Ending) -> None:
        """At ``at`` comes ``ending``; a deadline that is set is not put off by setting it again."""
        self._by_name.setdefault(name, (at, ending))

    def drop(self, name: str) -> None:
        """Deadline ``name``, where it is set, doesn't hold any more."""
        self._by_name.pop(name, None)

    def due(self, now: float) -> Ending | None:
        """The ending of the earliest deadline that has come; None where none has."""
        come = [deadline for deadline in self._by_name.values() if deadline[0] <= now]
        return min(come, key=lambda deadline: deadline[0])[1] if come else None


class ProcessEnd:
    """What is known of the end of an agent's process: its streams and its exit, which come in any order.

    Each method returns the ending of the turn where that is certain, else None; what time may bring is a deadline.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._exit_code: int | None = None
        self._output_has_ended = False

    def output_ended(self, now: float) -> Ending | None:
        """The standard output is at its end: nothing will be answered any more."""
        self._output_has_ended = True
        if self._exit_code is not None:
            return Exited(self._exit_code)
        failure = Failed("the agent closed its output without an answer and did not exit")
        self._deadlines.set("output", now + EXIT_PATIENCE, failure)
        return None

    def input_lost(self, now: float) -> Ending | None:
        """A request could not be written."""
        if self._exit_code is None:
            failure = Failed("the agent closed its input before it had read what it was asked, and did not exit")
            self._deadlines.set("input", now + EXIT_PATIENCE, failure)
        return None

    def exited(self, exit_code: int, now: float) -> Ending | None:
        """The process is gone; what it had written may still be on its way."""
        self._exit_code = exit_code
        if self._output_has_ended:
            return Exited(exit_code)
        self._deadlines.drop("input")
        self._deadlines.set("drain", now + DRAIN_TIME, Exited(exit_code))
        return None
