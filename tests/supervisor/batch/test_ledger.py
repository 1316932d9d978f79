from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from protocol.usage import Usage
from supervisor.batch import ledger_schema as schema
from supervisor.batch.core.outcome import AttemptEnd
from supervisor.batch.errors import BatchLocked
from supervisor.batch.folder import FolderLock, ResultsFile, is_locked, make_folder
from supervisor.batch.ledger import Ledger, is_on_network, read_ledger
from supervisor.errors import StoreCorrupt, StoreNewer

RUN = schema.begin_run(1, 1, "1", "here", ["jobs.jsonl"], 0.0)
JOB = schema.put_job("a", 0, b"{}", "sha")


def new_ledger(folder: Path) -> Ledger:
    return Ledger.open(folder, None, [RUN, JOB], "sha")


async def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    used = Usage(prompt_tokens=3, api_calls=1)
    ledger.write(*schema.begin_attempt("a", 1, 1, "jobs/a/attempt-1/work", 5.0))
    ledger.write(schema.know_process("a", 1, 77, "123"), schema.know_session("a", 1, "s"))
    ledger.write(schema.put_usage("a", 1, used, {"main": used}, 2))
    end = schema.end_attempt("a", 1, AttemptEnd(outcome="ok"), 7.0, 0, None)
    await ledger.write(end, *schema.put_verdict("a", "ok", b'{"id":"a"}', 0)).wait()
    ledger.close()
    state = read_ledger(tmp_path)
    assert state is not None
    assert (state.batch_id, state.epoch, state.jobs["a"].state) == (ledger.batch_id, 1, "done")
    (attempt,) = state.attempts["a"]
    assert (attempt.pid, attempt.pid_start, attempt.session_id, attempt.outcome) == (77, "123", "s", "ok")
    assert (attempt.usage, attempt.usage_by_agent, attempt.uncertain_calls) == (used, {"main": used}, 2)
    assert state.results["a"].line == b'{"id":"a"}'


async def test_a_dropped_verdict_leaves_the_attempts_and_a_new_one_comes_last(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, None, [RUN, JOB, schema.put_job("b", 1, b"{}", "sha")], "sha")
    for job_id in ("a", "b"):
        ledger.write(*schema.put_verdict(job_id, "failed", b"old", 1))
    ledger.write(*schema.drop_verdict("a"))
    state = read_ledger(tmp_path)
    await ledger.write(*schema.put_verdict("a", "ok", b"new", 0)).wait()
    ledger.close()
    state = read_ledger(tmp_path)
    assert state is not None
    assert list(state.results) == ["b", "a"]


def test_a_folder_without_a_ledger_has_none_and_one_cut_off_at_birth_is_made_anew(tmp_path: Path) -> None:
    assert read_ledger(tmp_path) is None
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    assert read_ledger(tmp_path) is None
    new_ledger(tmp_path).close()
    state = read_ledger(tmp_path)
    assert state is not None
    assert list(state.jobs) == ["a"]


def test_a_ledger_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    ledger.close()
    assert modes
    assert set(modes.values()) == {0o600}


def test_a_newer_one_and_another_programs_are_left_alone(tmp_path: Path) -> None:
    new_ledger(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreNewer, match="newer corral"):
        read_ledger(tmp_path)
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.execute("PRAGMA application_id = 1")
    with pytest.raises(StoreCorrupt, match="no ledger"):
        read_ledger(tmp_path)


@pytest.mark.parametrize(
    ("mounts", "on_network"),
    [
        ("d / ext4 rw 0 0\nserver:/x {home} nfs4 rw 0 0", True),
        ("d / nfs rw 0 0\nd {home} ext4 rw 0 0", False),
        ("d / ext4 rw 0 0\nserver:/x {home}-not nfs4 rw 0 0", False),
    ],
)
def test_a_network_file_system_is_known_by_the_nearest_mount(tmp_path: Path, mounts: str, on_network: bool) -> None:
    assert is_on_network(tmp_path / "deep", lambda: mounts.format(home=tmp_path.resolve())) is on_network


def test_the_lock_says_who_has_it_and_ends_with_its_holder(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    assert is_locked(tmp_path)
    with pytest.raises(BatchLocked, match=f"process {os.getpid()} on "):
        FolderLock(tmp_path)
    lock.release()
    assert not is_locked(tmp_path)
    FolderLock(tmp_path).release()


def test_the_results_are_made_anew_and_then_added_to(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_bytes(b'{"torn')
    results = ResultsFile(tmp_path, [b"1", b"2"])
    results.append(b"3")
    results.close()
    assert (tmp_path / "results.jsonl").read_bytes() == b"1\n2\n3\n"
    assert not list(tmp_path.glob("*.tmp"))


def test_git_does_not_see_a_batchs_folder(tmp_path: Path) -> None:
    make_folder(tmp_path / "out")
    assert (tmp_path / "out/.gitignore").read_text() == "*\n"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700
