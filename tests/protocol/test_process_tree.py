from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.tools.project import HeldPipe

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import subprocess, sys
from protocol.process_tree import become_subreaper, kill_strays
become_subreaper()
subprocess.run(["sh", "-c", sys.argv[1]], stdin=subprocess.DEVNULL)
print("left", flush=True)
sys.stdin.readline()
print(kill_strays(), flush=True)
print(kill_strays(0), flush=True)
"""

LEFT_BEHIND = {
    "in the background": "sleep 60 &",
    "with nohup": "nohup sleep 60 >/dev/null 2>&1 &",
    "with setsid": "setsid sleep 60 &",
    "forked twice": "(setsid sh -c 'sleep 60 & sleep 60 &' &)",
    "deaf to signals": "setsid sh -c \"trap '' TERM HUP INT; while :; do sleep 1; done\" &",
    "stopped": "setsid sh -c 'kill -STOP $$' &",
    "many, three deep": "for i in 1 2 3 4 5 6 7 8; do setsid sh -c 'sh -c \"sleep 60; true\"; true' & done",
}


@pytest.fixture
def held_pipe(tmp_path: Path) -> Iterator[HeldPipe]:
    pipe = HeldPipe(tmp_path / "held")
    yield pipe
    pipe.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has subreapers")
@pytest.mark.parametrize("command", LEFT_BEHIND.values(), ids=LEFT_BEHIND.keys())
async def test_whatever_a_command_left_behind_is_ended_with_the_worker(held_pipe: HeldPipe, command: str) -> None:
    argv = [sys.executable, "-c", WORKER, f"exec 9>'{held_pipe.path}'; {command}"]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "left\n"
        assert held_pipe.is_held()
        output, _ = worker.communicate("\n", timeout=20)
        assert output == "True\nTrue\n"
    await held_pipe.wait_until_let_go()


def test_processes_of_others_are_left_alone() -> None:
    bystander = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        argv = [sys.executable, "-c", WORKER, "sleep 60 &"]
        subprocess.run(argv, cwd=ROOT, input="\n", text=True, stdout=subprocess.DEVNULL, timeout=20, check=True)
        assert bystander.poll() is None
    finally:
        bystander.communicate(b"", timeout=10)
    assert bystander.returncode == 0


MARKED = """
import os, subprocess, sys
from protocol.process_tree import MARK_VARIABLE, become_subreaper, end_marked, kill_strays
become_subreaper()
unmarked = {"PATH": os.environ["PATH"]}
subprocess.run(["sh", "-c", sys.argv[1]], stdin=subprocess.DEVNULL, env={**unmarked, MARK_VARIABLE: "abc"})
others = [subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=each) for each in (
    unmarked, {**unmarked, MARK_VARIABLE: "abcd"}, {**unmarked, "X" + MARK_VARIABLE: "abc"})]
print(end_marked("abc"), [other.poll() for other in others], flush=True)
kill_strays()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux shows environments in /proc")
@pytest.mark.parametrize(
    "command",
    [*LEFT_BEHIND.values(), "sh -c 'env -i sleep 60; true' &"],
    ids=[*LEFT_BEHIND, "below one, without the mark"],
)
async def test_whatever_carries_a_mark_is_ended_wherever_it_is(held_pipe: HeldPipe, command: str) -> None:
    argv = [sys.executable, "-c", MARKED, f"exec 9>'{held_pipe.path}'; {command}"]
    done = subprocess.run(argv, cwd=ROOT, text=True, stdout=subprocess.PIPE, timeout=20, check=True)
    assert done.stdout == "True [None, None, None]\n"
    await held_pipe.wait_until_let_go()


WORKER_WITHOUT_PROC = """
import subprocess, sys
from protocol import process_tree
process_tree._process_table = process_tree._process_table_of_ps
subprocess.Popen(["sh", "-c", sys.argv[1]], stdout=subprocess.PIPE).stdout.read(1)
print(process_tree.kill_strays(), flush=True)
"""


@pytest.mark.skipif(shutil.which("ps") is None, reason="no ps here")
async def test_without_proc_children_are_found_through_ps(held_pipe: HeldPipe) -> None:
    argv = [sys.executable, "-c", WORKER_WITHOUT_PROC, f"exec 9>'{held_pipe.path}'; echo; sleep 60; sleep 60"]
    done = subprocess.run(argv, cwd=ROOT, text=True, stdout=subprocess.PIPE, timeout=20, check=True)
    assert done.stdout == "True\n"
    await held_pipe.wait_until_let_go()
