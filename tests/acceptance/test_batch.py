"""``corral batch`` from the outside: crashes, killed runners, the job file.

The model is the stub server where requests are counted or held back, else the scripted one. Soak tests are the same at
full size.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.batch_place import (
    BatchPlace,
    always,
    answer_done,
    bash,
    held,
    jobs_named,
    ledger_rows,
    numbered,
)
from tests.stubs.model_server import ModelServer, ReceivedRequest
from tests.stubs.replies import Reply, text, tool_call

KILL = "kill -9 $PPID"


@pytest.fixture
def place(tmp_path: Path) -> BatchPlace:
    return BatchPlace(tmp_path)


# -- crashes and retries -----------------------------------------------------------------------------------------------


def kill_first_attempts(doomed: set[str]) -> Any:
    """Each job of ``doomed`` kills its worker, but only the first time it is asked for."""
    killed: set[str] = set()

    def answer(request: ReceivedRequest) -> Reply:
        if request.prompt in doomed and request.prompt not in killed:
            killed.add(request.prompt)
            return tool_call("end", "Bash", {"command": KILL})
        return text("Done.")

    return answer


def see_crashed_jobs_tried_again(place: BatchPlace, count: int) -> None:
    place.write_jobs(*numbered(count))
    doomed = {f"j{number}" for number in range(0, count, 10)}
    with ModelServer(kill_first_attempts(doomed)) as server:
        run = place.batch(server, "-j", "8", "--isolation", "none", "--trust", "auto", timeout=300)
        billed = server.billed
    assert run.returncode == 0, run
    results = place.results()
    assert set(place.statuses().values()) == {"ok"}
    assert sum(len(result["attempts"]) for result in results.values()) == count + len(doomed)
    assert place.summary()["usage"]["api_calls"] == billed.api_calls
    assert place.summary()["usage"]["prompt_tokens"] == billed.prompt_tokens


def test_jobs_whose_worker_is_killed_once_come_out_well_and_usage_is_what_was_billed(place: BatchPlace) -> None:
    see_crashed_jobs_tried_again(place, 12)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_hundred_jobs_with_every_tenth_killed_once(place: BatchPlace) -> None:
    see_crashed_jobs_tried_again(place, 100)


def test_a_job_that_crashes_twice_is_crashed_and_the_others_are_unharmed(place: BatchPlace) -> None:
    place.write_rules(bash("bad", KILL))
    place.write_jobs(*jobs_named("bad", "good-1", "good-2"))
    run = place.batch(None, "-j", "3")
    assert run.returncode == 1, run
    assert place.statuses() == {"bad": "crashed", "good-1": "ok", "good-2": "ok"}
    bad = place.results()["bad"]
    assert [(attempt["outcome"], attempt["signal"]) for attempt in bad["attempts"]] == [("crashed", 9)] * 2
    assert (bad["reason"], bad["retries_used"], bad["success"]) == ("signal", 1, False)
    assert [(line["class"], line["delay_ms"]) for line in run.of_type("job_retry")] == [("crashed", 1000)]


def test_a_sub_agent_that_crashes_is_restarted_and_no_event_of_the_batch(place: BatchPlace) -> None:
    delegate = {"name": "InvokeAgent", "arguments": {"agent_name": "task", "prompt": "look"}}
    scenario = {
        "version": 1,
        "agents": {
            "main": [{"when": {"step": 1}, "reply": {"tool_calls": [delegate]}}, {"reply": {"text": "done"}}],
            "task": [
                {"when": {"not_said": "interrupted", "step": 1}, "reply": bash("", KILL)["reply"]},
                {"reply": {"text": "here"}},
            ],
        },
    }
    place.write_rules()
    place.scenario.write_text(json.dumps(scenario))
    place.write_jobs(*jobs_named("a"))
    run = place.batch(None)
    assert run.returncode == 0, run
    assert len(place.results()["a"]["attempts"]) == 1
    wire = (place.out / place.results()["a"]["log"]).read_text()
    assert '"type":"agent_crashed"' in wire and '"restart":1' in wire


# -- the runner dies ---------------------------------------------------------------------------------------------------


def test_after_the_runner_was_killed_only_what_was_not_done_runs_again(place: BatchPlace) -> None:
    place.write_jobs(*numbered(4))  # as many as may call the model at once in the beginning
    pause = threading.Event()
    asked: dict[str, int] = {}

    def answer(request: ReceivedRequest) -> Reply:
        asked[request.prompt] = asked.get(request.prompt, 0) + 1
        return text("Done.") if request.prompt in ("j0", "j1") or pause.is_set() else held(pause)

    with ModelServer(answer) as server:
        flags = ("-j", "4", "--isolation", "none")
        with place.started(server, *flags, "--trust", "plan") as live:
            live.wait_for(lambda line: line["type"] == "job_result", 2)
            server.wait_for_requests(4)
            live.kill()
        pause.set()
        run = place.batch(server, *flags, "--trust", "plan")
    assert run.returncode == 0, run
    assert run.one("batch_start")["pending"] == 2
    assert place.statuses() == dict.fromkeys((f"j{number}" for number in range(4)), "ok")
    assert (asked["j0"], asked["j1"]) == (1, 1)
    assert [attempt["outcome"] for attempt in place.results()["j3"]["attempts"]] == ["lost", "ok"]
    assert place.results()["j3"]["retries_used"] == 0
    assert place.summary()["uncertain_calls"] == 2


def see_killed_runners_resume(place: BatchPlace, kills: int, count: int) -> None:
    names = {f"j{number}" for number in range(count)}
    place.write_jobs(*numbered(count))
    asked_after_ok: list[str] = []
    finished: set[str] = set()

    def answer(request: ReceivedRequest) -> Reply:
        if request.prompt in finished:
            asked_after_ok.append(request.prompt)
        return text("Done.")

    flags = ("-j", "4", "--isolation", "copy")
    with ModelServer(answer) as server:
        for number in range(kills):
            with place.started(server, *flags) as live:
                if len(finished) < count:
                    live.wait_for(lambda line: line["type"] == "job_result", 1 + number % 3)
                live.kill()
            finished |= {row[0] for row in ledger_rows(place, "SELECT job_id FROM result WHERE status = 'ok'")}
        run = place.batch(server, *flags, timeout=120)
    assert run.returncode in (0, 1), run
    assert set(place.results()) == names
    # One that was under way each time has taken its runner down too often, as far as anybody can tell.
    given_up = [result for result in place.results().values() if result["status"] != "ok"]
    assert [result["reason"] for result in given_up] == ["runner_lost"] * len(given_up)
    assert asked_after_ok == []
    assert not list(place.out.glob("jobs/*/*/work"))


def test_killed_again_and_again_no_verdict_is_lost_or_given_twice(place: BatchPlace) -> None:
    see_killed_runners_resume(place, 3, 14)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_killed_twenty_times(place: BatchPlace) -> None:
    see_killed_runners_resume(place, 20, 70)


def test_a_job_that_takes_its_runner_down_three_times_is_given_up(place: BatchPlace) -> None:
    place.write_jobs(*jobs_named("killer"))
    with ModelServer(always(lambda: held(threading.Event()))) as server:
        for number in range(1, 4):
            with place.started(server, "--isolation", "none") as live:
                server.wait_for_requests(number)
                live.kill()
        run = place.batch(server, "--isolation", "none")
        assert len(server.chats) == 3
    assert run.returncode == 1, run
    killer = place.results()["killer"]
    assert (killer["status"], killer["reason"], killer["retries_used"]) == ("crashed", "runner_lost", 0)


def test_a_torn_end_of_the_results_is_healed(place: BatchPlace) -> None:
    place.write_rules()
    place.write_jobs(*numbered(3))
    assert place.batch(None).returncode == 0
    path = place.out / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    run = place.batch(None)
    assert run.returncode == 0, run
    assert path.read_bytes() == whole
    assert run.of_type("job_start") == []


def test_a_ledger_that_is_none_is_left_alone(place: BatchPlace) -> None:
    place.write_rules()
    place.write_jobs(*numbered(1))
    place.out.mkdir()
    (place.out / "ledger.db").write_bytes(b"no database at all, but long enough to look like one" * 20)
    before = (place.out / "ledger.db").read_bytes()
    run = place.batch(None)
    assert (run.returncode, run.stdout) == (5, b"")
    assert "damaged" in run.stderr
    assert (place.out / "ledger.db").read_bytes() == before


def test_a_second_runner_is_turned_away_and_the_first_goes_on(place: BatchPlace) -> None:
    place.write_jobs(*numbered(1))
    pause = threading.Event()
    with ModelServer(always(lambda: held(pause))) as server, place.started(server, "--isolation", "none") as live:
        server.wait_for_requests(1)
        second = place.batch(server)
        assert (second.returncode, second.stdout) == (4, b"")
        assert f"process {live.process.pid} on" in second.stderr
        pause.set()
        assert live.finish(checked=False).returncode == 0
    assert place.statuses() == {"j0": "ok"}


def see_everything_die(place: BatchPlace, count: int, kills: int) -> None:
    """Every tenth worker is killed once, the runner several times: no verdict is lost, and usage is what was billed.

    But for the calls whose end nobody saw: those are counted.
    """
    place.write_jobs(*numbered(count))
    doomed = {f"j{number}" for number in range(0, count, 10)}
    flags = ("-j", "8", "--isolation", "copy")
    with ModelServer(kill_first_attempts(doomed)) as server:
        for number in range(1, kills + 1):
            with place.started(server, *flags) as live:
                live.wait_for(lambda line: line["type"] == "job_result", count // (kills + 2), timeout=120)
                live.kill()
            assert len(ledger_rows(place, "SELECT job_id FROM result")) >= number
        run = place.batch(server, *flags, timeout=300)
        billed = server.billed
    assert run.returncode == 0, run
    assert set(place.statuses().values()) == {"ok"}
    assert len(place.results()) == count
    summary = place.summary()
    assert 0 <= billed.api_calls - summary["usage"]["api_calls"] <= summary["uncertain_calls"] <= 8 * kills
    assert not list(place.out.glob("jobs/*/*/work"))


def test_workers_and_runner_die_and_the_books_are_right(place: BatchPlace) -> None:
    see_everything_die(place, 24, 1)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_three_hundred_jobs_whatever_dies(place: BatchPlace) -> None:
    see_everything_die(place, 300, 3)


# -- the job file ------------------------------------------------------------------------------------------------------


def test_every_fault_of_the_job_file_is_told_and_nothing_starts(place: BatchPlace) -> None:
    lines = [json.dumps({"id": f"a{number}", "prompt": "x"}) for number in range(60)]
    lines[56] = '{"id": "a56", "prompt": '
    lines[58] = json.dumps({"id": "a1", "prompt": "x", "colour": "red", "timeout_s": 0})
    place.jobs_file.write_text("\n".join(lines))
    with ModelServer(answer_done) as server:
        run = place.batch(server)
        assert server.requests == []
    assert (run.returncode, run.stdout) == (2, b"")
    name = str(place.jobs_file)
    told = [line.split(": ", 2)[:2] for line in run.stderr.splitlines() if line.startswith(name)]
    assert told == [[f"{name}:57", "json"], *([f"{name}:59", field] for field in ("colour", "timeout_s", "id"))]
    assert not place.out.exists()


def test_lines_that_were_moved_or_added_are_no_change(place: BatchPlace) -> None:
    place.write_rules()
    first = [{"prompt": f"p{number}"} for number in range(3)]
    place.write_jobs(*first)
    assert place.batch(None).returncode == 0
    place.write_jobs({"prompt": "new"}, *reversed(first), {"prompt": "p0"})
    run = place.batch(None)
    assert run.returncode == 0, run
    results = place.results()
    started = [line["id"] for line in run.of_type("job_start")]
    assert sorted(results[job_id]["response"] for job_id in started) == ["done new", "done p0"]
    assert len(results) == 5


def test_a_changed_job_is_refused_by_name_unless_it_may_run_again(place: BatchPlace) -> None:
    place.write_rules()
    place.write_jobs(*jobs_named("a", "b"))
    assert place.batch(None).returncode == 0
    place.write_jobs({"id": "a", "prompt": "a"}, {"id": "b", "prompt": "other"})
    refused = place.batch(None)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert f"{place.jobs_file}:2: b: prompt changed" in refused.stderr
    kept = place.batch(None, "--on-changed", "keep")
    assert (kept.returncode, kept.of_type("job_start")) == (0, [])
    again = place.batch(None, "--on-changed", "rerun")
    assert [line["id"] for line in again.of_type("job_start")] == ["b"]
    assert place.results()["b"]["response"] == "done other"


def test_jobs_that_are_gone_from_the_file_are_orphaned_and_not_counted(place: BatchPlace) -> None:
    place.write_rules()
    place.write_jobs(*jobs_named("a", "b"))
    assert place.batch(None).returncode == 0
    place.write_jobs(*jobs_named("b"))
    run = place.batch(None)
    assert run.one("batch_summary")["counts"]["total"] == 1
    assert place.summary()["orphaned"] == ["a"]


def test_verdicts_can_be_dropped_by_status_and_by_id(place: BatchPlace) -> None:
    place.write_rules()
    check = {"cmd": "test -e ../../../../now-it-is-there"}
    place.write_jobs({"id": "a", "prompt": "a", "check": check}, *jobs_named("b", "c"))
    assert place.batch(None, "--retries", "0").returncode == 1
    (place.out / "now-it-is-there").touch()
    run = place.batch(None, "--rerun", "check_failed,c")
    assert run.returncode == 0, run
    assert sorted(line["id"] for line in run.of_type("job_start")) == ["a", "c"]
    assert [attempt["epoch"] for attempt in place.results()["a"]["attempts"]] == [1, 2]


def test_two_shards_joined_are_the_whole_batch(place: BatchPlace) -> None:
    place.write_rules(bash("j3", KILL))
    place.write_jobs(*numbered(8))
    assert place.batch(None, "--retries", "0").returncode == 1
    whole = place.results()
    for part in ("1", "2"):
        place.batch(None, "--retries", "0", "--shard", f"{part}/2", "--out", str(place.folder / f"part{part}"))
    parts = [str(place.folder / f"part{part}") for part in ("1", "2")]
    joined = place.command("batch", "merge", *parts, "--out", str(place.folder / "joined"))
    assert joined.returncode == 1, joined
    place.out = place.folder / "joined"
    found = place.results()
    fixed = ("id", "index", "status", "reason", "response", "usage", "spec_sha256", "cwd", "retries_used")
    assert {name: [each[field] for field in fixed] for name, each in found.items()} == {
        name: [each[field] for field in fixed] for name, each in whole.items()
    }
    assert all((place.out / each["log"]).is_file() for each in found.values())
    twice = place.command("batch", "merge", parts[0], parts[0], "--out", str(place.folder / "twice"))
    assert twice.returncode == 2
    assert "two verdicts" in twice.stderr
