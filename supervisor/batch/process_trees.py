"""Trees of processes that a runner left when it died: found by number and start time, ended before anything runs again.

Normally they have ended by themselves: a worker whose supervisor is gone ends all it started. Source: proc(5).
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

END_SECONDS = 10.0


def start_time(pid: int) -> str | None:
    """When process ``pid`` started, in the system's ticks; None if there is none or the system does not tell."""
    found = _look_up(pid)
    return None if found is None else found[1]


def end_tree(pid: int, started: str | None, seconds: float = END_SECONDS) -> bool:
    """Kill the process that had the number ``pid`` and all below it; True once none is left.

    Without ``started``, or where the number belongs to a process of another start time, nothing is killed: it is gone.
    Blocks for ``seconds`` at most.
    """
    deadline = time.monotonic() + seconds
    while started is not None and start_time(pid) == started:
        # The children first: those of a dead parent would be somebody else's.
        for each in (*_descendants(pid), pid):
            _kill(each)
        _await_end(pid, deadline)
        if time.monotonic() >= deadline:
            return False
    return True


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _await_end(pid: int, deadline: float) -> None:
    with suppress(ProcessLookupError, AttributeError, OSError):
        descriptor = os.pidfd_open(pid)
        try:
            select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        finally:
            os.close(descriptor)


def _descendants(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    with suppress(FileNotFoundError), os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdecimal() and (found := _look_up(int(entry.name))) is not None:
                children.setdefault(found[0], []).append(int(entry.name))
    below: list[int] = []
    waiting = [ancestor]
    while waiting:
        below += (found_children := children.get(waiting.pop(), []))
        waiting += found_children
    return below


def _look_up(pid: int) -> tuple[int, str] | None:
    """The parent and the start time of a process that runs; a dead one that nobody has reaped is none."""
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name, in brackets, may hold anything, brackets and spaces too.
    fields = line.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else (int(fields[1]), fields[19].decode())
