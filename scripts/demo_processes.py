"""Which processes a run has, seen from outside: from /proc, or where there is none, from ps."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

SAMPLE_SECONDS = 0.01
WORKER = "corral-worker"
"""What the process of an agent calls itself."""


class Process(NamedTuple):
    """A process as the system shows it."""

    parent: int
    name: str


def process_table() -> dict[int, int]:
    """Each live process and its parent; one that is dead but not yet collected is left out."""
    return {pid: process.parent for pid, process in named_process_table().items()}


def named_process_table() -> dict[int, Process]:
    """Each live process."""
    if not Path("/proc/self/stat").exists():
        return _table_from_ps()
    table: dict[int, Process] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - hundreds of Paths a sample are slow
        if name.isdigit():
            try:
                # The name of a program, in parentheses, may hold anything; behind it come the state and the parent.
                head, _, rest = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")
                state, parent = rest.split()[:2]
            except (OSError, ValueError):
                continue  # it ended while we looked
            if state not in "ZX":
                table[int(name)] = Process(parent=int(parent), name=head.partition("(")[2])
    return table


def _table_from_ps() -> dict[int, Process]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
    rows = (line.split() for line in listed.stdout.splitlines())
    # Where there is no /proc there is no fork server either: every child is a worker.
    return {int(row[0]): Process(int(row[1]), WORKER) for row in rows if len(row) > 2 and not row[2].startswith("Z")}


class ProcessWatch:
    """Looks at the descendants of ``root`` again and again; kills ``root`` if it takes longer than ``seconds``.

    ``seen`` is every one of them with its first parent.
    """

    def __init__(self, root: int, seconds: float) -> None:
        self._root = root
        self._deadline = time.monotonic() + seconds
        self._samples: list[frozenset[int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.seen: dict[int, int] = {}
        self._names: dict[int, str] = {}

    def __enter__(self) -> ProcessWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def workers(self) -> set[int]:
        """The processes of agents. What a worker starts carries its name too, until it has become another program."""
        return {
            pid for pid, name in self._names.items() if name == WORKER and self._names.get(self.seen[pid], "") != WORKER
        }

    def most_at_once(self, pids: set[int]) -> int:
        """How many of ``pids`` were alive at one moment."""
        return max((len(sample & pids) for sample in self._samples), default=0)

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            if time.monotonic() > self._deadline:
                os.kill(self._root, signal.SIGKILL)
                return
            table = named_process_table()
            found = _descendants(self._root, {pid: process.parent for pid, process in table.items()})
            self._names.update((pid, table[pid].name) for pid in found)
            self._samples.append(frozenset(found))
            self.seen = found | self.seen


def _descendants(root: int, table: dict[int, int]) -> dict[int, int]:
    found: dict[int, int] = {}
    level = {root}
    while level:
        below = {pid: parent for pid, parent in table.items() if parent in level and pid not in found}
        found |= below
        level = set(below)
    return found


def left_behind(pids: Iterable[int], folder: Path) -> list[int]:
    """Those of ``pids`` that still live, and every process that works in ``folder`` or names it on its command line."""
    alive = process_table()
    left = set(pids) & set(alive)
    for pid in set(alive) - {os.getpid()}:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            works_in = Path(f"/proc/{pid}/cwd").readlink()
        except OSError:
            continue
        if os.fsencode(folder) in words or works_in.is_relative_to(folder):
            left.add(pid)
    return sorted(left)
