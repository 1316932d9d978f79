"""Processes that a command left behind, and how they are ended; and what a command may see of ours.

A command may start a process that outlives it: with ``&``, nohup, setsid, by a double fork. Such an orphan goes to the
nearest ancestor that is a subreaper. A worker makes itself one, so its orphans stay below it and can be found.
Source: prctl(2), PR_SET_CHILD_SUBREAPER; proc(5), /proc/pid/stat.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

DEBUGGABLE_VARIABLE = "CORRAL_DEBUGGABLE"

MARK_VARIABLE = "CORRAL_MARK"
"""Its value, in the environment of every command, is the mark of the keeper that looks after it; see `end_marked`."""

_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_DEAD = ("Z", "X")
_TIMES_TO_FIND_NONE = 3
_LOOK_AGAIN_SECONDS = 0.01
_FIELDS_AFTER_NAME_PARENT = 1
_FIELDS_AFTER_NAME_START = 19


class _Process(NamedTuple):
    parent: int
    state: str
    """As proc(5) names it; empty where it is unknown."""
    started: str
    """Tells two processes of the same number apart; empty where it is unknown."""


def become_subreaper() -> bool:
    """Have orphaned descendants come to this process from now on; False where the system has no such thing.

    Not inherited by children: each worker calls it once, after it was forked.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0


def name_process(name: str) -> None:
    """What ``ps`` and ``top`` show of this process: its kind, at most 15 characters. Source: prctl(2), PR_SET_NAME."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def forbid_inspection() -> bool:
    """Keep other processes of the same user from reading this one's memory and environment; False where that failed.

    A command that a model runs has the person's rights, and keys are in here. Debuggers are kept out too, unless
    ``CORRAL_DEBUGGABLE=1``. Call it last: afterwards some files of the process's own in ``/proc`` (``environ``,
    ``mem``, ``oom_score_adj``) belong to root. Forked children inherit it, commands that are executed do not. Source:
    prctl(2), PR_SET_DUMPABLE; proc(5).
    """
    if not sys.platform.startswith("linux") or os.environ.get(DEBUGGABLE_VARIABLE) == "1":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)) == 0


def kill_strays(limit: float = 5.0) -> bool:
    """Kill every descendant of this process, and theirs as they appear, until none is left; reap our own children.

    For the end of a worker: it takes all children, also those that somebody here still waits for. Blocks for ``limit``
    seconds at most (a process in an uninterruptible wait can't be killed); True when none is left. Children are reaped
    by number, never as "any child", and only here. Without ``/proc`` descendants are found through ``ps``, and orphans
    of a system without subreapers are out of reach.
    """
    deadline = time.monotonic() + limit
    while True:
        if _has_no_child():
            return True
        processes = _process_table()
        strays = _descendants(processes, os.getpid())
        if not strays:
            return True
        for pid in strays:
            _kill(pid, processes[pid])
        # What isn't a child of ours yet becomes one when its parent is gone: then the next round reaps it.
        for pid in strays:
            if processes[pid].parent == os.getpid():
                _reap(pid, deadline)
        if time.monotonic() >= deadline:
            return False


def end_orphans(known: Collection[int], limit: float = 1.0) -> bool:
    """Kill and reap the children of this process whose numbers are not ``known``, until there are none.

    For a process that is a subreaper and knows all that it has started: any other child is an orphan of one of those.
    Returns False if one could not be ended within ``limit`` seconds, for which it may block. Orphans of an orphan
    become children too and are ended in the next round. Where the system does not list children, none is found.
    """
    deadline = time.monotonic() + limit
    while True:
        orphans = _children() - set(known)
        if not orphans:
            return True
        for pid in orphans:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)  # a child that nobody has reaped: the number is its own
        for pid in orphans:
            _reap(pid, deadline)
        if time.monotonic() >= deadline:
            return False


def _has_no_child() -> bool:
    """Quicker than a walk over all processes; False where the system does not list children."""
    return (
        Path("/proc/self/task").exists()
        and Path(f"/proc/self/task/{os.getpid()}/children").exists()
        and not _children()
    )


def _children() -> set[int]:
    """The children of all threads of this process. Source: proc(5), /proc/pid/task/tid/children."""
    children: set[int] = set()
    with suppress(FileNotFoundError):
        for task in Path("/proc/self/task").iterdir():
            # A thread that has ended meanwhile has passed its children on.
            with suppress(FileNotFoundError, ProcessLookupError):
                children.update(map(int, (task / "children").read_text(encoding="ascii").split()))
    return children


def end_tree(root: int, limit: float = 5.0) -> bool:
    """Kill all descendants of ``root``, a subreaper that is no child of ours, and then ``root`` itself.

    In this order: while it lives, what it started stays below it and can be found. Blocks for ``limit`` seconds at
    most; True when none is left but zombies.
    """
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        processes = _process_table()
        if root not in processes or processes[root].state in _DEAD:
            return True
        below = [pid for pid in _descendants(processes, root) if processes[pid].state not in _DEAD]
        for pid in below or [root]:
            _kill(pid, processes[pid])
    return False


def mark_of_ours() -> dict[str, str]:
    """The variable that marks the commands of this process; empty where no keeper looks after it."""
    mark = os.environ.get(MARK_VARIABLE)
    return {} if mark is None else {MARK_VARIABLE: mark}


def end_marked(mark: str, limit: float = 5.0) -> bool:
    """Kill every process that was started with ``mark`` in its environment, and what is below it, until none is left.

    For what is below nobody any more, because all that it came from were killed at once. A program that was started
    without the variable is found only below one that has it. Blocks for ``limit`` seconds at most; True when none is
    left but zombies.
    """
    word = f"{MARK_VARIABLE}={mark}".encode()
    deadline = time.monotonic() + limit
    times_found_none = 0
    while time.monotonic() < deadline:
        processes = {pid: process for pid, process in _process_table().items() if process.state not in _DEAD}
        marked = [pid for pid in processes if _is_started_with(pid, word)]
        doomed = {*marked, *(below for pid in marked for below in _descendants(processes, pid))} - {os.getpid()}
        for pid in doomed:
            _kill(pid, processes[pid])
        # In the middle of an exec a process has no environment: nobody is hidden by that twice.
        times_found_none = 0 if doomed else times_found_none + 1
        if times_found_none == _TIMES_TO_FIND_NONE:
            return True
        time.sleep(_LOOK_AGAIN_SECONDS)
    return False


def _is_started_with(pid: int, word: bytes) -> bool:
    """Whether ``word`` was in the environment of ``pid`` at its exec, as far as this user may know."""
    try:
        return word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _descendants(processes: dict[int, _Process], ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _process_table() -> dict[int, _Process]:
    if not Path("/proc/self/stat").exists():
        return _process_table_of_ps()
    table: dict[int, _Process] = {}
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    for pid in pids:
        if (process := _look_up(pid)) is not None:
            table[pid] = process
    return table


def _look_up(pid: int) -> _Process | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None  # gone in the meantime
    # The name, in brackets, may hold anything, brackets and spaces too.
    fields = line.rpartition(b")")[2].split()
    return _Process(
        int(fields[_FIELDS_AFTER_NAME_PARENT]), fields[0].decode(), fields[_FIELDS_AFTER_NAME_START].decode()
    )


def _process_table_of_ps() -> dict[int, _Process]:
    listing = subprocess.Popen(["ps", "-A", "-o", "pid=", "-o", "ppid="], stdout=subprocess.PIPE)
    output, _ = listing.communicate()
    pairs = [line.split() for line in output.splitlines()]
    return {int(pid): _Process(int(parent), "", "") for pid, parent in pairs if int(pid) != listing.pid}


def _kill(pid: int, known: _Process) -> None:
    """Kill process ``pid`` unless its number now belongs to another one."""
    with suppress(ProcessLookupError, PermissionError):
        if not known.started:
            os.kill(pid, signal.SIGKILL)
            return
        descriptor = os.pidfd_open(pid)
        try:
            # The descriptor holds on to whoever has the number now; only then can the start time be trusted.
            found = _look_up(pid)
            if found is not None and found.started == known.started:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _reap(pid: int, deadline: float) -> None:
    """Wait for our own child ``pid`` until ``deadline`` and reap it."""
    with suppress(ChildProcessError, ProcessLookupError):
        if hasattr(os, "pidfd_open"):
            descriptor = os.pidfd_open(pid)
            try:
                select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            finally:
                os.close(descriptor)
            os.waitpid(pid, os.WNOHANG)
        else:
            os.waitpid(pid, 0)
