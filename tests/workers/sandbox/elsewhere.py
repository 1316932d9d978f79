"""Running a test's code as somebody else, or with a file system of its own."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
NOBODY = 65_534
SECONDS = 90.0


@contextmanager
def folder_of_nobody() -> Generator[Path, None, None]:
    """A folder that belongs to an ordinary user, who can come to it; the tests must run as root."""
    folder = Path(tempfile.mkdtemp(prefix="corral-test-"))
    try:
        os.chown(folder, NOBODY, NOBODY)
        yield folder
    finally:
        shutil.rmtree(folder)


def run_as_nobody(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in the checkout as an ordinary user whose home is ``folder``; skips where that can't be done."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with tempfile.TemporaryDirectory(prefix="corral-test-") as spare:
        before = [*_with_a_way_to(Path(sys.base_prefix), spare), *as_nobody]
        able = subprocess.run([*before, sys.executable, "-c", "import trio"], cwd="/", env=environment, check=False)
        if able.returncode != 0:
            pytest.skip("an ordinary user can't come to this interpreter")
        return subprocess.run(
            [*before, *command],
            cwd=CHECKOUT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )


def _with_a_way_to(prefix: Path, spare: str) -> list[str]:
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


def run_with_mounts(mounts: Sequence[str], code: str, folder: Path) -> str:
    """What Python ``code`` prints, run where the ``mounts`` (shell commands) are made first; skips where none can be.

    The mounts are in a namespace of their own: nobody else sees them, and they are gone with the process.
    """
    script = " && ".join([*mounts, 'exec "$0" -c "$1" "$2"'])
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, sys.executable, code, str(folder)]
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=SECONDS, check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no mount of our own: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout
