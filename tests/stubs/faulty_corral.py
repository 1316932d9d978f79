"""The command, with workers that misbehave as a plan says (see `tests.stubs.faulty_worker`)."""

from __future__ import annotations

import errno
import os
import shlex
import sys
from pathlib import Path

import msgspec

import tests
from supervisor.config import read_settings
from supervisor.early_fork import fork_early
from supervisor.flags import parse_one_shot
from supervisor.oneshot import run_one_shot
from supervisor.spawn import Spawner, WorkerProcess, choose_spawner
from tests.stubs import faulty_worker
from tests.stubs.corral_run import Place
from tests.stubs.faulty_worker import Fault, Plan

PACKAGE = Path(tests.__path__[0])


class FaultySpawner:
    """Gives each worker its number and the plan; refuses those that can't be started."""

    def __init__(self, spawner: Spawner, file: Path) -> None:
        self._spawner = spawner
        self._file = file
        self._refused = msgspec.json.decode(file.read_bytes(), type=Plan).refused
        self._count = 0

    async def spawn(self, kind: str) -> WorkerProcess:
        """The next worker."""
        assert kind == "agent"
        number, self._count = self._count, self._count + 1
        if number in self._refused:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return await self._spawner.spawn(f"{number}:{self._file}")

    async def run(self) -> None:
        """As the spawner behind it."""
        await self._spawner.run()

    def close(self) -> None:
        """As the spawner behind it."""
        self._spawner.close()


def main(plan: str) -> int:
    """A one-shot run with the command line's flags; what shortens a test is not a flag of the command."""
    settings = read_settings(parse_one_shot(sys.argv[1:], os.environ), os.environ, None)
    times = msgspec.structs.replace(settings.worker_times, terminate=0.3)
    settings = msgspec.structs.replace(settings, worker_times=times)
    early = None if settings.spawn == "fresh" else fork_early()
    spawner = choose_spawner(settings.spawn, early, entry=faulty_worker.ENTRY, packages=(PACKAGE,), ends_orphans=True)
    try:
        return run_one_shot(settings, FaultySpawner(spawner, Path(plan)))
    finally:
        spawner.close()


def faulty_place(folder: Path, *faults: Fault, refused: tuple[int, ...] = ()) -> Place:
    """A place whose command has workers with these faults."""
    plan = folder / "plan.json"
    plan.write_bytes(msgspec.json.encode(Plan(faults=faults, refused=refused)))
    code = f"import sys; from tests.stubs.faulty_corral import main; sys.exit(main({str(plan)!r}))"
    command = folder / "faulty-corral"
    root = shlex.quote(str(PACKAGE.parent))
    command.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {shlex.quote(sys.executable)} -c "{code}" "$@"\n')
    command.chmod(0o755)
    return Place(folder, command)
