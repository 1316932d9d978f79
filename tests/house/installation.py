"""The wheel, installed into an environment of its own; made once for all the tests that look at it."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BOUND = 60.0
"""Seconds that any command of these tests may take."""

TRAPS = (
    *("workers/__init__.py", "workers/start.py", "supervisor/__init__.py", "supervisor/cli.py", "protocol/__init__.py"),
    *("trio.py", "msgspec.py", "httpx.py", "json.py", "argparse.py", "socket.py", "sitecustomize.py"),
)


@dataclass(frozen=True, kw_only=True)
class Installation:
    """``python`` is the environment's interpreter, ``corral`` its command."""

    wheel: Path
    environment: Path

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def corral(self) -> Path:
        return self.environment / "bin" / "corral"


def run(command: list[str | Path], *, cwd: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end with nothing on its stdin."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )


def install_wheel(folder: Path) -> Installation:
    """Build the wheel below ``folder`` and install it into a new environment there, without a network.

    What corral depends on comes from the site-packages of this interpreter, named in a ``.pth`` file: as plain
    entries of the search path, so that the editable installation of this checkout is not among them.
    """
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    _must_pass(
        run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, environ=environ)
    )
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    _must_pass(run([sys.executable, "-m", "venv", "--without-pip", environment], cwd=folder, environ=environ))
    installed = Installation(wheel=wheel, environment=environment)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", installed.python, "--disable-pip-version-check"]
    _must_pass(run([*pip, "install", "--no-deps", "--no-index", wheel], cwd=folder, environ=environ))
    (packages,) = (environment / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n", encoding="utf-8")
    return installed


def set_traps(folder: Path) -> Path:
    """Fill ``folder`` with modules that would be imported in place of the real ones; the file that they write to."""
    sprung = folder.with_name(folder.name + "-sprung")
    for trap in TRAPS:
        file = folder / trap
        file.parent.mkdir(parents=True, exist_ok=True)
        source = f"with open({json.dumps(str(sprung))}, 'a') as sprung:\n    print(__name__, file=sprung)\n"
        file.write_text(source, encoding="utf-8")
    return sprung


def _must_pass(ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 0, ended.stdout + ended.stderr
