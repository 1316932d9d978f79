"""Who is still in a process group. Source: proc(5), ``/proc/pid/stat``; POSIX.1-2024, `kill`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import trio

_STATE, _GROUP = 0, 2  # fields after the name
_DEAD = (b"Z", b"X", b"x")
_POLLING = 0.02  # seconds, where the system can't tell of an exit


async def wait_until_gone(group: int) -> None:
    """Wait until nobody but zombies is in ``group``, a process group's id.

    Zombies count as gone: where process 1 doesn't reap, an orphaned one stays for ever.
    """
    while members := living_members(group):
        await _wait_for_exit(members[0])


def living_members(group: int) -> list[int]:
    """The pids of those in ``group`` that are no zombies. Where there is no ``/proc`` the group stands for them."""
    if not Path("/proc/self/stat").exists():
        return [group] if _takes_signals(group) else []
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    return [pid for pid in pids if _lives_in(pid, group)]


def _lives_in(pid: int, group: int) -> bool:
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False  # gone in the meantime
    fields = line.rpartition(b")")[2].split()  # the name, in brackets, may hold anything
    return int(fields[_GROUP]) == group and fields[_STATE] not in _DEAD


def _takes_signals(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # the latter, on macOS, from a group of zombies
        return False
    return True


async def _wait_for_exit(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        await trio.lowlevel.checkpoint()
        return
    except (AttributeError, OSError):  # not Linux, an old kernel, or no descriptor left
        await trio.sleep(_POLLING)
        return
    try:
        with suppress(trio.ClosedResourceError):
            await trio.lowlevel.wait_readable(descriptor)
    finally:
        trio.lowlevel.notify_closing(descriptor)
        os.close(descriptor)
