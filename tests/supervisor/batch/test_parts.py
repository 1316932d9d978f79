"""The small parts: trees of processes, figures, tables, git's numbers, results joined."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec
import pytest

from protocol.usage import Usage
from supervisor.batch.core.result_line import MOST_RESPONSE_BYTES, cut, iso, summed
from supervisor.batch.git import count_changes
from supervisor.batch.merge import join_results
from supervisor.batch.output import report, total
from supervisor.batch.process_trees import end_tree, start_time
from supervisor.batch.progress import PlainProgress, Snapshot, clock, make_progress, state_line, verdict_words
from supervisor.batch.records import BatchSummary, Changes, Counts, JobResult, result_decoder
from supervisor.batch.tally import Tally
from supervisor.errors import WrongUsage
from tests.stubs.process_table import ended_within


def result(job_id: str = "a", **fields: object) -> JobResult:
    base: dict[str, object] = {
        "type": "job_result",
        "v": 1,
        "batch_id": "b",
        "id": job_id,
        "index": 0,
        "status": "ok",
        "reason": "",
        "success": True,
        "response": "",
        "response_truncated": False,
        "session_id": None,
        "provider": "p",
        "model": "m",
        "attempt": 1,
        "retries_used": 0,
        "attempts": [],
        "usage": {"prompt_tokens": 1500},
        "usage_by_agent": {},
        "uncertain_calls": 0,
        "cost_usd": None,
        "wall_ms": 1234,
        "queue_ms": 0,
        "started_at": "1",
        "ended_at": "2",
        "cwd": "/x",
        "isolation": "none",
        "base": None,
        "patch": None,
        "changes": None,
        "check": None,
        "log": None,
        "host": "h",
        "spec_sha256": "s",
        "tags": [],
        "metadata": None,
    }
    return result_decoder.decode(msgspec.json.encode({**base, **fields}))


# -- trees of processes -----------------------------------------------------------------------------------------------

TREE = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"


def test_a_tree_is_ended_with_its_children() -> None:
    with subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert end_tree(parent.pid, start_time(parent.pid))
        assert ended_within(child, 5)
    assert parent.returncode == -signal.SIGKILL


def test_a_number_that_another_process_has_now_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        assert end_tree(other.pid, "1")
        assert end_tree(other.pid, None)
        assert other.poll() is None
        other.kill()
    assert start_time(other.pid) is None
    assert start_time(os.getpid()) is not None


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_changes_are_counted_and_binary_files_have_no_lines() -> None:
    numstat = b"3\t1\ta.txt\0-\t-\tpicture.bin\0002\t0\tname\twith tab\0"
    assert count_changes(numstat) == Changes(files=3, insertions=5, deletions=1)
    assert count_changes(b"") == Changes(files=0, insertions=0, deletions=0)


def test_a_long_response_is_cut_between_characters() -> None:
    assert cut("short") == ("short", False)
    text, is_cut = cut("ä" * MOST_RESPONSE_BYTES)
    assert is_cut
    assert text == "ä" * (MOST_RESPONSE_BYTES // 2)


def test_times_are_utc_with_milliseconds() -> None:
    assert iso(0.5) == "1970-01-01T00:00:00.500Z"


def test_usage_is_summed_by_agent() -> None:
    one = Usage(api_calls=1)
    assert summed([{"main": one}, {"main": one, "task": one}]) == {"main": one + one, "task": one}


def test_the_time_left_is_known_from_three_verdicts_on_and_shared_by_the_slots() -> None:
    tally = Tally(10)
    tally.take_verdict("ok", 4.0)
    tally.take_verdict("ok", 4.0)
    assert tally.eta_seconds(2) is None
    tally.take_verdict("failed", 7.0)
    assert tally.eta_seconds(2) == 5.0 * 7 / 2
    assert tally.eta_seconds(100) == 5.0
    assert (tally.verdicts, tally.pending, tally.counts().failed) == (3, 7, 1)


def test_what_runs_counts_once() -> None:
    tally = Tally(1)
    tally.take_usage("a", 1, Usage(prompt_tokens=5))
    tally.take_usage("a", 1, Usage(prompt_tokens=9))
    assert tally.usage.prompt_tokens == 9
    tally.end_attempt("a", 1, Usage(prompt_tokens=9), 1)
    assert (tally.usage.prompt_tokens, tally.uncertain_calls) == (9, 1)


# -- words for a person -----------------------------------------------------------------------------------------------

SNAPSHOT = Snapshot(
    counts=Counts(total=100, pending=88, ok=10, failed=1, crashed=1),
    running=(("a", 1.0),) * 8,
    retries=2,
    tokens=1_200_000,
    eta_seconds=750.0,
)


def test_a_heartbeat_is_one_line() -> None:
    expected = "[12/100] ok=10 failed=1 crashed=1 running=8 retry=2 eta=00:12:30 tokens=1.2M"
    assert state_line(SNAPSHOT) == expected
    assert clock(None) == "?"


def test_a_verdict_is_one_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    PlainProgress().verdict(result(reason="\x1b[31mred\nline"), SNAPSHOT)
    told = capsys.readouterr().err
    assert told == "[12/100] a ok (red line), 1.2s, 1.5k tokens\n"
    assert verdict_words(result()) == "a ok, 1.2s, 1.5k tokens"


def test_who_wants_it_quiet_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress = make_progress("plain", quiet=True)
    progress.note("n")
    progress.heartbeat(SNAPSHOT)
    assert capsys.readouterr().err == ""


def summary(**fields: object) -> BatchSummary:
    made = BatchSummary(
        batch_id="b",
        counts=Counts(total=2, ok=1, failed=1),
        usage=Usage(prompt_tokens=3000, api_calls=2),
        uncertain_calls=0,
        cost_usd=None,
        not_run=0,
        exit_code=1,
        reason="failed",
    )
    return msgspec.structs.replace(made, **fields)


def test_the_table_has_a_row_for_each_job_in_the_order_of_the_file() -> None:
    text = report(summary(), [result("b", index=1, status="failed", reason="refused"), result("a")])
    assert [line.split()[:3] for line in text.splitlines()] == [
        ["JOB", "STATUS", "REASON"],
        ["a", "ok", "-"],
        ["b", "failed", "refused"],
        ["2", "jobs:", "1"],
    ]
    assert text.endswith("2 jobs: 1 ok, 1 failed; 3.0k tokens in 2 model calls\n")


def test_of_many_jobs_only_those_have_a_row_that_are_not_ok() -> None:
    text = report(summary(), [*(result(f"j{number}") for number in range(150)), result("bad", status="failed")])
    assert [line.split()[0] for line in text.splitlines()] == ["JOB", "bad", "2"]


def test_why_a_batch_stopped_early_is_said() -> None:
    told = total(summary(counts=Counts(total=3, ok=1, pending=2), reason="budget"))
    assert told == "3 jobs: 1 ok, 2 not run; 3.0k tokens in 2 model calls (budget)"


# -- joined results ---------------------------------------------------------------------------------------------------


def test_joined_results_come_in_the_order_of_their_ends() -> None:
    joined = join_results([result("a", ended_at="3"), result("b", ended_at="1")], None)
    assert [each.id for each in joined] == ["b", "a"]


def test_of_two_verdicts_the_preferred_one_counts() -> None:
    good, late = result(ended_at="1"), result(ended_at="9", status="failed", success=False)
    with pytest.raises(WrongUsage, match="two verdicts on the job a"):
        join_results([good, late], None)
    assert join_results([good, late], "ok") == [good]
    assert join_results([late, good], "ok") == [good]
    assert join_results([good, late], "latest") == [late]


def test_a_results_line_survives_reading_and_writing() -> None:
    line = msgspec.json.encode(result(metadata={"k": [1, 2]}))
    assert msgspec.json.encode(result_decoder.decode(line)) == line
