"""Programs of other projects, installed once into a cache folder of the tests and then used from there."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

SECONDS = 300.0
NEWEST_MINOR = 14
"""The newest Python that is looked for, 3.14."""

SCHEMA_PACKAGE = "@agentclientprotocol/sdk@2.4.0"


def npm_packages(*packages: str) -> Path:
    """The ``node_modules`` that holds the packages (``name@version``); needs npm."""

    def install(folder: Path) -> None:
        npm = shutil.which("npm")
        assert npm is not None, "npm must be installed for these tests"
        (folder / "package.json").write_text("{}")
        _run([npm, "install", "--no-audit", "--no-fund", *packages], folder)

    return _installed("npm", packages, install) / "node_modules"


def python_packages(*packages: str, at_least: tuple[int, int] = (3, 11)) -> Path:
    """An interpreter that has the packages (``name==version``), of the version ``at_least`` or a later one.

    Where this machine has no such interpreter the test is skipped.
    """
    base = interpreter(at_least)
    if base is None:
        pytest.skip(f"{packages[0]} needs Python {at_least[0]}.{at_least[1]} or later, and none was found")

    def install(folder: Path) -> None:
        _run([base, "-m", "venv", "venv"], folder)
        _run(["venv/bin/python", "-m", "pip", "install", "--quiet", *packages], folder)

    return _installed("python", (base, *packages), install) / "venv" / "bin" / "python"


def interpreter(at_least: tuple[int, int]) -> str | None:
    """The Python that runs this, or another one of this machine that is new enough; None where there is none."""
    if sys.version_info[:2] >= at_least:
        return os.path.realpath(sys.executable)  # whatever environment it is started from
    names = [f"python3.{minor}" for minor in range(at_least[1], NEWEST_MINOR + 1)]
    of_pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [shutil.which(name) for name in names]
    found += [str(path) for name in names for path in sorted(of_pyenv.glob(f"*/bin/{name}"))]
    return next((path for path in found if path is not None and _runs_as(path, at_least)), None)


def _runs_as(path: str, at_least: tuple[int, int]) -> bool:
    """Whether it starts and is new enough: a name of pyenv's on the PATH may stand for a version that is not chosen."""
    asked = [path, "-c", "import sys, venv; print(sys.version_info >= tuple(map(int, sys.argv[1:])))"]
    done = subprocess.run([*asked, *map(str, at_least)], capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.stdout.strip() == "True"


def _installed(kind: str, packages: Sequence[str], install: Callable[[Path], None]) -> Path:
    """The folder of an installation; made by one process while others wait, and taken for good only when whole."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "corral-tests"
    cache.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(repr(packages).encode()).hexdigest()[:12]
    folder = cache / f"{kind}-{name}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            install(folder)
            (folder / "installed").write_text("\n".join(packages))
    return folder


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
