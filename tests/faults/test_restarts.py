"""What a restarted agent goes on from, and when an agent is given up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.usage import Usage
from tests.faults.scene import QUICK, SILENT, command, run_with, scripted, times_run
from tests.stubs.corral_run import Place, Run
from tests.stubs.faulty_corral import faulty_place
from tests.stubs.faulty_worker import Fault
from tests.stubs.model_server import Handler, ModelServer, ReceivedRequest
from tests.stubs.replies import CallTuple, delegations, plain


def bash(call_id: str, line: str) -> CallTuple:
    return (call_id, "Bash", {"command": line})


def restarts(run: Run) -> list[int | None]:
    return [crash["restart"] for crash in run.of_type("agent_crashed")]


# -- by hand: an agent that ends its own worker -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "cause", "signal"),
    [
        ("kill -9 $PPID; sleep 30", "signal", 9),
        ("kill -SEGV $PPID; sleep 30", "signal", 11),
        ("kill -TERM $PPID; sleep 30", "signal", 15),
        ("kill -STOP $PPID; sleep 30", "unresponsive", None),
    ],
    ids=["KILL", "SEGV", "TERM", "STOP"],
)
def test_a_command_that_ends_its_agents_process_is_interrupted_and_the_agent_goes_on(
    tmp_path: Path, line: str, cause: str, signal: int | None
) -> None:
    place = Place(tmp_path)
    seen: list[ReceivedRequest] = []
    handler = scripted({"main": [[bash("end", f"echo ran >> runs; {line}")]]}, seen)
    run, billed = run_with(place, handler, *(SILENT if cause == "unresponsive" else ()))
    assert run.returncode == 0, run
    crash = run.one("agent_crashed")
    assert (crash["cause"], crash["restart"]) == (cause, 1)
    assert signal in (None, crash["signal"])
    assert run.outcomes() == {"end": "interrupted"}
    assert times_run(place) == {"ran": 1}
    assert seen[-1].results == [run.outputs()["end"]], "the model is told, and decides what to do about it"
    assert Usage(**run.one("turn_summary")["usage"]) == billed
    assert run.one("run_summary")["uncertain_calls"] == 0


# -- what is taken up -------------------------------------------------------------------------------------------------


def test_an_agent_knows_after_a_restart_which_files_it_has_read(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write("same.txt", "old\n")
    place.write("changed.txt", "old\n")
    reads: list[CallTuple] = [(f"read-{name}", "Read", {"file_path": f"{name}.txt"}) for name in ("same", "changed")]
    edits: list[CallTuple] = [
        (f"edit-{name}", "Edit", {"file_path": f"{name}.txt", "replacements": [{"old_str": "old", "new_str": "new"}]})
        for name in ("same", "changed")
    ]
    end = bash("end", "echo old and more > changed.txt; kill -9 $PPID; sleep 30")
    run, _billed = run_with(place, scripted({"main": [reads, [end], edits]}))
    assert run.returncode == 0, run
    assert restarts(run) == [1]
    assert (run.outcomes()["edit-same"], run.outcomes()["edit-changed"]) == ("success", "error")
    assert (place.project / "changed.txt").read_text() == "old and more\n"


def test_the_guard_against_loops_counts_on_after_a_restart(tmp_path: Path) -> None:
    place = faulty_place(tmp_path, Fault(agent="main", moment="tool", kind="kill", times=1))
    again = [bash("again", "echo again >> runs; echo begun")]
    run, _billed = run_with(place, scripted({"main": [again] * 12}))
    assert run.returncode == 1, run
    assert restarts(run) == [1]
    assert run.end["code"] == "loop_guard"
    assert [line["action"] for line in run.of_type("loop_guard")] == ["feedback", "stop"]
    assert times_run(place) == {"again": 9}


def test_the_cap_of_model_calls_counts_on_after_a_restart(tmp_path: Path) -> None:
    place = faulty_place(tmp_path, Fault(agent="count", moment="tool", kind="kill", times=2))
    place.write_agent("counter", max_iterations=3)
    steps = [[bash(f"step-{number}", f"echo {number} >> runs; echo begun")] for number in range(9)]
    run, billed = run_with(place, scripted({"main": [delegations("counter", "count")], "count": steps}))
    assert run.returncode == 0, run
    assert run.one("sub_agent_end")["outcome"] == "limit"
    assert run.one("sub_agent_end")["restarts"] == 2
    assert run.one("sub_agent_end")["usage"]["api_calls"] == 4, "three, and the last one without tools"
    assert len(run.of_type("loop_cap_request")) == 1
    assert Usage(**run.one("turn_summary")["usage"]) == billed


def test_a_call_that_had_its_result_keeps_it_and_the_others_are_interrupted(tmp_path: Path) -> None:
    place = Place(tmp_path)
    seen: list[ReceivedRequest] = []
    wait = "until [ -e go ]; do sleep 0.02; done; "
    calls: list[CallTuple] = [("refused", "NoSuchTool", {}), bash("end", f"{wait}kill -9 $PPID; sleep 30")]
    with ModelServer(scripted({"main": [calls]}, seen)) as server, place.start(server, *QUICK) as live:
        live.wait_for(lambda line: line["type"] == "tool_call_result")
        place.write("go", "")
        run = live.finish()
    assert run.returncode == 0, run
    assert run.outcomes() == {"refused": "error", "end": "interrupted"}
    assert len(run.of_type("tool_call_result")) == 2, "no result is told twice"
    assert seen[-1].results == [run.outputs()["refused"], run.outputs()["end"]]


def test_sub_agents_that_end_while_their_parent_has_no_process_are_heard_by_the_next_one(tmp_path: Path) -> None:
    place = faulty_place(
        tmp_path,
        Fault(agent="main", moment="tool", kind="kill"),
        Fault(agent="3", moment="start", kind="late"),  # the main agent's second worker, behind two sub-agents'
    )
    children = ("one", "two")
    scripts = {"main": [[command("main", "two"), *delegations("task", *children)]]}
    scripts |= {child: [[command(child, "main")]] for child in children}
    scripts["one"] = [[command("one", "two")]]
    run, billed = run_with(place, scripted(scripts))
    assert run.returncode == 0, run
    assert restarts(run) == [1]
    assert run.outcomes()["to-one"] == run.outcomes()["to-two"] == "success"
    assert times_run(place) == {"main": 1, "one": 1, "two": 1}
    assert Usage(**run.one("turn_summary")["usage"]) == billed


def test_a_restarted_parent_that_waits_holds_no_place(tmp_path: Path) -> None:
    # With a single place the parent's second worker must give it to the sub-agent's sub-agent.
    place = faulty_place(tmp_path, Fault(agent="main", moment="tool", kind="kill"))
    scripts = {
        "main": [[command("main", "child"), *delegations("task", "child")]],
        "child": [[command("child")], delegations("task", "grandchild")],
        "grandchild": [[command("grandchild")]],
    }
    run, _billed = run_with(place, scripted(scripts), "--max-parallel-agents", "1")
    assert run.returncode == 0, run
    assert restarts(run) == [1]
    assert {line["outcome"] for line in run.of_type("sub_agent_end")} == {"complete"}


def test_agents_on_all_levels_may_be_restarted_in_one_run(tmp_path: Path) -> None:
    names = ("main", "child", "grandchild")
    place = faulty_place(tmp_path, *(Fault(agent=name, moment="tool", kind="kill") for name in names))
    scripts = {
        "main": [[command("main", "child"), *delegations("task", "child")]],
        "child": [[command("child", "grandchild"), *delegations("task", "grandchild")]],
        "grandchild": [[command("grandchild")]],
    }
    run, billed = run_with(place, scripted(scripts))
    assert run.returncode == 0, run
    assert sorted(crash["agent_id"] for crash in run.of_type("agent_crashed")) == ["main", "task-1-1", "task-1-2"]
    assert times_run(place) == dict.fromkeys(names, 1)
    assert Usage(**run.one("turn_summary")["usage"]) == billed


def test_a_session_is_carried_on_after_restarts_with_all_that_was_said(tmp_path: Path) -> None:
    place = faulty_place(tmp_path, Fault(agent="main", moment="tool", kind="kill"))
    first, _billed = run_with(place, scripted({"main": [[command("main")]]}))
    seen: list[ReceivedRequest] = []
    second, _billed = run_with(place, scripted({}, seen), "-s", first.session_id)
    assert (first.returncode, second.returncode) == (0, 0)
    said = [message["content"] for message in seen[0].messages if message["role"] in ("assistant", "tool")]
    assert said[-1] == "All done."
    assert first.outputs()["run-main"] in said


# -- given up ---------------------------------------------------------------------------------------------------------


def steps(count: int) -> list[list[CallTuple]]:
    return [[bash(f"step-{number}", f"echo {number} >> runs; echo begun; sleep 0.3")] for number in range(count)]


def test_a_worker_that_dies_twice_without_progress_is_not_started_a_third_time(tmp_path: Path) -> None:
    place = faulty_place(tmp_path, Fault(agent="main", moment="stream", kind="kill", times=5))
    run, _billed = run_with(place, scripted({}))
    assert run.returncode == 1, run
    assert restarts(run) == [1, None]
    assert run.one("run_summary")["uncertain_calls"] == 2
    assert (run.end["kind"], run.end["code"]) == ("error", "agent_crashed")


def test_a_worker_that_dies_before_it_says_anything_is_started_twice(tmp_path: Path) -> None:
    place = faulty_place(
        tmp_path, Fault(agent="0", moment="start", kind="kill"), Fault(agent="1", moment="start", kind="kill")
    )
    run, billed = run_with(place, scripted({}))
    assert run.returncode == 1, run
    assert restarts(run) == [1, None]
    assert billed == Usage()


def test_a_fourth_restart_within_a_minute_is_one_too_many(tmp_path: Path) -> None:
    place = faulty_place(tmp_path, Fault(agent="main", moment="tool", kind="kill", times=9))
    run, billed = run_with(place, scripted({"main": steps(9)}))
    assert run.returncode == 1, run
    assert restarts(run) == [1, 2, 3, None]
    assert times_run(place) == {"0": 1, "1": 1, "2": 1, "3": 1}
    assert set(run.outcomes().values()) == {"interrupted"}
    assert Usage(**run.one("turn_summary")["usage"]) == billed


def test_the_parent_of_an_agent_that_is_given_up_is_told_the_cause_and_what_it_had_said(tmp_path: Path) -> None:
    place = faulty_place(tmp_path, Fault(agent="look", moment="tool", kind="kill"))
    call = {"id": "a", "type": "function"}
    found = {
        "content": "The bug is in parse().",
        "tool_calls": [
            {**call, "function": {"name": "Bash", "arguments": json.dumps({"command": "echo begun; sleep 9"})}}
        ],
    }
    seen: list[ReceivedRequest] = []
    others = scripted({"main": [delegations("task", "look")]}, seen)
    handler: Handler = lambda request: others(request) if request.streaming else plain(found)  # noqa: E731
    run, billed = run_with(place, handler, "--no-restart")
    assert run.returncode == 0, run
    output = run.outputs()["to-look"]
    assert output.startswith("The agent task crashed: its process ended early with signal 9")
    assert output.endswith("What it had said last:\nThe bug is in parse().")
    assert seen[-1].results == [output]
    assert Usage(**run.one("turn_summary")["usage"]) == billed


def test_a_cancel_while_a_worker_is_being_restarted_ends_the_run(tmp_path: Path) -> None:
    place = faulty_place(
        tmp_path,
        Fault(agent="main", moment="tool", kind="kill"),
        Fault(agent="1", moment="start", kind="stop"),  # never gets to its first frame
    )
    run, _billed = run_with(place, scripted({"main": [[command("main")]]}), "--timeout", "2")
    assert run.returncode == 3, run
    assert run.end["code"] == "timeout"
    assert restarts(run) == [1]
