"""The folder that an attempt works in: made, looked at afterwards, removed.

Source: the batch contract, "Isolation".
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

import msgspec
import trio

from supervisor.batch import git
from supervisor.batch.commands import Commands, is_out_of_room, plain_environment, words_of
from supervisor.batch.core.outcome import AttemptEnd, setup_failed
from supervisor.batch.folder import sync_file
from supervisor.batch.plan import PlannedJob
from supervisor.batch.records import Changes

WORK = "work"
PATCH = "patch.diff"
CLEAN_UP_SECONDS = 10.0
_NAMES_IN_A_COMMAND = 500

MakeLock: TypeAlias = Callable[[str], AbstractAsyncContextManager[object]]
"""A lock for a repository, by its common folder."""


class SetupFailed(Exception):
    """The folder could not be made; ``end`` is how the attempt ends for it."""

    def __init__(self, end: AttemptEnd) -> None:
        super().__init__(end.message)
        self.end = end


class WorkPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where an attempt works: ``root`` is its project root.

    ``work`` is the folder that was made for it, None: none was. ``admin`` is where git keeps what it knows of a
    worktree.
    """

    root: Path
    work: Path | None = None
    admin: Path | None = None


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt changed; the file is on the disk."""

    path: Path
    sha256: str
    changes: Changes


class PatchFailed(Exception):
    """What the attempt changed could not be written down: its work folder must stay."""


class Isolation:
    """Makes work folders below the batch's ``folder``, at most ``copy_max`` bytes each, and removes them.

    ``lock`` gives what is held while a worktree of a repository is made; without it only this process's own wait.
    """

    def __init__(self, commands: Commands, folder: Path, *, copy_max: int, lock: MakeLock | None = None) -> None:
        self._commands = commands
        self._folder = folder
        self._copy_max = copy_max
        self._locks: dict[str, trio.Lock] = {}
        self._lock: MakeLock = lock or (lambda common: self._locks.setdefault(common, trio.Lock()))

    async def prepare(self, job: PlannedJob, attempt: Path) -> WorkPlace:
        """Make the work folder in ``attempt``; raises `SetupFailed`. Cancelling may leave a part of it behind."""
        try:
            if job.isolation == "worktree":
                return await self._add_worktree(job, attempt / WORK)
            if job.isolation == "copy":
                return await self._copy(job, attempt / WORK)
        except OSError as error:
            message = f"its work folder could not be made: {error.strerror or error}"
            raise SetupFailed(setup_failed(job.isolation, message, error.errno)) from None
        if not job.source.is_dir():
            raise SetupFailed(setup_failed("none", f"{job.source} is no folder any more"))
        return WorkPlace(root=job.source)

    async def _add_worktree(self, job: PlannedJob, work: Path) -> WorkPlace:
        repository, base = job.repository, job.base
        assert repository is not None and base is not None
        command = git.add_command(repository, work, base)
        async with self._lock(repository.common):
            await self._run("worktree", command, git.git_environment())
        admin = git.admin_folder(work)
        inside = job.source.relative_to(repository.top)
        root = work / inside
        if not root.is_dir():
            raise SetupFailed(setup_failed("worktree", f"{inside} is not in the commit {base[:12]}"))
        return WorkPlace(root=root, work=work, admin=admin)

    async def _copy(self, job: PlannedJob, work: Path) -> WorkPlace:
        size = await trio.to_thread.run_sync(size_below, job.source, self._folder, self._copy_max)
        if size > self._copy_max:
            message = f"{job.source} has more than {self._copy_max} bytes: raise --copy-max, or use another isolation"
            raise SetupFailed(setup_failed("copy_max", message))
        work.mkdir(mode=0o700)
        for command in _copy_commands(job.source, work, self._folder):
            await self._run("copy", command, plain_environment({"LC_ALL": "C"}))
        return WorkPlace(root=work, work=work)

    async def _run(self, reason: str, command: tuple[str, ...], environment: dict[str, str]) -> None:
        ended = await self._commands.run(command, self._folder, environment)
        if ended.exit_code != 0:
            end = setup_failed(reason, f"its work folder could not be made: {words_of(ended)}")
            raise SetupFailed(msgspec.structs.replace(end, out_of_room=is_out_of_room(ended)))

    async def patch(self, place: WorkPlace, base: str, attempt: Path) -> Patch:
        """Write down what was changed since the commit ``base``; when this returns it is on the disk.

        Raises `PatchFailed`.
        """
        work, admin = place.work, place.admin
        assert work is not None and admin is not None
        path, index = attempt / PATCH, attempt / "index.tmp"
        try:
            environment = git.worktree_environment(admin, work, index)
            ended = await self._commands.run(git.patch_command(base, path), work, environment)
            if ended.exit_code != 0:
                raise PatchFailed(words_of(ended))
            digest = await trio.to_thread.run_sync(_seal, path)
        except OSError as error:
            raise PatchFailed(error.strerror or str(error)) from None
        return Patch(path=path, sha256=digest, changes=git.count_changes(ended.stdout))

    async def keep_as_ref(self, place: WorkPlace, attempt: Path, name: str, message: str) -> str:
        """Make a commit of what `patch` found, under ``name``; returns what went wrong, empty: nothing."""
        work, admin = place.work, place.admin
        assert work is not None and admin is not None
        environment = git.worktree_environment(admin, work, attempt / "index.tmp")
        ended = await self._commands.run(git.ref_command(name, message), work, environment)
        return "" if ended.exit_code == 0 else words_of(ended)

    async def remove(self, work: Path, common: str | None) -> bool:
        """Remove a work folder, of the repository ``common`` if it is a worktree; False if that takes too long."""
        with trio.move_on_after(CLEAN_UP_SECONDS) as limit:
            ended = await self._commands.run(git.remove_command(work, common), self._folder, git.git_environment())
            return ended.exit_code == 0
        return not limit.cancelled_caught

    async def prune(self, common: str) -> None:
        """Let git forget the worktrees whose folders are gone."""
        with trio.move_on_after(CLEAN_UP_SECONDS):
            await self._commands.run(git.prune_command(common), self._folder, git.git_environment())


def _seal(path: Path) -> str:
    path.chmod(0o600)
    sync_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_below(source: Path, left_out: Path, enough: int) -> int:
    """The bytes of all files below ``source`` but those in ``left_out``; counting ends once it is over ``enough``."""
    total = 0
    waiting = [source]
    while waiting and total <= enough:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if Path(entry.path) != left_out:
                        waiting.append(Path(entry.path))
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _copy_commands(source: Path, work: Path, left_out: Path) -> Iterator[tuple[str, ...]]:
    """Commands that copy what is in ``source`` to the empty folder ``work``, but the folder ``left_out``.

    Where that lies deep inside, the folders above it are gone through one by one.
    """
    copy = ("cp", "-a", "--reflink=auto") if sys.platform.startswith("linux") else ("cp", "-a")
    if not left_out.is_relative_to(source):
        yield (*copy, "--", f"{source}/.", str(work))
        return
    names = sorted(os.listdir(source))  # noqa: PTH208 - names are enough
    inside = left_out.relative_to(source).parts
    others = [f"{source}/{name}" for name in names if name != inside[0]]
    for start in range(0, len(others), _NAMES_IN_A_COMMAND):
        yield (*copy, "--", *others[start : start + _NAMES_IN_A_COMMAND], str(work))
    if len(inside) > 1:
        deeper = work / inside[0]
        yield ("mkdir", "-m", "700", "--", str(deeper))
        yield from _copy_commands(source / inside[0], deeper, left_out)
