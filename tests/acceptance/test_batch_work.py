"""Where the jobs of a batch work, and what is told of them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.acceptance.batch_place import (
    BatchPlace,
    always,
    bash,
    held,
    job_starts,
    jobs_named,
    numbered,
)
from tests.stubs.model_server import ModelServer


@pytest.fixture
def place(tmp_path: Path) -> BatchPlace:
    return BatchPlace(tmp_path)


# -- isolation ---------------------------------------------------------------------------------------------------------


def test_jobs_in_the_same_folder_itself_never_run_at_once(place: BatchPlace) -> None:
    command = "test ! -e busy && touch busy && sleep 0.2 && rm busy"
    place.write_rules(bash("j", command), {"when": {"results": [{"outcome": "error"}]}, "error": {"kind": "refused"}})
    place.write_jobs(*numbered(4))
    run = place.batch(None, "-j", "4", "--isolation", "none", "--progress", "none")
    assert run.returncode == 0, run
    assert "4 jobs work in" in run.stderr


def test_a_copy_leaves_its_source_alone_and_symlinks_are_symlinks(place: BatchPlace) -> None:
    place.write("a/file.txt", "old")
    (place.project / "link").symlink_to("a/file.txt")
    place.out = place.project / "deep/out"
    place.write_rules(bash("change", "echo new > a/file.txt; test -L link; echo $? > is-link; ls deep > seen"))
    place.write_jobs(*jobs_named("change"))
    run = place.batch(None, "--keep", "all")
    assert run.returncode == 0, run
    assert (place.project / "a/file.txt").read_text() == "old"
    work = place.out / "jobs/change/attempt-1/work"
    assert (work / "a/file.txt").read_text() == "new\n"
    assert (work / "is-link").read_text() == "0\n"
    assert (work / "seen").read_text() == ""


def test_worktrees_of_one_repository_are_made_at_once_and_nothing_of_the_source_changes(place: BatchPlace) -> None:
    place.repository("branch.autoSetupMerge=always")
    place.write_rules(bash("j", "echo $RANDOM >> kept.txt"))
    place.write_jobs(*numbered(16))
    run = place.batch(None, "-j", "8", timeout=120)
    assert run.returncode == 0, run
    assert place.git("status", "--porcelain") == ""
    assert place.git("worktree", "list").count("\n") == 1
    assert place.git("branch", "--list").split() == ["*", "main"]
    for result in place.results().values():
        assert result["changes"] == {"files": 1, "insertions": 1, "deletions": 0}
        place.git("apply", "--check", str(place.out / result["patch"]))


def test_a_patch_has_commits_new_files_binaries_and_symlinks(place: BatchPlace) -> None:
    place.repository()
    command = (
        "echo one > committed.txt && git add . && git -c user.name=a -c user.email=a@a commit -qm one"
        " && head -c 3000 /dev/urandom > picture.bin && ln -s committed.txt link && rm kept.txt"
        " && echo '*.log' > .gitignore"
        " && echo x > noise.log && git status --porcelain > /dev/null && sha256sum picture.bin | cut -c1-64"
    )
    place.write_rules(bash("work", command))
    place.write_jobs(*jobs_named("work"))
    run = place.batch(None, "--ref")
    assert run.returncode == 0, run
    result = place.results()["work"]
    assert result["base"] == place.git("rev-parse", "HEAD").strip()
    place.git("apply", "--index", str(place.out / result["patch"]))
    names = place.git("diff", "--cached", "--name-only").split()
    assert names == [".gitignore", "committed.txt", "kept.txt", "link", "picture.bin"]
    assert (place.project / "link").is_symlink()
    ref = f"refs/corral/{place.summary()['batch_id']}/work"
    assert place.git("diff", ref, "--stat") == ""


def test_a_batch_goes_on_from_the_commit_that_it_began_with(place: BatchPlace) -> None:
    place.repository()
    place.write_rules(bash("see", "cat kept.txt"))
    place.write_jobs(*jobs_named("see-1"))
    assert place.batch(None).returncode == 0
    place.write("kept.txt", "later\n")
    place.git("commit", "-qam", "second")
    place.write_jobs(*jobs_named("see-1", "see-2"))
    run = place.batch(None)
    assert run.returncode == 0, run
    assert len({result["base"] for result in place.results().values()}) == 1


def test_a_folder_with_changes_gets_a_warning_or_is_refused(place: BatchPlace) -> None:
    place.repository()
    place.write("kept.txt", "changed\n")
    place.write_rules()
    place.write_jobs(*numbered(2))
    refused = place.batch(None, "--require-clean")
    assert (refused.returncode, refused.stdout, place.out.exists()) == (2, b"", False)
    run = place.batch(None)
    assert run.returncode == 0, run
    assert run.stderr.count("not committed") == 1


def test_a_check_decides_on_a_complete_turn(place: BatchPlace) -> None:
    place.write_rules(bash("good", "touch made"))
    check = {"cmd": "echo looking; test -e made"}
    place.write_jobs({"id": "good", "prompt": "good", "check": check}, {"id": "bad", "prompt": "bad", "check": check})
    run = place.batch(None)
    assert run.returncode == 1, run
    assert place.statuses() == {"good": "ok", "bad": "check_failed"}
    assert place.results()["bad"]["check"] == {"exit_code": 1}
    assert "looking" in (place.out / "jobs/bad/attempt-1/stderr.log").read_text()
    assert not (place.out / "jobs/good/attempt-1/work").exists()
    assert (place.out / "jobs/bad/attempt-1/work").is_dir()


def test_a_jobs_variables_reach_its_commands_and_no_file(place: BatchPlace) -> None:
    place.write_rules(
        bash("see", "test ${#SECRET} = 12"),
        {"when": {"results": [{"outcome": "error"}]}, "error": {"kind": "refused"}},
    )
    place.write_jobs(
        {
            "id": "see",
            "prompt": "see",
            "env": {"SECRET": "hidden-value"},
            "check": {"cmd": "test ${#SECRET} = 12"},
        }
    )
    run = place.batch(None)
    assert run.returncode == 0, run
    for path in place.out.rglob("*"):
        assert not path.is_file() or b"hidden-value" not in path.read_bytes(), path


# -- output ------------------------------------------------------------------------------------------------------------


def test_a_reader_that_goes_away_costs_the_batch_nothing(place: BatchPlace) -> None:
    place.write_rules()
    place.write_jobs(*numbered(6))
    reader, writer = os.pipe()
    with place.started(None, "-j", "2", stdout=writer) as live:
        os.close(writer)
        assert os.read(reader, 20)
        os.close(reader)
        run = live.finish(checked=False)
    assert run.returncode == 0, run
    assert len(place.results()) == 6


def test_the_stream_has_its_lines_in_order_and_standard_error_no_escapes(place: BatchPlace) -> None:
    place.write_rules()
    place.write_jobs(
        {"id": "a", "prompt": "a", "tags": ["t"], "metadata": {"k": [1, 2.50]}, "x_mine": 1}, {"id": "b", "prompt": "b"}
    )
    run = place.batch(None, "-j", "1", "--include-events", "--heartbeat", "0.05")
    assert run.returncode == 0, run
    types = run.types()
    assert types[:2] == ["hello", "batch_start"]
    assert types[-1] == "batch_summary"
    assert run.one("hello") if types.count("hello") == 1 else run.lines[0]["capabilities"] == ["batch"]
    events = [line for line in run.lines if "job_id" in line]
    assert {(line["job_id"], line["attempt"]) for line in events} == {("a", 1), ("b", 1)}
    assert [line["type"] for line in events if line["job_id"] == "a"][-1] == "run_summary"
    assert "\x1b" not in run.stderr
    result = place.results()["a"]
    assert (result["tags"], result["metadata"]) == (["t"], {"k": [1, 2.5]})
    assert b'"metadata":{"k": [1, 2.5]}' in (place.out / "results.jsonl").read_bytes()


def test_on_a_terminal_a_block_is_drawn_and_taken_away(place: BatchPlace) -> None:
    place.write_rules()
    place.write_jobs(*numbered(3))
    ours, theirs = pty.openpty()
    words = [str(place.executable), *place.words(None, ("--output-format", "json"))]
    environment = {**place.environment(), "TERM": "xterm"}
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as run:
        os.close(theirs)
        shown = read_terminal(ours)
        assert run.stdout is not None
        assert json.loads(run.stdout.read())["counts"]["ok"] == 3
    assert b"[3/3] ok=3" in shown
    assert shown.rstrip().endswith(b"\x1b[2K"), "the block is gone"


def read_terminal(descriptor: int) -> bytes:
    """All that comes, until nobody has the other end."""
    shown = bytearray()
    with contextlib.suppress(OSError):  # that is how Linux says so
        while piece := os.read(descriptor, 65_536):
            shown += piece
    os.close(descriptor)
    return bytes(shown)


def test_a_signal_of_the_terminals_end_has_its_own_code(place: BatchPlace) -> None:
    place.write_jobs(*numbered(1))
    pause = threading.Event()
    flags = ("--isolation", "none", "--drain", "0")
    with ModelServer(always(lambda: held(pause))) as server, place.started(server, *flags) as live:
        server.wait_for_requests(1)
        live.signal(signal.SIGHUP)
        assert live.finish(checked=False).returncode == 129


def test_jobs_can_come_from_standard_input(place: BatchPlace) -> None:
    place.write_rules()
    words = ["batch", "-", "--out", str(place.out), *place.scripted()]
    lines = b'{"id": "a", "prompt": "a"}\n'
    assert place.command(*words, stdin=lines).returncode == 0
    assert place.statuses() == {"a": "ok"}
    assert place.command("batch", "-", *place.scripted(), stdin=lines).returncode == 2


def test_json_is_one_object_and_text_a_table(place: BatchPlace) -> None:
    place.write_rules()
    place.write_jobs(*numbered(2))
    told = place.batch(None, "--output-format", "json")
    assert json.loads(told.stdout)["counts"]["ok"] == 2
    table = place.batch(None, "--output-format", "text").stdout.decode().splitlines()
    assert table[0].split()[:3] == ["JOB", "STATUS", "REASON"]
    assert table[-1].startswith("2 jobs: 2 ok; ")


def test_status_is_told_during_a_run_and_after_it(place: BatchPlace) -> None:
    place.write_jobs(*numbered(1))
    pause = threading.Event()
    with ModelServer(always(lambda: held(pause))) as server, place.started(server, "--isolation", "none") as live:
        job_starts(live, 1)
        server.wait_for_requests(1)
        during = json.loads(place.command("batch", "status", str(place.out), "--json").stdout)
        pause.set()
        live.finish(checked=False)
    assert (during["state"], during["counts"]["pending"]) == ("running", 1)
    assert [job["id"] for job in during["running"]] == ["j0"]
    after = place.command("batch", "status", str(place.out))
    assert "1 ok" in after.stdout.decode()
    assert place.command("batch", "status", str(place.folder / "nowhere")).returncode == 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--budget-usd", "1"], "no table of prices"),
        (["--backend", "ray"], "ray"),
        (["--halt", "later"], "--halt"),
        (["-p", "x"], "-p"),
        (["--session", "x"], "one run"),
        (["-j", "0"], "--jobs"),
        (["--shard", "3/2"], "--shard"),
        (["--retry-on", "luck"], "--retry-on"),
    ],
)
def test_what_can_not_be_held_is_refused_in_a_sentence(place: BatchPlace, flags: list[str], words: str) -> None:
    place.write_rules()
    place.write_jobs(*numbered(1))
    run = place.batch(None, *flags)
    assert (run.returncode, run.stdout, place.out.exists()) == (2, b"", False)
    assert words in run.stderr


def test_a_dry_run_prints_the_plan_and_makes_nothing(place: BatchPlace) -> None:
    place.write_rules()
    place.write_jobs(*numbered(2))
    run = place.batch(None, "--dry-run")
    assert run.returncode == 0, run
    assert "2 jobs, 2 to run" in run.stdout.decode()
    assert not place.out.exists()
