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

SECONDS = 300.0

SCHEMA_PACKAGE = "@agentclientprotocol/sdk@2.4.0"


def npm_packages(*packages: str) -> Path:
    """The ``node_modules`` that holds the packages (``name@version``); needs npm."""

    def install(folder: Path) -> None:
        npm = shutil.which("npm")
        assert npm is not None, "npm must be installed for these tests"
        (folder / "package.json").write_text("{}")
        _run([npm, "install", "--no-audit", "--no-fund", *packages], folder)

    return _installed("npm", packages, install) / "node_modules"


def python_packages(*packages: str) -> Path:
    """An interpreter that has the packages (``name==version``)."""

    def install(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", "venv"], folder)
        _run(["venv/bin/python", "-m", "pip", "install", "--quiet", *packages], folder)

    return _installed("python", packages, install) / "venv" / "bin" / "python"


def _installed(kind: str, packages: Sequence[str], install: Callable[[Path], None]) -> Path:
    """The folder of an installation; made by one process while others wait, and taken for good only when whole."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "corral-tests"
    cache.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(repr((sys.version_info[:2], packages)).encode()).hexdigest()[:12]
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
