"""Starts the workers of a run: as forks of a fork server, or each by exec where fork is not to be used."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from protocol.fork_frames import FORK_SERVER_ENTRY, FRESH_WORKER_ENTRY
from protocol.handshake import WORKER_ENTRY
from supervisor.child_processes import Family
from supervisor.config import SpawnMode
from supervisor.early_fork import EarlyForkServer, begin_serving, can_fork_safely
from supervisor.errors import WrongUsage
from supervisor.fork_server import ServerLink
from supervisor.fresh_keeper import FreshKeeper
from supervisor.worker_process import Ends, ExitStatus, WorkerProcess

__all__ = [
    "ExitStatus",
    "ForkSpawner",
    "FreshSpawner",
    "Spawner",
    "WorkerProcess",
    "choose_spawner",
]

_SERVERS_FOR_A_WORKER = 3
"""How many fork servers may die over one request before the worker is started by exec."""


class Spawner(Protocol):
    """Starts the workers of a run."""

    async def spawn(self, kind: str) -> WorkerProcess:
        """Start a worker of ``kind`` in a process group of its own.

        Raises `OSError` when the system can't: no processes, memory or descriptors left. After a cancellation there is
        no worker, or one whose channel is closed. Needs `run` to be running; to be called from the main thread.
        """
        ...

    async def run(self) -> None:
        """Take notice of what becomes of the workers, until cancelled."""
        ...

    def close(self) -> None:
        """End what the spawner itself keeps running, and all workers that are left; blocks for 3 seconds at most.

        For after the run, outside of trio. May be repeated.
        """
        ...


def choose_spawner(
    mode: SpawnMode,
    early: EarlyForkServer | None = None,
    *,
    entry: str = WORKER_ENTRY,
    packages: Sequence[Path] = (),
    ends_orphans: bool = False,
) -> Spawner:
    """The spawner for ``mode``; it takes over ``early``, and raises this process's soft limit of open files.

    ``entry`` is where its workers begin; ``packages`` are the folders of packages that it needs beside our own.
    ``ends_orphans`` says that this process is a subreaper and has no children but the spawner's: then it kills any
    other that turns up when a worker has ended. Raises `WrongUsage` for ``fork`` where the system is not fit for it.
    """
    can_fork = can_fork_safely()
    if mode == "fork" and not can_fork:
        raise WrongUsage("--spawn fork needs Linux 5.3 or newer: leave it out")
    family = Family(entry, packages, ends_orphans=ends_orphans)
    if mode == "fresh" or not can_fork:
        if early is not None:
            early.close()
        return FreshSpawner(family)
    return ForkSpawner(family, early)


class FreshSpawner:
    """Starts each worker by exec. See `Spawner`."""

    def __init__(self, family: Family | None = None) -> None:
        self._family = family or Family(WORKER_ENTRY, (), ends_orphans=False)
        self._keeper: FreshKeeper | None = None

    async def spawn(self, kind: str) -> WorkerProcess:
        """See `Spawner.spawn`."""
        keeper = self._keeper = self._keeper or self._start_keeper()
        ends = Ends.open()
        try:
            channel, stderr = ends.theirs
            words, mark = (self._family.entry, kind), keeper.mark if keeper else None
            process = self._family.start(FRESH_WORKER_ENTRY, words, channel, stderr, mark)
        except OSError:
            ends.close_ours()
            raise
        finally:
            ends.close_theirs()
        if keeper is not None:
            keeper.tell(process.pid)
        return WorkerProcess(process.pid, ends, reap=partial(self._family.reap, process.pid, process))

    async def run(self) -> None:
        """Wait until cancelled: each worker tells of its own end."""
        await trio.sleep_forever()

    def close(self) -> None:
        """See `Spawner.close`."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self._family.end_orphans()
            keeper.dismiss()

    def _start_keeper(self) -> FreshKeeper | None:
        return FreshKeeper(self._family) if can_fork_safely() else None


class ForkSpawner:
    """Has a fork server fork the workers. See `Spawner`.

    A server that dies costs no worker: they become children of this process and live on, and the next request starts
    another server, by exec. If servers don't live long enough to serve, workers are started by exec from then on.
    """

    def __init__(self, family: Family, early: EarlyForkServer | None) -> None:
        self._family = family
        self._fresh = FreshSpawner(family)
        self._has_given_up = False
        self._link: ServerLink | None = None
        self._is_linked = trio.Event()
        if early is not None:
            early.begin()
            family.know(early.pid)
            self._have_server(ServerLink(early.pid, early.control))

    async def spawn(self, kind: str) -> WorkerProcess:
        """See `Spawner.spawn`."""
        for _ in range(_SERVERS_FOR_A_WORKER):
            if self._has_given_up:
                break
            link = self._link or self._start_server()
            worker = await link.spawn(self._family.entry, kind)
            if worker is not None:
                return worker
        return await self._fresh.spawn(kind)

    async def run(self) -> None:
        """See `Spawner.run`."""
        while True:
            await self._is_linked.wait()
            assert self._link is not None
            link = self._link
            await link.serve()
            await link.bury(self._family)
            self._has_given_up = self._has_given_up or not link.has_served
            self._link = None
            self._is_linked = trio.Event()
            link.release()

    def close(self) -> None:
        """See `Spawner.close`."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._fresh.close()

    def _start_server(self) -> ServerLink:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = self._family.start(FORK_SERVER_ENTRY, (str(os.getpid()),), theirs.fileno(), None)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        begin_serving(ours)
        return self._have_server(ServerLink(process.pid, ours, process))

    def _have_server(self, link: ServerLink) -> ServerLink:
        self._link = link
        self._is_linked.set()
        return link
