"""The demo shows what is true: it runs to its end here, and fails where something it shows is not so."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "scripts" / "demo"
CORRAL = Path(sys.executable).parent / "corral"


def run_demo(tmp_path: Path, venv: Path = Path(sys.prefix)) -> subprocess.CompletedProcess[str]:
    """Run it with the corral that is installed in ``venv``; its folder is made in ``tmp_path``."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    environment = os.environ | {"DEMO_VENV": str(venv), "TMPDIR": str(folder), "CORRAL_MAX_TURNS": "1"}
    ended = subprocess.run([DEMO], env=environment, capture_output=True, text=True, timeout=150, cwd=tmp_path)
    assert list(folder.iterdir()) == [], "the demo takes its folder away again"
    return ended


def with_other_corral(tmp_path: Path, script: str) -> Path:
    """An environment whose corral is ``script``; ``$corral`` in it is the real one."""
    binaries = tmp_path / "venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (binaries / "corral").write_text(f"#!/bin/bash\nset -o pipefail\ncorral={shlex.quote(str(CORRAL))}\n{script}\n")
    for file in binaries.iterdir():
        file.chmod(0o755)
    return binaries.parent


def test_the_demo_mends_a_project_with_four_sub_agents_and_leaves_nothing_behind(tmp_path: Path) -> None:
    ended = run_demo(tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    shown = ended.stdout
    assert "Scripted model: no AI. Processes, tools and files are real." in shown
    assert "-        seconds = int(number) * UNITS[unit]\n" in shown
    assert "+        seconds += int(number) * UNITS[unit]\n" in shown
    rows = re.findall(
        r"^  (main|explore \(source\)|explore \(tests\)|verify \(run\)|task \(mend\)) +(\d+) ", shown, re.M
    )
    assert len({name for name, _ in rows}) == len({pid for _, pid in rows}) == 5
    assert re.search(r"At one moment [45] agents were at work", shown)
    assert "Left behind: none." in shown
    assert "--provider scripted --script " in shown
    assert "--provider lmstudio --model MODEL" in shown


def test_tools_that_do_not_work_break_the_demo(tmp_path: Path) -> None:
    ended = run_demo(tmp_path, with_other_corral(tmp_path, 'exec "$corral" "$@" --trust plan'))
    assert ended.returncode == 1
    assert "the scenario has no rule for agent" in ended.stdout
    assert "durations.py was to change, not nothing" in ended.stderr
    assert "the tests of the project still fail" in ended.stderr


def test_sums_that_are_wrong_and_a_process_that_stays_break_the_demo(tmp_path: Path) -> None:
    script = """
        [ "$1" = --version ] && exec "$corral" --version
        "$corral" "$@" | sed '$ s/"api_calls":/"api_calls":1/g'
        status=$?
        (cd "$4" && exec sleep 60 >/dev/null 2>&1) &
        exit $status
    """
    ended = run_demo(tmp_path, with_other_corral(tmp_path, script))
    left = [int(pid) for pid in re.findall(r"process (\d+) was left behind", ended.stderr)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert ended.returncode == 1, ended.stdout
    assert "the agents' usage does not add up to the run's" in ended.stderr
    assert len(left) == 1
