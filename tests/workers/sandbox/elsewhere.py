"""Running a test's code as somebody else, or with a file system of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.stubs.ordinary_user import prefix_of_nobody

CHECKOUT = Path(__file__).resolve().parents[3]
SECONDS = 90.0


def run_as_nobody(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in the checkout as an ordinary user whose home is ``folder``; skips where that can't be done."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    with prefix_of_nobody() as prefix:
        return subprocess.run(
            [*prefix, *command],
            cwd=CHECKOUT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )


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
