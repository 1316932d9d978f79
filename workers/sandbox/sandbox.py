"""Where a program runs whose standard streams we hold: in a folder of this machine, in a container, in a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from trio.abc import ReceiveStream, SendStream


class StdioProcess(Protocol):
    """A running program and its standard streams; it need not be a process of this machine."""

    @property
    def stdin(self) -> SendStream:
        """What we write the program reads."""
        ...

    @property
    def stdout(self) -> ReceiveStream:
        """What the program writes."""
        ...

    @property
    def stderr(self) -> ReceiveStream | None:
        """What the program writes for people; None where there is no such stream."""
        ...

    async def wait(self) -> int:
        """Wait for the program's end and return its exit code, negative for a signal.

        May be called again and again, and may return before the other end of ``stdout`` is closed.
        """
        ...

    def terminate(self) -> None:
        """Ask the program to end; may do nothing."""
        ...

    def kill(self) -> None:
        """End the program; may do nothing."""
        ...


@runtime_checkable
class GroupOwner(Protocol):
    """A `StdioProcess` that can tell when all that it started has ended too."""

    async def end_group(self, grace: float) -> None:
        """End the program and its whole group; returns when only zombies are left of it.

        A program that runs is asked first and has ``grace`` seconds; one that has exited leaves a group that is killed
        at once.
        """
        ...

    def release(self) -> None:
        """Reap the program and close what is open of it."""
        ...


class Sandbox(Protocol):
    """Starts programs."""

    async def open_stdio(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> StdioProcess:
        """Start ``argv`` in ``cwd``; ``env`` is its whole environment.

        Raises whatever says best why it could not be started. When it is cancelled nothing is left running.
        """
        ...
