"""Who runs: the process table as /proc shows it, and what a run left behind.

The test process makes itself a subreaper, so that an orphan comes to it instead of vanishing to init. A process left
behind is found in three ways, because each can be escaped alone: by its parents, by a marker in the environment that
the run was given, and by a working directory in the run's folders.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37
DYING_TIME = 1.0
"""Seconds that a process which was told to die may take to be gone."""


@dataclass(frozen=True)
class Process:
    """A process as it was when it was looked at. ``command`` is its command line, arguments separated by spaces."""

    pid: int
    parent: int
    state: str
    command: str

    @property
    def alive(self) -> bool:
        """Whether it is more than an entry that waits to be reaped."""
        return self.state not in "ZX"


def process_table() -> dict[int, Process]:
    """All processes by pid."""
    found: dict[int, Process] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found[int(entry.name)] = _read_process(entry)
    return found


def _read_process(entry: Path) -> Process:
    after_name = (entry / "stat").read_text().rpartition(")")[2].split()
    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return Process(pid=int(entry.name), parent=int(after_name[1]), state=after_name[0], command=command)


def descendants(ancestor: int) -> list[Process]:
    """All living processes below ``ancestor``, parents before children."""
    table = process_table()
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(0), [])
        found += [process for process in below if process.alive]
        waiting += [process.pid for process in below]
    return found


def lineage(ancestor: int, word: str) -> list[int]:
    """The pids from just below ``ancestor`` down to the process whose command line ends with ``word``."""
    table = process_table()
    below = {process.pid for process in descendants(ancestor)}
    found = [process for process in table.values() if process.pid in below and process.command.endswith(word)]
    assert found, f"nothing below {ancestor} runs {word!r}: {[table[pid].command for pid in below if pid in table]}"
    # A shell that runs the word holds it in its own command line too: the deepest one is meant.
    deepest = max(found, key=lambda process: len(_path(table, ancestor, process.pid)))
    return _path(table, ancestor, deepest.pid)


def _path(table: dict[int, Process], ancestor: int, pid: int) -> list[int]:
    path: list[int] = []
    while pid != ancestor:
        path.insert(0, pid)
        pid = table[pid].parent
    return path


@contextlib.contextmanager
def subreaper() -> Generator[None, None, None]:
    """Within the block orphans below this process become its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    assert libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) == 0
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Traces:
    """By what the processes of a run are known: its ``marker`` and ``folders``, and that they are below us.

    ``known`` are descendants of ours from before the run began.
    """

    known: frozenset[int]
    marker: str
    folders: tuple[Path, ...]

    def living(self) -> list[Process]:
        """The processes of the run that live. Dead orphans that came to us are reaped by the way."""
        here = os.getpid()
        ours = {process.pid for process in descendants(here)}
        found: list[Process] = []
        for process in process_table().values():
            if process.pid == here or process.pid in self.known:
                continue
            if not process.alive:
                if process.parent == here:
                    _reap(process.pid)
            elif process.pid in ours or _has_marker(process.pid, self.marker) or _works_in(process.pid, self.folders):
                found.append(process)
        return found

    def left_behind(self) -> list[Process]:
        """What does not end by itself within `DYING_TIME`; it is ended, by pid."""
        left = [process for process in self.living() if not ended_within(process.pid, DYING_TIME)]
        doomed = self.living()
        while doomed:  # what is killed may just have started another
            for process in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                assert ended_within(process.pid, 10), process
            doomed = self.living()
        return left


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _has_marker(pid: int, marker: str) -> bool:
    try:
        return marker.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _works_in(pid: int, folders: tuple[Path, ...]) -> bool:
    try:
        where = Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return False
    return any(where.is_relative_to(folder) for folder in folders)


def ended_within(pid: int, seconds: float) -> bool:
    """Whether the process ends within ``seconds``; waits on its pidfd."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)
