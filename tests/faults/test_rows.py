"""What a worker may do wrong, at each moment of its life, for the main agent and for one of several sub-agents.

Every run is checked as a client reads it (`tests.stubs.stream_rules`): one terminal line for each agent, the last
lines, usage that adds up, the exit code; and for what it left: no process, a store that is whole.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from protocol.usage import Usage
from tests.faults.scene import SILENT, faulty_run, times_run
from tests.stubs.faulty_corral import faulty_place
from tests.stubs.faulty_worker import FLOOD, Fault, FaultKind, Moment


class Row(msgspec.Struct, frozen=True):
    """How a fault is told: its cause, and the signal or the exit code. ``flags`` are for its runs."""

    kind: FaultKind
    cause: str
    signal: int | None = None
    exit_code: int | None = None
    flags: tuple[str, ...] = ()


ROWS = [
    Row("kill", "signal", signal=9),
    Row("segfault", "signal", signal=11),
    Row("exit", "exited_early", exit_code=0),
    Row("loop", "unresponsive", signal=15, flags=SILENT),
    Row("stop", "unresponsive", signal=9, flags=SILENT),
    Row("garbage", "protocol_error", signal=9),
    Row("oversize", "protocol_error", signal=9),
    Row("close", "channel_closed", signal=9),
    Row("hold", "signal", signal=9),
    Row("cut", "signal", signal=9),
]
STUCK = Row("stuck", "unresponsive", signal=15, flags=SILENT)
EACH_ROW = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.kind)
LITTLE_MEMORY = ("--agent-memory", "500M")
MEMORY = Row("memory", "out_of_memory", exit_code=73)


def check_crash(crash: dict[str, object], row: Row) -> None:
    assert crash["cause"] == row.cause, crash
    assert (crash.get("signal"), crash.get("exit_code")) == (row.signal, row.exit_code), crash


# -- sub-agents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [*ROWS, STUCK], ids=lambda row: row.kind)
def test_an_agent_goes_on_in_a_new_process_whenever_its_worker_fails_and_its_siblings_do_not_notice(
    tmp_path: Path, row: Row
) -> None:
    check_that_agents_go_on(tmp_path, row)


@pytest.mark.soak
@pytest.mark.parametrize("_trial", range(20))
@EACH_ROW
def test_an_agent_goes_on_in_twenty_of_twenty_trials(tmp_path: Path, row: Row, _trial: int) -> None:
    check_that_agents_go_on(tmp_path, row)


def check_that_agents_go_on(tmp_path: Path, row: Row) -> None:
    place = faulty_place(
        tmp_path,
        Fault(agent="2", moment="start", kind=row.kind),  # the third worker, whichever agent's it is
        Fault(agent="a", moment="stream", kind=row.kind),
        Fault(agent="b", moment="tool", kind=row.kind),
        Fault(agent="c", moment="shutdown", kind=row.kind),
        Fault(agent="main", moment="shutdown", kind=row.kind),
    )
    run, _billed = faulty_run(place, *row.flags, children=tuple("abcde"))
    assert run.returncode == 0, run
    crashes = run.of_type("agent_crashed")
    for crash in crashes:
        check_crash(crash, row)
        assert crash["restart"] is not None
    ends = {line["parent_id"]: line for line in run.of_type("sub_agent_end")}
    assert [line["outcome"] for line in ends.values()] == ["complete"] * 5
    assert all(ends[f"to-{word}"]["restarts"] >= 1 for word in "abc"), ends
    assert sum(line["restarts"] for line in ends.values()) + 1 == len(crashes) == 5
    assert [run.outcomes()[f"to-{word}"] for word in "abcde"] == ["success"] * 5
    assert run.outcomes()["run-b"] == "interrupted"
    assert times_run(place) == dict.fromkeys(["main", *"abcde"], 1), "nothing is run twice"
    assert run.one("run_summary")["response"] == "All done.", "the last reply is not asked for again"
    assert run.one("run_summary")["uncertain_calls"] == 1, "the call that was under way at the moment `stream`"


@EACH_ROW
def test_a_sub_agent_that_is_given_up_costs_its_parent_a_tool_error(tmp_path: Path, row: Row) -> None:
    place = faulty_place(
        tmp_path,
        Fault(agent="bad", moment="tool", kind=row.kind),
        # What a worker does once it has said that it is done changes nothing.
        Fault(agent="good", moment="end", kind=row.kind),
        Fault(agent="main", moment="end", kind=row.kind),
    )
    run, billed = faulty_run(place, *row.flags, "--no-restart", children=("good", "bad"))
    assert run.returncode == 0, run
    crash = run.one("agent_crashed")
    check_crash(crash, row)
    assert crash["restart"] is None
    ends = {line["parent_id"]: line["outcome"] for line in run.of_type("sub_agent_end")}
    assert ends == {"to-good": "complete", "to-bad": "crashed"}
    assert run.outcomes() == {
        "run-main": "success",
        "run-good": "success",
        "run-bad": "interrupted",
        "to-good": "success",
        "to-bad": "error",
    }
    assert run.outputs()["to-bad"].startswith("The agent task crashed: its process "), run.outputs()["to-bad"]
    assert Usage(**run.one("turn_summary")["usage"]) == billed


# -- the main agent ---------------------------------------------------------------------------------------------------


@EACH_ROW
def test_the_main_agent_goes_on_in_new_processes_and_its_sub_agent_with_it(tmp_path: Path, row: Row) -> None:
    place = faulty_place(
        tmp_path,
        Fault(agent="0", moment="start", kind=row.kind),
        Fault(agent="main", moment="tool", kind=row.kind),
        Fault(agent="main", moment="stream", kind=row.kind),
    )
    run, _billed = faulty_run(place, *row.flags, children=("child",), after="child")
    assert run.returncode == 0, run
    crashes = run.of_type("agent_crashed")
    assert [crash["restart"] for crash in crashes] == [1, 2, 3]
    for crash in crashes:
        check_crash(crash, row)
        assert "parent_id" not in crash
    assert run.outcomes() == {"run-main": "interrupted", "run-child": "success", "to-child": "success"}
    assert times_run(place) == {"main": 1, "child": 1}
    assert run.one("run_summary")["response"] == "All done."
    assert run.one("run_summary")["uncertain_calls"] == 1


@EACH_ROW
def test_a_main_agent_that_is_given_up_ends_the_turn_with_an_error_and_its_sub_agents(tmp_path: Path, row: Row) -> None:
    place = faulty_place(tmp_path, Fault(agent="main", moment="tool", kind=row.kind))
    run, _billed = faulty_run(place, *row.flags, "--no-restart", children=("child",), after="child")
    assert run.returncode == 1, run
    check_crash(run.one("agent_crashed"), row)
    assert run.end["code"] == "agent_crashed"
    assert run.one("sub_agent_end")["outcome"] in ("cancelled", "complete")
    assert run.outcomes()["run-main"] == "interrupted"


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["start", "stream", "tool", "shutdown"])
def test_a_sub_agent_out_of_memory_is_not_restarted(tmp_path: Path, moment: Moment) -> None:
    agent = "1" if moment == "start" else "big"
    place = faulty_place(tmp_path, Fault(agent=agent, moment=moment, kind="memory"))
    run, _billed = faulty_run(place, *LITTLE_MEMORY, children=("big",))
    assert run.returncode == 0, run
    crash = run.one("agent_crashed")
    check_crash(crash, MEMORY)
    assert crash["restart"] is None
    assert run.one("sub_agent_end")["outcome"] == "crashed"
    assert "memory" in run.outputs()["to-big"]


@pytest.mark.parametrize("moment", ["start", "stream", "tool", "shutdown"])
def test_a_main_agent_out_of_memory_ends_the_turn(tmp_path: Path, moment: Moment) -> None:
    agent = "0" if moment == "start" else "main"
    place = faulty_place(tmp_path, Fault(agent=agent, moment=moment, kind="memory"))
    run, _billed = faulty_run(place, *LITTLE_MEMORY)
    assert run.returncode == 1, run
    check_crash(run.one("agent_crashed"), MEMORY)


# -- floods -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["stream", "tool", "shutdown"])
def test_a_flood_is_delivered_whole_and_its_siblings_are_not_held_up(tmp_path: Path, moment: Moment) -> None:
    place = faulty_place(tmp_path, Fault(agent="loud", moment=moment, kind="flood"))
    run, billed = faulty_run(place, children=("loud", "quiet"))
    assert run.returncode == 0, run
    assert len([line for line in run.of_type("thinking_delta") if line["parent_id"] == "to-loud"]) == FLOOD
    assert set(run.outcomes().values()) == {"success"}
    assert Usage(**run.one("turn_summary")["usage"]) == billed


def test_a_flood_of_the_main_agent_is_delivered_whole(tmp_path: Path) -> None:
    place = faulty_place(tmp_path, Fault(agent="main", moment="tool", kind="flood"))
    run, _billed = faulty_run(place, children=("quiet",))
    assert run.returncode == 0, run
    assert len(run.of_type("thinking_delta")) == FLOOD


# -- no worker --------------------------------------------------------------------------------------------------------


def test_a_sub_agent_that_can_not_be_started_is_an_error_of_its_call(tmp_path: Path) -> None:
    place = faulty_place(tmp_path, refused=(2,))
    run, billed = faulty_run(place, children=("a", "b", "c"))
    assert run.returncode == 0, run
    crash = run.one("agent_crashed")
    assert (crash["cause"], crash["restart"]) == ("spawn_failed", None)
    outcomes = sorted(line["outcome"] for line in run.of_type("sub_agent_end"))
    assert outcomes == ["complete", "complete", "crashed"]
    assert "Resource temporarily unavailable" in run.outputs()[crash["parent_id"]]
    assert len(times_run(place)) == 3
    assert Usage(**run.one("turn_summary")["usage"]) == billed


def test_a_main_agent_that_can_not_be_started_ends_the_turn(tmp_path: Path) -> None:
    run, billed = faulty_run(faulty_place(tmp_path, refused=(0,)))
    assert run.returncode == 1, run
    assert run.one("agent_crashed")["cause"] == "spawn_failed"
    assert "Resource temporarily unavailable" in run.end["message"]
    assert billed == Usage()


def test_an_agent_whose_new_process_can_not_be_started_is_given_up(tmp_path: Path) -> None:
    place = faulty_place(tmp_path, Fault(agent="main", moment="tool", kind="kill"), refused=(1,))
    run, _billed = faulty_run(place)
    assert run.returncode == 1, run
    assert [crash["cause"] for crash in run.of_type("agent_crashed")] == ["signal", "spawn_failed"]
    assert [crash["restart"] for crash in run.of_type("agent_crashed")] == [1, None]
