"""Where a machine keeps what it needs for a batch, and how that is cleared away.

A folder for each run of a batch, below that for temporary files: the parcels that were brought, and a folder for
each attempt while it runs. Nothing here imports trio: it also runs in the processes of a cluster.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from supervisor.batch.git import remove_command
from supervisor.batch.process_trees import end_tree, start_time
from supervisor.batch.remote.token import Token, read_token

PARCELS = "parcels"
PLACE_VARIABLE = "RAY_CORRAL_GROUNDS"
"""Where the folders are made instead, in a cluster that is gone with the batch. (No attempt's process keeps it.)"""
REMOVE_SECONDS = 10.0


def make_grounds(token: Token) -> Path:
    """Make that folder; raises `OSError`, also where somebody else has put one in its place."""
    above = _all_grounds(token.batch_id)
    with suppress(FileExistsError):
        above.mkdir(mode=0o700)
    found = above.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{above} is not a folder of ours")
    folder = above / str(token.epoch)
    (folder / PARCELS).mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def keep(work: Path, token: Token) -> Path:
    """Move a work folder that must not be lost to where nothing clears it away; returns where. Raises `OSError`."""
    name = f"corral-kept-{token.batch_id}-{token.job_id}-{token.n}-"
    kept = Path(tempfile.mkdtemp(prefix=name)) / work.name
    shutil.move(work, kept)
    return kept


def remove(folder: Path) -> None:
    """Remove a folder, whatever modes its files were given; blocks for 10 seconds at most."""
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            remove_command(folder, None), stdin=subprocess.DEVNULL, capture_output=True, timeout=REMOVE_SECONDS
        )


@contextmanager
def parcel_lock(parcels: Path, key: str, *, wait: bool = True) -> Generator[bool, None, None]:
    """While the block runs nobody else brings or unpacks the parcel; True if that is so, False: somebody does now."""
    descriptor = os.open(parcels / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def clear(batch_id: str, before: int) -> int:
    """End what runs of the batch older than the run ``before`` left on this machine; returns how many processes.

    Blocks for as long as they take to end.
    """
    ended = 0
    for pid, started in _processes(batch_id, before):
        end_tree(pid, started)
        ended += 1
    above = _all_grounds(batch_id)
    if above.is_dir() and not above.is_symlink():
        for folder in above.iterdir():
            if re.fullmatch("[0-9]+", folder.name) and int(folder.name) < before:
                remove(folder)
    return ended


def leave(batch_id: str, epoch: int) -> int:
    """As `clear`, of the run ``epoch`` too: its last attempt has ended."""
    ended = clear(batch_id, epoch + 1)
    with suppress(OSError):
        _all_grounds(batch_id).rmdir()
    return ended


def _processes(batch_id: str, before: int) -> Iterator[tuple[int, str | None]]:
    """The processes of older runs that make attempts, each with its start time. Source: proc(5), /proc/pid/cmdline."""
    with suppress(FileNotFoundError), os.scandir("/proc") as entries:
        for entry in entries:
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                started = start_time(int(entry.name))
                words = Path(f"/proc/{entry.name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            for token in filter(None, (read_token(word.decode(errors="replace")) for word in words)):
                if token.batch_id == batch_id and token.epoch < before:
                    yield int(entry.name), started


def _all_grounds(batch_id: str) -> Path:
    place = os.environ.get(PLACE_VARIABLE) or tempfile.gettempdir()
    return Path(place) / f"corral-{os.getuid()}-{batch_id}"
