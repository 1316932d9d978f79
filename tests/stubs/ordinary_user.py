"""An ordinary user for what tests that run as root start: nobody, with a folder of their own."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65_534


@contextmanager
def folder_of_nobody() -> Generator[Path, None, None]:
    """A folder that belongs to an ordinary user, who can come to it; the tests must run as root."""
    folder = Path(tempfile.mkdtemp(prefix="corral-test-"))
    try:
        os.chown(folder, NOBODY, NOBODY)
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def prefix_of_nobody() -> Generator[tuple[str, ...], None, None]:
    """What is put before a command so that an ordinary user runs it, in the same process; skips where none can.

    The tests must run as root.
    """
    with tempfile.TemporaryDirectory(prefix="corral-test-") as spare:
        as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
        prefix = (*_way_to(Path(sys.base_prefix), spare), *as_nobody)
        if not _can_import_as(prefix):
            pytest.skip("an ordinary user can't come to this interpreter")
        yield prefix


def _can_import_as(prefix: tuple[str, ...]) -> bool:
    try:
        done = subprocess.run([*prefix, sys.executable, "-c", "import trio"], cwd="/", check=False, capture_output=True)
    except FileNotFoundError:  # no setpriv, or no unshare
        return False
    return done.returncode == 0


def _way_to(prefix: Path, spare: str) -> list[str]:
    """What to put before a command so that it finds ``prefix`` even below a folder that only root may enter.

    Such a folder is replaced, for that command alone, by an empty one that leads to nothing but ``prefix``.
    """
    closed = next((folder for folder in reversed(prefix.parents) if not folder.stat().st_mode & stat.S_IXOTH), None)
    if closed is None:
        return []
    script = (
        'mount --bind "$1" "$2" && mount -t tmpfs -o mode=755 none "$3" && mkdir -p "$1" && mount --bind "$2" "$1" '
        '&& shift 3 && exec "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", script, "sh", str(prefix), spare, str(closed)]
