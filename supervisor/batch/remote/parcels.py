"""What the machines of a cluster need of this one: folders and commits, packed once each and brought by the cluster."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

import msgspec
import trio

from supervisor.batch import git
from supervisor.batch.core.outcome import setup_failed
from supervisor.batch.isolation import SetupFailed, size_below
from supervisor.batch.plan import PlannedJob
from supervisor.batch.remote.order import Extras, ParcelName

PIECE_BYTES = 8 * 1024 * 1024
_BESIDE = "bundle-"
BASE_REF = "refs/heads/base"
_SETTINGS = ("user.name", "user.email", "core.autocrlf", "core.eol", "core.filemode", "core.symlinks")
"""Settings of a repository that change what its worktrees hold or who commits in them."""


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """Something packed; ``pieces`` are the cluster's handles of its bytes, in order."""

    name: ParcelName
    pieces: tuple[object, ...]


class Parcels:
    """Packs what jobs need. ``store`` gives the cluster some bytes and blocks; ``folder`` is the batch's own."""

    def __init__(self, store: Callable[[bytes], object], folder: Path, *, copy_max: int) -> None:
        self._store = store
        self._folder = folder
        self._copy_max = copy_max
        self._packed: dict[str, Parcel] = {}
        self._locks: dict[str, trio.Lock] = {}
        for left in folder.glob(f"{_BESIDE}*"):  # by a run that was killed while it packed
            shutil.rmtree(left, ignore_errors=True)

    async def of(self, job: PlannedJob) -> Parcel | None:
        """What the job needs, packed now or before; None for one whose folder every machine has. Raises `SetupFailed`.

        Packed once, as it is when the first job needs it.
        """
        if job.isolation not in ("copy", "worktree"):
            return None
        key = _key(job)
        async with self._locks.setdefault(key, trio.Lock()):
            if key not in self._packed:
                self._packed[key] = await self._pack(job, key)
        return self._packed[key]

    async def _pack(self, job: PlannedJob, key: str) -> Parcel:
        pack = self._pack_folder if job.isolation == "copy" else self._pack_commit
        try:
            return await trio.to_thread.run_sync(pack, job, key)
        except (OSError, tarfile.TarError) as error:
            why = getattr(error, "strerror", None) or error
            raise SetupFailed(setup_failed(job.isolation, f"{job.source} can't be packed: {why}")) from None

    def _pack_folder(self, job: PlannedJob, key: str) -> Parcel:
        if size_below(job.source, self._folder, self._copy_max) > self._copy_max:
            message = f"{job.source} has more than {self._copy_max} bytes: raise --copy-max, or use another isolation"
            raise SetupFailed(setup_failed("copy_max", message))
        pieces = _Pieces(self._store)

        def left_in(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
            trio.from_thread.check_cancelled()
            return None if job.source / member.name == self._folder else member

        with tarfile.open(fileobj=cast("IO[bytes]", pieces), mode="w|", format=tarfile.PAX_FORMAT) as archive:
            archive.add(job.source, arcname=".", filter=left_in)
        return Parcel(name=ParcelName(kind="copy", key=key), pieces=pieces.finish())

    def _pack_commit(self, job: PlannedJob, key: str) -> Parcel:
        repository, base = job.repository, job.base
        assert repository is not None and base is not None
        extras = _extras(Path(repository.common), repository.top)
        pieces = _Pieces(self._store)
        with _repository_of_commit(Path(repository.common), base, extras.shallow, self._folder) as beside:
            why = _bundle(beside, pieces)
        if why:
            raise SetupFailed(setup_failed("worktree", f"git can't bundle the commit {base[:12]}: {why}"))
        return Parcel(name=ParcelName(kind="worktree", key=key, extras=extras), pieces=pieces.finish())


def _key(job: PlannedJob) -> str:
    if job.isolation == "copy":
        return "folder-" + hashlib.sha256(str(job.source).encode(errors="surrogateescape")).hexdigest()[:24]
    assert job.repository is not None
    place = hashlib.sha256(job.repository.common.encode(errors="surrogateescape")).hexdigest()[:12]
    return f"commit-{place}-{job.base}"


class _Pieces:
    """A file to write to: what is written goes to the cluster in pieces."""

    def __init__(self, store: Callable[[bytes], object]) -> None:
        self._store = store
        self._waiting = bytearray()
        self._handles: list[object] = []

    def write(self, data: bytes, /) -> int:
        """Take the next bytes."""
        self._waiting += data
        while len(self._waiting) >= PIECE_BYTES:
            self._handles.append(self._store(bytes(self._waiting[:PIECE_BYTES])))
            del self._waiting[:PIECE_BYTES]
        return len(data)

    def finish(self) -> tuple[object, ...]:
        """Everything was written."""
        if self._waiting:
            self._handles.append(self._store(bytes(self._waiting)))
        return tuple(self._handles)


@contextmanager
def _repository_of_commit(common: Path, base: str, shallow: str, folder: Path) -> Generator[Path, None, None]:
    """A repository with no files of its own, in which ``base`` has a name: a bundle needs one, and the person's own
    repository is left alone."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=_BESIDE) as made:
        beside = Path(made) / "base.git"
        kind = "sha256" if len(base) == 64 else "sha1"
        _git("init", "--quiet", "--bare", f"--object-format={kind}", "--template=", str(beside))
        (beside / "objects" / "info").mkdir(exist_ok=True)
        (beside / "objects" / "info" / "alternates").write_text(f"{common / 'objects'}\n", errors="surrogateescape")
        if shallow:
            (beside / "shallow").write_text(shallow)
        _git(f"--git-dir={beside}", "update-ref", BASE_REF, base)
        yield beside


def _bundle(repository: Path, pieces: _Pieces) -> str:
    """Write the bundle of `BASE_REF` to ``pieces``; returns what went wrong, empty: nothing."""
    command = [*git.GIT, f"--git-dir={repository}", "bundle", "create", "--quiet", "-", BASE_REF]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, env=git.git_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said
        ) as process,
    ):
        assert process.stdout is not None
        try:
            while data := process.stdout.read(1 << 20):
                trio.from_thread.check_cancelled()
                pieces.write(data)
        except BaseException:
            process.kill()
            raise
        if process.wait() == 0:
            return ""
        said.seek(0)
        return said.read(2000).decode(errors="replace").strip() or f"exit code {process.returncode}"


def _git(*words: str) -> None:
    """Raises `OSError` where git fails."""
    done = subprocess.run(
        [*git.GIT, *words], env=git.git_environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise OSError(done.stderr.decode(errors="replace").strip() or "git failed")


def _extras(common: Path, top: str) -> Extras:
    def content(name: str) -> str:
        with suppress(OSError):
            return (common / name).read_text(errors="replace")
        return ""

    told = {name: git.ask(Path(top), "config", "--local", "--get", name) for name in _SETTINGS}
    return Extras(
        shallow=content("shallow"),
        exclude=content("info/exclude"),
        attributes=content("info/attributes"),
        settings={name: value.rstrip("\n") for name, value in told.items() if value is not None},
    )
