"""The shell scripts: what they run, and on machines that lack something one clear sentence; no work is done twice.

Each test has a small checkout of its own and a PATH on which no interpreter is found but the test's own python3, a
script that notes what it is asked for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TOOLS = ("bash", "basename", "cat", "chmod", "cmp", "dirname", "getconf", "head", "mkdir", "sed", "tail")
PYPROJECT = '[project]\nname = "corral"\n\n[dependency-groups]\ntest = ["one>=1", "two"]\ncheck = ["three"]\n'
SCRIPT = """#!/usr/bin/env bash
set -u
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment "$@"
echo "prepared $PYTHON"
"""
OLD_PYTHON = """#!/usr/bin/env bash
case "$2" in
  *version_info*) exit 1 ;;
  *platform*) echo 3.9.2 ;;
esac
"""
PYTHON_WITHOUT_VENV = """#!/usr/bin/env bash
case "$2" in
  *"import venv"*) exit 1 ;;
esac
"""
# Stands for the interpreter of the system and, once "made", for that of .venv; both note what they are asked for.
GOOD_PYTHON = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case "$*" in
  "-m venv"*) mkdir -p "$4/bin"; cat "$0" >"$4/bin/python"; chmod +x "$4/bin/python" ;;
  *dependency-groups*) printf 'one>=1\\ntwo\\nthree\\n' ;;
  "-m pip"*) echo "no index at hand"; exit "${PIP_EXIT:-0}" ;;
  "-m ${FAILING:-nothing}"*) exit 3 ;;
esac
"""


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A checkout with our scripts and ``scripts/prepare``; ``calls`` is what its interpreter was asked for."""

    root: Path
    path: Path
    calls: Path

    def run(self, script: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the checkout to its end."""
        return subprocess.run(
            ["bash", self.root / script, *arguments],
            env={"PATH": str(self.path), "CALLS": str(self.calls), **environ},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def prepare(self, *groups: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Prepare the environment; without ``groups`` for both there are."""
        return self.run("scripts/prepare", *(groups or ("test", "check")), **environ)

    def take_calls(self) -> list[str]:
        """What the interpreter was asked for since the last time, without its looks at itself."""
        calls = self.calls.read_text(encoding="utf-8").splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return [call for call in calls if call.startswith("-m ")]


def make_checkout(tmp_path: Path, python: str) -> Checkout:
    root, path = tmp_path / "checkout", tmp_path / "bin"
    (root / "scripts").mkdir(parents=True)
    (root / ".ci").mkdir()
    path.mkdir()
    for script in ("scripts/environment.sh", "scripts/check", "scripts/test", ".ci/run"):
        shutil.copy(ROOT / script, root / script)
    (root / "scripts" / "prepare").write_text(SCRIPT, encoding="utf-8")
    (root / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (path / tool).symlink_to(found)
    if python:
        (path / "python3").write_text(python, encoding="utf-8")
        (path / "python3").chmod(0o755)
    return Checkout(root=root, path=path, calls=tmp_path / "calls")


@pytest.mark.parametrize(("python", "found"), [(OLD_PYTHON, "3.9.2"), ("", "missing")])
def test_a_python_that_is_too_old_is_named_with_what_is_needed(tmp_path: Path, python: str, found: str) -> None:
    ended = make_checkout(tmp_path, python).prepare()
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1] == f"prepare: Python 3.11 or newer is needed; python3 here is {found}."


def test_a_python_without_venv_is_told_how_to_get_it(tmp_path: Path) -> None:
    ended = make_checkout(tmp_path, PYTHON_WITHOUT_VENV).prepare()
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "has no venv module; install it (on Debian and Ubuntu: apt install python3-venv)" in ended.stderr


def test_the_project_and_its_groups_are_installed_once(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path, GOOD_PYTHON)
    venv = checkout.root / ".venv"
    ended = checkout.prepare()
    assert (ended.returncode, ended.stdout) == (0, f"prepared {venv}/bin/python\n")
    pip = f"-m pip install --disable-pip-version-check --editable {checkout.root} one>=1 two three"
    assert checkout.take_calls() == [f"-m venv --clear {venv}", pip]

    again = checkout.prepare()
    assert (again.returncode, again.stdout, again.stderr) == (0, ended.stdout, "")
    assert checkout.take_calls() == []

    assert checkout.prepare("test").returncode == 0
    assert checkout.take_calls() == []

    (checkout.root / "pyproject.toml").write_text(PYPROJECT + "\n# changed\n", encoding="utf-8")
    assert checkout.prepare().returncode == 0
    assert checkout.take_calls() == [pip]


def test_a_checkout_that_was_moved_is_installed_again(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path, GOOD_PYTHON)
    checkout.prepare()
    checkout.take_calls()
    moved = Checkout(root=tmp_path / "elsewhere", path=checkout.path, calls=checkout.calls)
    os.rename(checkout.root, moved.root)  # noqa: PTH104 - the tree moves, no path object does
    assert moved.prepare().returncode == 0
    assert [call.partition(" --editable ")[2] for call in moved.take_calls()] == [f"{moved.root} one>=1 two three"]


def test_a_failed_installation_says_what_pip_said_and_is_tried_again(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path, GOOD_PYTHON)
    failed = checkout.prepare(PIP_EXIT="1")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "no index at hand" in failed.stderr
    assert "check the network" in failed.stderr.splitlines()[-1]
    assert checkout.prepare().returncode == 0


def prepared_checkout(tmp_path: Path) -> Checkout:
    checkout = make_checkout(tmp_path, GOOD_PYTHON)
    assert checkout.prepare().returncode == 0
    checkout.take_calls()
    return checkout


@pytest.mark.parametrize(
    ("arguments", "passed_on"),
    [
        ([], "not soak and not interop"),
        (["--soak"], "not interop"),
        (["--interop"], "not soak"),
        (["--soak", "--interop"], ""),
        (["tests/house", "-k", "law"], "not soak and not interop tests/house -k law"),
        (["-x", "--soak", "tests/house"], "not interop -x tests/house"),
    ],
)
def test_soak_and_interop_tests_run_only_when_asked_for(tmp_path: Path, arguments: list[str], passed_on: str) -> None:
    checkout = prepared_checkout(tmp_path)
    assert checkout.run("scripts/test", *arguments).returncode == 0
    (call,) = checkout.take_calls()
    processes = min(8, 2 * os.sysconf("SC_NPROCESSORS_ONLN"))
    assert call == f"-m pytest -n {processes} --dist worksteal -m {passed_on}"


@pytest.mark.parametrize(
    ("failing", "last_line"),
    [
        ("nothing", "check passed"),
        ("mypy", "check failed: mypy"),
        ("ruff", "check failed: ruff check, ruff format"),
        ("pyright", "check failed: pyright"),
        ("scripts.import_law", "check failed: import law"),
        ("scripts.size_limits", "check failed: size limits"),
    ],
)
def test_check_runs_all_its_parts_and_names_what_failed(tmp_path: Path, failing: str, last_line: str) -> None:
    checkout = prepared_checkout(tmp_path)
    ended = checkout.run("scripts/check", FAILING=failing)
    assert ended.stdout.splitlines()[-1] == last_line
    assert ended.returncode == (0 if failing == "nothing" else 1)
    calls = [call.split()[1] for call in checkout.take_calls()]
    parts = ["ruff", "ruff", "mypy", "pyright", "pyright", "scripts.import_law", "scripts.size_limits"]
    assert calls == [part for number, part in enumerate(parts) if (failing, number) != ("pyright", 4)]


@pytest.mark.parametrize(("failing", "status"), [("nothing", 0), ("mypy", 1), ("pytest", 1)])
def test_the_continuous_integration_runs_both_parts_whatever_the_first_says(
    tmp_path: Path, failing: str, status: int
) -> None:
    checkout = prepared_checkout(tmp_path)
    assert checkout.run(".ci/run", FAILING=failing).returncode == status
    calls = [call.split()[1] for call in checkout.take_calls()]
    assert "mypy" in calls
    assert calls[-1] == "pytest"
