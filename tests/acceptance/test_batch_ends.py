"""The ways in which a batch ends early: limits, halts, signals."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from tests.acceptance.batch_place import (
    BatchPlace,
    Bearing,
    always,
    answer_done,
    bash,
    held,
    jobs_named,
    ledger_rows,
    numbered,
)
from tests.stubs.model_server import ModelServer
from tests.stubs.process_table import ended_within
from tests.stubs.replies import status, text


@pytest.fixture
def place(tmp_path: Path) -> BatchPlace:
    return BatchPlace(tmp_path)


# -- limits and halts --------------------------------------------------------------------------------------------------


def test_a_server_that_bears_three_calls_gets_three_and_no_job_fails(place: BatchPlace) -> None:
    place.write_jobs(*numbered(16))
    bearing = Bearing(3)
    with ModelServer(bearing) as server:
        run = place.batch(server, "-j", "8", "--isolation", "none", "--trust", "plan")
    assert run.returncode == 0, run
    assert set(place.statuses().values()) == {"ok"}
    assert max(bearing.peaks[:4]) == 4
    assert max(bearing.peaks[4:]) <= 3, bearing.peaks


def test_a_key_that_is_refused_stops_the_batch_and_leaves_its_jobs_pending(place: BatchPlace) -> None:
    place.write_jobs(*numbered(12))
    with ModelServer(always(lambda: status(401, "no such key"))) as server:
        run = place.batch(server, "-j", "3", "--isolation", "none", "--trust", "plan")
        assert len(server.chats) <= 3
    assert run.returncode == 3, run
    assert (place.summary()["reason"], place.summary()["not_run"]) == ("provider", 12)
    assert place.results() == {}


def test_rate_limits_without_end_stop_the_batch_when_its_patience_is_over(place: BatchPlace) -> None:
    place.write_jobs(*numbered(2))
    with ModelServer(always(lambda: status(429, "no", [("retry-after", "0")]))) as server:
        run = place.batch(server, "--isolation", "none", "--trust", "plan", "--rate-limit-patience", "1")
    assert run.returncode == 3, run
    assert (place.summary()["reason"], place.results()) == ("rate_limited", {})


def test_a_server_that_is_down_is_tried_again_and_then_the_job_has_crashed(place: BatchPlace) -> None:
    place.write_jobs(*numbered(1))
    with ModelServer(always(lambda: status(500, "down", [("retry-after", "0")]))) as server:
        run = place.batch(server, "--isolation", "none", "--retry-delay", "0")
    assert run.returncode == 1, run
    result = place.results()["j0"]
    assert (result["status"], result["reason"]) == ("crashed", "transient")
    assert [attempt["outcome"] for attempt in result["attempts"]] == ["transient"] * 2


def test_a_reached_budget_starts_nothing_new(place: BatchPlace) -> None:
    place.write_jobs(*numbered(10))
    with ModelServer(answer_done) as server:
        run = place.batch(server, "-j", "1", "--isolation", "none", "--max-tokens-total", "500")
        asked = len(server.chats)
        again = place.batch(server, "-j", "1", "--isolation", "none", "--max-tokens-total", "500")
        assert len(server.chats) == asked, "what earlier runs used counts too"
    assert (run.returncode, again.returncode) == (3, 3)
    assert asked == 3  # 220 tokens each
    assert place.summary()["reason"] == "budget"
    assert len(place.results()) == 3


def test_a_job_that_has_used_its_own_budget_is_told_so(place: BatchPlace) -> None:
    place.write_rules(bash("greedy", "true"))
    place.write_jobs({"id": "greedy", "prompt": "greedy", "max_tokens_total": 2000})
    assert place.batch(None).returncode == 1
    assert (place.statuses(), place.results()["greedy"]["reason"]) == ({"greedy": "budget"}, "max_tokens_total")


def test_halt_now_stops_what_runs_and_leaves_it_pending(place: BatchPlace) -> None:
    place.write_rules(bash("sleeper", "sleep 60"), {"when": {"prompt": "bad"}, "error": {"kind": "refused"}})
    place.write_jobs(*jobs_named("sleeper-1", "sleeper-2", "bad"))
    began = time.monotonic()
    run = place.batch(None, "-j", "3", "--halt", "now,fail=1", "--retries", "0")
    assert run.returncode == 3, run
    assert time.monotonic() - began < 15
    assert place.statuses() == {"bad": "failed"}
    assert (place.summary()["reason"], place.summary()["not_run"]) == ("halt", 2)


def test_the_breaker_opens_when_the_first_verdicts_are_all_the_same_failure(place: BatchPlace) -> None:
    place.write_rules({"error": {"kind": "refused", "message": "no"}})
    place.write_jobs(*numbered(20))
    run = place.batch(None, "-j", "2", "--isolation", "none", "--trust", "plan")
    assert run.returncode == 3, run
    assert 5 <= len(place.results()) <= 6
    assert place.summary()["reason"] == "breaker"


def test_a_hung_tool_that_ignores_signals_ends_with_its_jobs_timeout(place: BatchPlace) -> None:
    place.write_rules(bash("hang", "trap '' INT TERM HUP; (setsid sleep 77 &) ; sleep 77; sleep 78"))
    place.write_jobs({"id": "hang", "prompt": "hang", "timeout_s": 2})
    began = time.monotonic()
    run = place.batch(None)
    assert run.returncode == 1, run
    assert time.monotonic() - began < 15
    assert place.statuses() == {"hang": "timeout"}


def test_the_whole_run_has_a_time_limit_too(place: BatchPlace) -> None:
    place.write_rules(bash("hang", "sleep 60"))
    place.write_jobs(*jobs_named("hang"))
    run = place.batch(None, "--batch-timeout", "1.5")
    assert (run.returncode, place.summary()["reason"], place.results()) == (3, "batch_timeout", {})


def test_higher_priority_goes_first(place: BatchPlace) -> None:
    place.write_rules()
    place.write_jobs({"id": "a", "prompt": "a"}, {"id": "b", "prompt": "b", "priority": 2}, {"id": "c", "prompt": "c"})
    run = place.batch(None, "-j", "1")
    assert [line["id"] for line in run.of_type("job_start")] == ["b", "a", "c"]


# -- signals -----------------------------------------------------------------------------------------------------------


def test_one_interrupt_lets_what_runs_end_within_the_drain(place: BatchPlace) -> None:
    place.write_jobs(*numbered(4))
    pause = threading.Event()
    with ModelServer(always(lambda: text("Done.") if pause.is_set() else held(pause))) as server:
        flags = ("-j", "2", "--isolation", "none", "--trust", "plan")
        with place.started(server, *flags, "--drain", "20") as live:
            server.wait_for_requests(2)
            live.signal(signal.SIGINT)
            pause.set()
            run = live.finish(checked=False)
        assert run.returncode == 130, run
        assert set(place.statuses().values()) == {"ok"}
        assert len(place.results()) == 2
        assert place.summary()["reason"] == "signal"
        assert place.batch(server, *flags).returncode == 0
    assert len(place.results()) == 4


def test_after_the_drain_turns_are_cancelled_and_their_jobs_run_again(place: BatchPlace) -> None:
    place.write_jobs(*numbered(2))
    pause = threading.Event()
    with ModelServer(always(lambda: text("Done.") if pause.is_set() else held(pause))) as server:
        flags = ("--isolation", "none", "--trust", "plan")
        with place.started(server, *flags, "--drain", "0.2") as live:
            server.wait_for_requests(2)
            live.signal(signal.SIGTERM)
            run = live.finish(checked=False)
        assert (run.returncode, place.results()) == (143, {})
        wire = (place.out / "jobs/j0/attempt-1/wire.ndjson").read_text()
        assert '"kind":"cancelled"' in wire
        pause.set()
        assert place.batch(server, *flags).returncode == 0
    outcomes = [attempt["outcome"] for attempt in place.results()["j0"]["attempts"]]
    assert outcomes == ["cancelled", "ok"]


def test_a_second_interrupt_kills_at_once(place: BatchPlace) -> None:
    place.write_rules(bash("stubborn", "trap '' INT TERM HUP; echo up; sleep 60; sleep 60"))
    place.write_jobs(*jobs_named("stubborn"))
    with place.started(None, "--include-events", "--drain", "60") as live:
        live.wait_for(lambda line: line["type"] == "tool_output_line")
        live.signal(signal.SIGINT)
        live.wait_for_stderr("no job starts any more")
        live.signal(signal.SIGINT)
        assert ended_within(live.process.pid, 4)
        run = live.finish(checked=False)
    assert run.returncode == 130, run
    assert ledger_rows(place, "SELECT outcome FROM attempt") == [("cancelled",)]
    assert place.summary()["exit_code"] == 130
