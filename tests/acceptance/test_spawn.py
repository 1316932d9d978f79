"""How agents' processes start, in both ways, and that none is left whoever of them is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.stubs.corral_run import LiveRun, Place, Run
from tests.stubs.model_server import ModelServer, per_prompt, scripted
from tests.stubs.process_table import ended_within, lineage, process_table
from tests.stubs.replies import CallTuple, delegations, hang, plain_calls, plain_text, tool_calls
from tests.stubs.stream_rules import Line, check_stream

SCENARIO: dict[str, object] = {
    "agents": {
        "main": [
            {
                "when": {"step": 1},
                "reply": {
                    "text": "First a look.",
                    "tool_calls": [{"name": "Bash", "arguments": {"command": "echo one; echo two"}, "id": "look"}],
                },
            },
            {
                "when": {"step": 2},
                "reply": {
                    "tool_calls": [
                        {"name": "InvokeAgent", "arguments": {"agent_name": "task", "prompt": "Go"}, "id": "ask"}
                    ]
                },
            },
            {"reply": {"text": "Done."}},
        ],
        "task": [
            {"when": {"step": 1}, "reply": {"tool_calls": [{"name": "List", "arguments": {}, "id": "list"}]}},
            {"reply": {"text": "It is empty."}},
        ],
    }
}

LEFTOVERS = """
sh -c 'echo begun; exec sleep 801' &
nohup sh -c 'echo begun; exec sleep 802 >/dev/null 2>&1' &
setsid sh -c 'echo begun; exec sleep 803 >/dev/null 2>&1' &
(setsid sh -c 'sleep 804 >/dev/null 2>&1 & echo begun; exec sleep 805 >/dev/null 2>&1' &)
echo begun
sleep 806
"""
"""What a command leaves behind in all the ways there are, while it goes on itself. Each says that it has begun."""


def wait_for_leftovers(live: LiveRun) -> tuple[int, int]:
    """The pids of the fork server and the worker, once all of `LEFTOVERS` runs."""
    live.wait_for_output("begun", count=5)
    fork_server, worker, *_ = lineage(live.process.pid, "sleep 806")
    return fork_server, worker


def bash(command: str, call_id: str = "run") -> CallTuple:
    return (call_id, "Bash", {"command": command})


def end_command(live: LiveRun, seconds: str) -> None:
    """End a sleeping command of the run, so that its call is over."""
    pid = lineage(live.process.pid, f"sleep {seconds}")[-1]
    os.kill(pid, signal.SIGTERM)
    assert ended_within(pid, 5)


# -- both ways --------------------------------------------------------------------------------------------------------


def scripted_run(place: Place, mode: str) -> Run:
    script = place.folder / "scenario.json"
    script.write_text(json.dumps(SCENARIO))
    flags = ["--provider", "scripted", "--script", str(script), "--project-root", str(place.project)]
    run = place.command("-p", "Go", "--output-format", "stream-json", "--spawn", mode, *flags)
    assert run.returncode == 0, run
    check_stream(run.lines, 0)
    return run


def without_chance(line: Line) -> Line:
    """The line without what no two runs have in common."""
    kept = {name: value for name, value in line.items() if name not in {"session_id", "elapsed_ms"}}
    return Line(kept)


def test_both_ways_give_the_same_stream(place: Place) -> None:
    forked, fresh = scripted_run(place, "fork"), scripted_run(place, "fresh")
    assert len(forked.of_type("sub_agent_end")) == 1
    assert list(map(without_chance, forked.lines)) == list(map(without_chance, fresh.lines))


@pytest.mark.parametrize(("mode", "steps"), [("fork", 2), ("auto", 2), ("fresh", 1)])
def test_where_workers_come_from(place: Place, mode: str, steps: int) -> None:
    """By a fork server there is one process between supervisor and workers, which they share, else none."""
    first = tool_calls([bash("echo begun; sleep 811"), *delegations("task", "look")])
    replies = {"look": [plain_calls(bash("echo begun; sleep 812")), plain_text("looked")]}
    with (
        ModelServer(scripted([first], per_prompt(replies))) as server,
        place.start(server, "--spawn", mode) as live,
    ):
        live.wait_for_output("begun", count=2)
        main, child = lineage(live.process.pid, "sleep 811"), lineage(live.process.pid, "sleep 812")
        assert main[: steps - 1] == child[: steps - 1]
        assert main[steps - 1] != child[steps - 1]
        for pid in (*main[:steps], child[steps - 1]):
            assert os.getpgid(pid) == pid
        assert (len(list(Path(f"/proc/{main[0]}/task").iterdir())) == 1) is (mode != "fresh")
        end_command(live, "811")
        end_command(live, "812")
        run = live.finish()
    assert run.returncode == 0, run


def test_a_mode_that_does_not_exist_is_wrong_usage(place: Place) -> None:
    run = place.command("-p", "x", "--spawn", "thread")
    assert run.returncode == 2
    assert "--spawn is one of auto, fork, fresh, not 'thread'" in run.stderr


def test_ends_are_known_though_sigchld_was_ignored(place: Place) -> None:
    ignoring = ("sh", "-c", "trap '' CHLD; exec \"$@\"", "sh")
    with ModelServer(scripted([])) as server, place.start(server, prefix=ignoring) as live:
        run = live.finish()
    assert run.returncode == 0, run


# -- a fork server that dies ------------------------------------------------------------------------------------------


def test_workers_outlive_a_killed_fork_server_and_the_next_agent_has_a_new_one(place: Place) -> None:
    begin = [tool_calls([bash("echo begun; sleep 821")]), tool_calls(delegations("task", "look"))]
    replies = {"look": [plain_calls(bash("echo begun; sleep 822")), plain_text("looked")]}
    with ModelServer(scripted(begin, per_prompt(replies))) as server, place.start(server, "--spawn", "fork") as live:
        live.wait_for_output("begun")
        first_server, main, *_ = lineage(live.process.pid, "sleep 821")
        os.kill(first_server, signal.SIGKILL)
        end_command(live, "821")
        live.wait_for_output("begun", count=2)
        second_server, child, *_ = lineage(live.process.pid, "sleep 822")
        table = process_table()
        assert first_server not in table, "it was reaped"
        assert table[main].parent == live.process.pid
        assert second_server not in (first_server, main)
        assert not [each for each in table.values() if each.parent == live.process.pid and not each.alive]
        assert os.getpgid(child) == child
        end_command(live, "822")
        run = live.finish()
    assert run.returncode == 0, run
    assert run.of_type("agent_crashed") == []
    assert run.one("sub_agent_end")["outcome"] == "complete"


# -- nobody left behind -----------------------------------------------------------------------------------------------

VICTIMS = [
    ("supervisor",),
    ("fork server",),
    ("worker",),
    ("supervisor", "fork server"),
    ("fork server", "supervisor"),
    ("supervisor", "worker"),
    ("worker", "supervisor"),
    ("fork server", "worker"),
    ("worker", "fork server"),
]


def kill_and_look(place: Place, victims: tuple[str, ...]) -> None:
    """Kill ``victims`` in that order; what the run leaves behind is seen by `Place`."""
    begin = [tool_calls([bash(LEFTOVERS)])]
    with ModelServer(scripted(begin)) as server, place.start(server, "--spawn", "fork", "--no-restart") as live:
        fork_server, worker = wait_for_leftovers(live)
        pids = {"supervisor": live.process.pid, "fork server": fork_server, "worker": worker}
        handles = [os.pidfd_open(pids[victim]) for victim in victims]
        for handle in handles:
            with suppress(ProcessLookupError):  # the second may have followed the first by itself
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        if victims == ("fork server",):
            end_command(live, "806")
        run = live.finish(10, checked="supervisor" not in victims)
    code = -signal.SIGKILL if "supervisor" in victims else 1 if "worker" in victims else 0
    assert run.returncode == code, run


@pytest.mark.parametrize("victims", VICTIMS, ids=" and ".join)
def test_nothing_is_left_when_these_are_killed(place: Place, victims: tuple[str, ...]) -> None:
    kill_and_look(place, victims)


@pytest.mark.soak
@pytest.mark.parametrize("victims", VICTIMS, ids=" and ".join)
@pytest.mark.parametrize("trial", range(20))
def test_nothing_is_left_in_twenty_of_twenty_trials(place: Place, victims: tuple[str, ...], trial: int) -> None:
    kill_and_look(place, victims)


@pytest.mark.parametrize("mode", ["fork", "fresh"])
def test_orphans_of_a_killed_sub_agent_are_gone_while_the_run_goes_on(place: Place, mode: str) -> None:
    first = tool_calls([bash("echo begun; sleep 831"), *delegations("task", "look")])
    replies = {"look": [plain_calls(bash("setsid sh -c 'echo begun; exec sleep 832' & sleep 833"))]}
    handler = scripted([first], per_prompt(replies))
    with ModelServer(handler) as server, place.start(server, "--spawn", mode, "--no-restart") as live:
        live.wait_for_output("begun", count=2)
        orphan = lineage(live.process.pid, "sleep 832")[-1]
        child = lineage(live.process.pid, "sleep 833")[1 if mode == "fork" else 0]
        os.kill(child, signal.SIGKILL)
        live.wait_for(lambda line: line["type"] == "sub_agent_end")
        assert ended_within(orphan, 1)
        end_command(live, "831")
        run = live.finish()
    assert run.returncode == 0, run
    assert run.one("agent_crashed")["signal"] == signal.SIGKILL


def test_a_worker_that_is_stopped_does_not_outlive_the_supervisor(place: Place) -> None:
    """It can't see for itself that nobody is there any more: the fork server ends it."""
    handler = scripted([tool_calls([bash(LEFTOVERS)])])
    with ModelServer(handler) as server, place.start(server, "--spawn", "fork") as live:
        _, worker = wait_for_leftovers(live)
        os.kill(worker, signal.SIGSTOP)
        live.signal(signal.SIGKILL)
        live.finish(5, checked=False)


def test_nothing_is_left_of_a_run_that_does_not_come_about(place: Place) -> None:
    """The session is looked for when the fork server is there already."""
    with ModelServer(scripted([])) as server:
        run = place.run(server, "-s", "20200101-000000-abcdef", "--spawn", "fork")
    assert run.returncode == 2, run


def test_nothing_is_left_of_a_run_whose_settings_are_wrong(place: Place) -> None:
    """They are read while the fork server imports."""
    with ModelServer(scripted([])) as server:
        run = place.run(server, "-a", "nobody-of-that-name", "--spawn", "fork")
    assert run.returncode == 2, run
    assert run.stdout == b""


def test_with_one_cpu_the_workers_are_forks_too(place: Place) -> None:
    """Then nothing is gained by importing twice at once: the fork server is forked when all is imported."""
    one = (
        "import os, sys; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    handler = scripted([tool_calls([bash("echo begun; exec sleep 806")])])
    with (
        ModelServer(handler) as server,
        place.start(server, "--spawn", "fork", prefix=(sys.executable, "-c", one)) as live,
    ):
        live.wait_for_output("begun")
        fork_server, _worker, *_ = lineage(live.process.pid, "sleep 806")
        assert Path(f"/proc/{fork_server}/comm").read_text() == "corral-forks\n"
        live.signal(signal.SIGINT)
        run = live.finish()
    assert run.returncode == 130, run


# -- while it imports -------------------------------------------------------------------------------------------------


def test_an_interrupt_while_the_fork_server_imports_ends_the_run(place: Place, tmp_path: Path) -> None:
    """A module that shadows the HTTP library says that its import has begun, and ends the server when it is told to.

    Then workers start by exec, which finds the real one.
    """
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    os.mkfifo(begun)
    os.mkfifo(gate)
    shadow = tmp_path / "modules" / "httpx.py"
    shadow.parent.mkdir()
    shadow.write_text(f"import os\nopen({str(begun)!r}, 'w').close()\nopen({str(gate)!r}).readline()\nos._exit(0)\n")
    prefix = ("env", f"PYTHONPATH={shadow.parent}")
    with ModelServer(scripted([hang()])) as server, place.start(server, "--spawn", "fork", prefix=prefix) as live:
        with begun.open("rb"):
            pass
        live.signal(signal.SIGINT)
        opened = os.open(gate, os.O_RDWR)
        os.write(opened, b"\n")
        run = live.finish(10, checked=False)
        os.close(opened)
    assert run.returncode == 130, run
    assert run.stderr.count("\n") <= 1, run


def test_a_fork_server_that_can_not_import_is_done_without(place: Place, tmp_path: Path) -> None:
    shadow = tmp_path / "modules" / "httpx.py"
    shadow.parent.mkdir()
    shadow.write_text("import os\nos._exit(0)\n")
    prefix = ("env", f"PYTHONPATH={shadow.parent}")
    with ModelServer(scripted([])) as server, place.start(server, prefix=prefix) as live:
        run = live.finish()
    assert run.returncode == 0, run
    assert len(server.chats) == 1
