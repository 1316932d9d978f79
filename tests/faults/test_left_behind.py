"""Nobody is left behind: what commands detach from their agents is gone when a worker, or the supervisor, is killed.

Each kind of command by itself; `tests.faults.test_ends` has them all at once, at every end, twenty times.

That nothing is left is looked at after every run of a `Place`: descendants, a marker in the environment, and working
directories, a second after the end.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.scene import QUICK, model, run_with, scripted
from tests.stubs.corral_run import Place
from tests.stubs.faulty_corral import faulty_place
from tests.stubs.faulty_worker import Fault, FaultKind
from tests.stubs.model_server import ModelServer
from tests.stubs.process_table import process_table
from tests.stubs.replies import CallTuple

DETACHED = {
    "in the background": "sleep 600 &",
    "nohup": "nohup sleep 600 >/dev/null 2>&1 &",
    "setsid": "setsid sleep 600 &",
    "double fork": "(setsid sh -c 'sleep 600 & sleep 600' &)",
    "deaf to SIGTERM": "sh -c 'trap \"\" TERM HUP INT; sleep 600; sleep 600' &",
}
EACH_LINE = pytest.mark.parametrize("line", DETACHED.values(), ids=DETACHED)
STUCK: tuple[FaultKind, ...] = ("stuck", "stop", "loop")


def bash(call_id: str, line: str) -> CallTuple:
    return (call_id, "Bash", {"command": line})


@EACH_LINE
def test_nothing_is_left_of_an_agent_whose_worker_was_killed(tmp_path: Path, line: str) -> None:
    handler = scripted({"main": [[bash("end", f"{line}\nkill -9 $PPID; sleep 30")]]})
    run, _billed = run_with(Place(tmp_path), handler, "--no-restart")
    assert run.returncode == 1, run


@EACH_LINE
def test_nothing_is_left_of_a_run_whose_supervisor_was_killed(tmp_path: Path, line: str) -> None:
    handler = scripted({"main": [[bash("stay", f"{line}\necho begun; sleep 600")]]})
    with ModelServer(handler) as server, Place(tmp_path).start(server, *QUICK) as live:
        live.wait_for_output("begun")
        live.process.kill()
        live.finish(5, checked=False)


@pytest.mark.parametrize("kind", STUCK)
def test_nothing_is_left_of_a_worker_that_can_not_see_that_its_supervisor_was_killed(
    tmp_path: Path, kind: FaultKind
) -> None:
    place = faulty_place(tmp_path, Fault(agent="main", moment="tool", kind=kind))
    with ModelServer(model()) as server, place.start(server, *QUICK) as live:
        live.wait_for_output("begun")
        live.process.kill()
        live.finish(5, checked=False)


@pytest.mark.parametrize("kind", STUCK)
def test_nothing_is_left_of_a_worker_that_can_not_see_that_supervisor_and_fork_server_were_killed(
    tmp_path: Path, kind: FaultKind
) -> None:
    place = faulty_place(tmp_path, Fault(agent="main", moment="tool", kind=kind))
    with ModelServer(model()) as server, place.start(server, *QUICK) as live:
        live.wait_for_output("begun")
        [fork_server] = [process.pid for process in process_table().values() if process.parent == live.process.pid]
        os.kill(fork_server, signal.SIGKILL)
        live.process.kill()
        live.finish(5, checked=False)


def test_what_commands_left_behind_does_not_hold_up_the_end_of_a_run_and_is_gone_with_it(tmp_path: Path) -> None:
    calls = [bash(name, line) for name, line in DETACHED.items()]
    run, _billed = run_with(Place(tmp_path), scripted({"main": [calls]}))
    assert run.returncode == 0, run
    assert set(run.outcomes().values()) == {"success"}
