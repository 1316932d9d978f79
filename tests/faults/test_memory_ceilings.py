"""Ceilings of memory that the kernel holds for an agent with its tools, where it lends us a cgroup (else skipped).

What a worker by itself may take is in `tests.faults.test_rows`. That no process is left of a run is looked at after
each run of a `Place`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from supervisor.cgroup_base import read_mount_point
from tests.faults.scene import QUICK, check_store, scripted
from tests.stubs.corral_run import LiveRun, Place, Run
from tests.stubs.memory_cgroups import base_with_memory, delegated_to_nobody
from tests.stubs.model_server import Handler, ModelServer
from tests.stubs.ordinary_user import NOBODY, folder_of_nobody, prefix_of_nobody
from tests.stubs.replies import delegations

MIB = 1 << 20
LITTLE, MUCH = 300 * MIB, 4096 * MIB
PATIENT = (*QUICK, "--heartbeat-timeout", "60")
"""One that is killed may take a while to be gone; nobody is to be taken for silent meanwhile."""
LITTLE_FOR_AN_AGENT = ("--agent-memory", str(LITTLE), "--tree-memory", str(MUCH))
LITTLE_FOR_ALL = ("--agent-memory", str(MUCH), "--tree-memory", str(LITTLE))
BOUND = 60.0
"""Seconds for whatever is waited for."""

EATS = f"setsid sleep 600 & {sys.executable} -c 'import signal; held = b\"x\" * (600 << 20); signal.pause()'"
"""Takes more than there is, but not the whole machine if nobody holds it back; what it detached would stay."""


def bash(call_id: str, command: str) -> tuple[str, str, dict[str, object]]:
    return (call_id, "Bash", {"command": command})


def greedy_and_quiet() -> Handler:
    """One agent eats memory as soon as the other is at work, which first tells what ceilings it is under."""
    mount = read_mount_point(Path("/proc/self/mountinfo").read_text())
    ceilings = "memory.max memory.swap.max memory.oom.group ../memory.max"
    tell = f"(cd {mount}$(sed -n s/^0:://p /proc/self/cgroup) && echo begun $(cat {ceilings}))"
    calls = {
        "greedy": [[bash("eat", f"until [ -e quiet ]; do sleep 0.1; done; {EATS}")]],
        "quiet": [[bash("wait", f"{tell}; touch quiet; until [ -e gate ]; do sleep 0.1; done")]],
    }
    return scripted({"main": [delegations("task", *calls)], **calls})


def run_until_the_greedy_is_dead(place: Place, *flags: str, prefix: tuple[str, ...] = ()) -> tuple[Run, int]:
    """A run of `greedy_and_quiet` in which the quiet one goes on when the greedy one is dead; and its process id."""
    with ModelServer(greedy_and_quiet()) as server, place.start(server, *PATIENT, *flags, prefix=prefix) as live:
        wait_for(live, "agent_crashed")
        place.write("gate", "")
        run = live.finish(BOUND)
    check_store(place)
    return run, live.process.pid


def wait_for(live: LiveRun, kind: str) -> None:
    live.wait_for(lambda line: line["type"] == kind, timeout=BOUND)


def check_that_only_the_greedy_died(run: Run, whose_ceiling: str) -> None:
    assert run.returncode == 0, run
    crash = run.one("agent_crashed")
    assert (crash["parent_id"], crash["cause"], crash["signal"]) == ("to-greedy", "out_of_memory", 9), run
    assert whose_ceiling in crash["detail"], run
    assert crash["restart"] is None
    assert run.outcomes() == {"eat": "interrupted", "wait": "success", "to-greedy": "error", "to-quiet": "success"}
    assert whose_ceiling in run.outputs()["to-greedy"]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("spawn", ["fork", "fresh"])
def test_an_agent_whose_command_eats_memory_is_ended_with_it_and_its_siblings_go_on(tmp_path: Path, spawn: str) -> None:
    base = base_with_memory()
    run, pid = run_until_the_greedy_is_dead(Place(tmp_path), *LITTLE_FOR_AN_AGENT, "--spawn", spawn)
    check_that_only_the_greedy_died(run, "with its tools it reached its ceiling of memory")
    assert run.outputs()["wait"].strip() == f"begun {LITTLE} 0 1 {MUCH}"
    assert not list(base.glob(f"corral-{pid}-*"))


@pytest.mark.timeout(180)
def test_the_agents_together_stay_below_the_run_s_ceiling_and_the_greediest_dies(tmp_path: Path) -> None:
    base_with_memory()
    run, _pid = run_until_the_greedy_is_dead(Place(tmp_path), *LITTLE_FOR_ALL)
    check_that_only_the_greedy_died(run, "the run's ceiling of memory")
    assert run.outputs()["wait"].strip() == f"begun {MUCH} 0 1 {LITTLE}"


@pytest.mark.timeout(180)
def test_a_main_agent_whose_command_eats_memory_ends_the_turn(tmp_path: Path) -> None:
    base_with_memory()
    place = Place(tmp_path)
    handler = scripted({"main": [[bash("eat", EATS)]]})
    with ModelServer(handler) as server, place.start(server, *PATIENT, *LITTLE_FOR_AN_AGENT) as live:
        run = live.finish(BOUND)
    assert run.returncode == 1, run
    assert run.one("agent_crashed")["cause"] == "out_of_memory"
    assert run.outcomes() == {"eat": "interrupted"}
    check_store(place)


@pytest.mark.timeout(180)
def test_the_next_run_removes_the_cgroups_of_one_that_was_killed(tmp_path: Path) -> None:
    base = base_with_memory()
    place = Place(tmp_path)
    begins = scripted({"main": [[bash("stay", "setsid sleep 600 & echo begun; sleep 600")]]})
    with ModelServer(begins) as server, place.start(server, *PATIENT, *LITTLE_FOR_AN_AGENT) as live:
        wait_for(live, "tool_output_line")
        around = base / f"corral-{live.process.pid}-1"
        assert [folder.name for folder in around.iterdir() if folder.is_dir()] == ["agent-1"]
        live.process.kill()
        live.finish(checked=False)
    with ModelServer(scripted({})) as server, place.start(server, *PATIENT, *LITTLE_FOR_AN_AGENT) as live:
        run = live.finish(BOUND)
    assert run.returncode == 0, run
    assert not around.exists()


@pytest.mark.timeout(180)
def test_an_ordinary_user_has_ceilings_in_a_cgroup_that_was_delegated() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can delegate a cgroup")
    with delegated_to_nobody() as (delegated, inner), folder_of_nobody() as folder, prefix_of_nobody() as nobody:
        place = Place(folder)
        for path in (place.project, place.home):
            os.chown(path, NOBODY, NOBODY)
        enter = ("sh", "-c", f'echo $$ > {inner}/cgroup.procs && exec "$@"', "sh")
        prefix = (*enter, "env", f"TMPDIR={folder}", *nobody)
        run, pid = run_until_the_greedy_is_dead(place, *LITTLE_FOR_AN_AGENT, prefix=prefix)
        check_that_only_the_greedy_died(run, "with its tools it reached its ceiling of memory")
        assert run.outputs()["wait"].strip() == f"begun {LITTLE} 0 1 {MUCH}"
        assert not list(delegated.glob(f"corral-{pid}-*"))
