"""Ceilings of memory for an agent with all its tools: a cgroup for each worker, where the system lends us one.

A resource limit bounds one process's address space; a cgroup bounds what a whole agent uses, and the kernel ends the
agent, not the machine, when that is too much. `supervisor.cgroup_base` says where ours may be made. The supervisor
itself is never moved. Everything is best effort: what can't be had is done without, and no run fails for it.

Source: the Linux kernel's documentation of cgroup v2.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import trio

from protocol.frames import DownwardFrame
from protocol.records import CrashCause
from supervisor.cgroup_base import find_base, read_count
from supervisor.spawn import ExitStatus, Spawner, WorkerProcess
from supervisor.worker_life import WorkerEnd, WorkerLife

EMPTY_SECONDS = 0.5
"""How long the end of a run waits for processes that were killed to be gone."""

_PREFIX = "corral-"
_EXPLAINED: frozenset[CrashCause] = frozenset({"signal", "exited_early", "channel_closed", "unresponsive"})
"""What may be seen of a worker that the kernel kills: it may thrash before, and large ones take a while to be gone."""

_KILLED = ExitStatus(None, signal.SIGKILL)
_UNKNOWN = ExitStatus(None, None)

_run_numbers = itertools.count(1)


class Cgroup:
    """One cgroup of ours, as the folder that the kernel shows it as. All methods block, shortly."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, value: str) -> None:
        """Write one of its files; raises `OSError` where the kernel refuses, or has no such file."""
        (self.path / name).write_text(value, encoding="ascii")

    def oom_kills(self) -> int:
        """How many of its processes were killed because memory was out, anywhere; 0 where nobody tells.

        Those of cgroups below don't count: a tool may have made them, with ceilings of their own.
        """
        return self._count("memory.events.local", "oom_kill")

    def is_too_small(self) -> bool:
        """Whether it was this cgroup's own ceiling at which memory was out, not that of one around it or below."""
        return self._count("memory.events.local", "oom") > 0

    def _count(self, name: str, key: str) -> int:
        try:
            return read_count((self.path / name).read_text(encoding="ascii"), key)
        except OSError:
            return 0

    def kill(self) -> None:
        """SIGKILL to each process in it and below, also to one that is just being forked. Needs Linux 5.14."""
        with suppress(OSError):
            self.write("cgroup.kill", "1")

    def wait_until_empty(self, deadline: float) -> None:
        """Return once no living process is in it or below, or at ``deadline`` of the monotonic clock."""
        with suppress(OSError), (self.path / "cgroup.events").open(encoding="ascii") as events:
            changed = select.poll()
            changed.register(events, select.POLLPRI)
            # Each reading arms the notice of the change after it.
            while read_count(events.read(), "populated") and (left := deadline - time.monotonic()) > 0:
                changed.poll(left * 1000)
                events.seek(0)

    def remove(self) -> bool:
        """Remove it with all below; False if something is left, because processes are still in it."""
        folders = [self.path]
        try:
            for folder in folders:
                folders += filter(Path.is_dir, folder.iterdir())  # tools may have made some of their own
            for folder in reversed(folders):
                folder.rmdir()
        except OSError:
            return not self.path.exists()
        return True


class RunCgroups:
    """The cgroups of one run: one around all, one in it for each worker. Where there are none it does nothing."""

    def __init__(self, agent_bytes: int | None, tree_bytes: int | None, *, proc: Path = Path("/proc/self")) -> None:
        """``agent_bytes`` is the most memory that one worker may use *with its tools*; None: no cgroups.

        ``tree_bytes`` is the most that all of them may use together. Swap is no way around either. ``proc`` is where
        the system describes this process.
        """
        self._agent_bytes = agent_bytes
        self._numbers = itertools.count(1)
        self._left: list[Cgroup] = []
        self._around = None if agent_bytes is None else _make_around(find_base(proc), tree_bytes)

    @property
    def path(self) -> Path | None:
        """The cgroup around all workers; None where there is none."""
        return None if self._around is None else self._around.path

    async def keep(self) -> None:
        """Wait to be cancelled, then `close`."""
        try:
            await trio.sleep_forever()
        finally:
            self.close()

    def close(self) -> None:
        """Kill what is left of all workers and remove the cgroups; blocks for `EMPTY_SECONDS` at most."""
        around, self._around = self._around, None
        if around is not None:
            around.kill()
            around.wait_until_empty(time.monotonic() + EMPTY_SECONDS)
            around.remove()

    async def run_worker(self, worker: WorkerLife, spawner: Spawner, assignment: Sequence[DownwardFrame]) -> WorkerEnd:
        """`WorkerLife.run` within a cgroup of the worker's own.

        A death that the kernel brought about because memory was out has the cause ``out_of_memory``. What the worker
        leaves behind is killed, when the call is cancelled too.
        """
        placing = _PlacingSpawner(spawner, self)
        try:
            end = await worker.run(placing, assignment)
            return end if placing.cgroup is None else judged(end, self._why_killed(placing.cgroup))
        finally:
            if placing.cgroup is not None:
                self._give_up(placing.cgroup)

    def place(self, pid: int) -> Cgroup | None:
        """Put the process, and all that it will start, into a new cgroup; None if that can't be done."""
        self._left = [cgroup for cgroup in self._left if not cgroup.remove()]
        if self._around is None:
            return None
        cgroup = Cgroup(self._around.path / f"agent-{next(self._numbers)}")
        try:
            cgroup.path.mkdir()
            cgroup.write("memory.max", str(self._agent_bytes))
            _write_if_there(cgroup, "memory.swap.max", "0")
            _write_if_there(cgroup, "memory.oom.group", "1")
            cgroup.write("cgroup.procs", str(pid))
        except OSError:
            cgroup.remove()
            return None
        return cgroup

    def _why_killed(self, cgroup: Cgroup) -> str | None:
        """What the kernel killed processes in ``cgroup`` for, in words; None if it killed none."""
        if not cgroup.oom_kills():
            return None
        if cgroup.is_too_small():
            return "with its tools it reached its ceiling of memory"
        if self._around is not None and self._around.is_too_small():
            return "all agents with their tools reached the run's ceiling of memory"
        return "memory was out on the machine, or in a cgroup around the run"

    def _give_up(self, cgroup: Cgroup) -> None:
        """What was killed takes a moment to go: the next worker, or the end of the run, finds the cgroup empty."""
        cgroup.kill()
        if not cgroup.remove():
            self._left.append(cgroup)


class _PlacingSpawner:
    """Starts one worker, and puts it into its cgroup before it is told anything, so before it starts a process."""

    def __init__(self, spawner: Spawner, cgroups: RunCgroups) -> None:
        self._spawner = spawner
        self._cgroups = cgroups
        self.cgroup: Cgroup | None = None

    async def spawn(self, kind: str) -> WorkerProcess:
        """See `Spawner.spawn`."""
        process = await self._spawner.spawn(kind)
        self.cgroup = self._cgroups.place(process.pid)
        return process

    async def run(self) -> None:
        """See `Spawner.run`."""
        await self._spawner.run()

    def close(self) -> None:
        """See `Spawner.close`."""
        self._spawner.close()


def judged(end: WorkerEnd, why_killed: str | None) -> WorkerEnd:
    """``end``, with the cause ``out_of_memory`` where that is what the kernel killed it for.

    ``why_killed`` is what the kernel killed processes of the worker's cgroup for, None if it killed none. It kills all
    of them or none.
    """
    if why_killed is None or end.cause not in _EXPLAINED or end.status not in (_KILLED, _UNKNOWN):
        return end
    return msgspec.structs.replace(end, cause="out_of_memory", detail=why_killed)


def _make_around(base: Path | None, tree_bytes: int | None) -> Cgroup | None:
    """The cgroup around a run's workers, able to hold theirs."""
    if base is None:
        return None
    _remove_stale(base)
    cgroup = Cgroup(base / f"{_PREFIX}{os.getpid()}-{next(_run_numbers)}")
    try:
        cgroup.path.mkdir()
        cgroup.write("cgroup.subtree_control", "+memory")
        if tree_bytes is not None:
            cgroup.write("memory.max", str(tree_bytes))
            _write_if_there(cgroup, "memory.swap.max", "0")
    except OSError:
        cgroup.remove()
        return None
    return cgroup


def _remove_stale(base: Path) -> None:
    """Remove what runs that were killed have left. Nothing is killed: their pids may be of another namespace."""
    with suppress(OSError):
        for path in base.glob(f"{_PREFIX}*"):
            pid = path.name.removeprefix(_PREFIX).partition("-")[0]
            if pid.isdecimal() and not Path("/proc", pid).exists():
                Cgroup(path).remove()


def _write_if_there(cgroup: Cgroup, name: str, value: str) -> None:
    """For what a kernel may be without: swap may not be accounted, and the file not there."""
    with suppress(OSError):
        cgroup.write(name, value)
