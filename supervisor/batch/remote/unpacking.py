"""On the machine of an attempt: what was brought there, made ready to work on; each parcel once for all attempts."""

from __future__ import annotations

import tarfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from supervisor.batch import git
from supervisor.batch.commands import Commands, words_of
from supervisor.batch.core.outcome import setup_failed
from supervisor.batch.git import Repository
from supervisor.batch.isolation import SetupFailed
from supervisor.batch.plan import PlannedJob
from supervisor.batch.remote.grounds import PARCELS, parcel_lock, remove
from supervisor.batch.remote.order import Extras, ParcelName
from supervisor.batch.remote.parcels import BASE_REF

LOOK_AGAIN_SECONDS = 0.1


async def settle(job: PlannedJob, parcel: ParcelName | None, grounds: Path, commands: Commands) -> PlannedJob:
    """The job as it is to be made here: its folder or repository is the one that was brought. Raises `SetupFailed`."""
    if parcel is None:
        return job
    try:
        unpacked = await _unpack(parcel, grounds / PARCELS, commands)
    except (OSError, tarfile.TarError) as error:
        message = f"what was brought to this machine can't be unpacked: {getattr(error, 'strerror', None) or error}"
        number = error.errno if isinstance(error, OSError) else None
        raise SetupFailed(setup_failed(parcel.kind, message, number)) from None
    if parcel.kind == "copy":
        return msgspec.structs.replace(job, source=unpacked)
    assert job.repository is not None
    return msgspec.structs.replace(job, repository=Repository(top=job.repository.top, common=str(unpacked)))


@asynccontextmanager
async def parcel_of(common: str) -> AsyncGenerator[None, None]:
    """While the block runs no other attempt on this machine makes a worktree of what was unpacked at ``common``."""
    while True:
        with parcel_lock(Path(common).parent, Path(common).name, wait=False) as is_ours:
            if is_ours:
                yield
                return
        await trio.sleep(LOOK_AGAIN_SECONDS)


async def _unpack(parcel: ParcelName, parcels: Path, commands: Commands) -> Path:
    unpacked, done = parcels / parcel.key, parcels / f"{parcel.key}.done"
    async with parcel_of(str(unpacked)):
        if not done.exists():
            await _unpack_anew(parcel, parcels / f"{parcel.key}.packed", unpacked, commands)
            done.touch()
            (parcels / f"{parcel.key}.packed").unlink()
    return unpacked


async def _unpack_anew(parcel: ParcelName, packed: Path, unpacked: Path, commands: Commands) -> None:
    await trio.to_thread.run_sync(remove, unpacked)  # of one who died over it
    if parcel.kind == "copy":
        await trio.to_thread.run_sync(_extract, packed, unpacked, abandon_on_cancel=True)
    else:
        await _clone(packed, unpacked, parcel.extras, commands)


def _extract(packed: Path, unpacked: Path) -> None:
    unpacked.mkdir(mode=0o700)
    with tarfile.open(packed) as archive:
        if hasattr(tarfile, "fully_trusted_filter"):
            archive.extractall(unpacked, filter="fully_trusted")  # the person's own files, as they were
        else:
            archive.extractall(unpacked)


async def _clone(bundle: Path, repository: Path, extras: Extras, commands: Commands) -> None:
    """A bare repository with the history of the bundle's commit."""
    # Its header tells the kind of its hashes. Source: gitformat-bundle(5).
    kind = "sha256" if b"@object-format=sha256" in bundle.open("rb").read(200) else "sha1"
    await _git(commands, "init", "--quiet", "--bare", f"--object-format={kind}", "--template=", str(repository))
    (repository / "info").mkdir(exist_ok=True)
    for name, content in (
        ("shallow", extras.shallow),
        ("info/exclude", extras.exclude),
        ("info/attributes", extras.attributes),
    ):
        if content:
            (repository / name).write_text(content)
    for name, value in extras.settings.items():
        await _git(commands, f"--git-dir={repository}", "config", name, value)
    await _git(
        commands, f"--git-dir={repository}", "fetch", "--quiet", "--no-tags", str(bundle), f"{BASE_REF}:{BASE_REF}"
    )


async def _git(commands: Commands, *words: str) -> None:
    await _run(commands, (*git.GIT, *words))


async def _run(commands: Commands, command: Sequence[str]) -> None:
    ended = await commands.run(command, Path("/"), git.git_environment())
    if ended.exit_code != 0:
        raise OSError(words_of(ended))
