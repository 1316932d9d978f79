"""What a machine keeps for a batch, and what a later run finds and ends there."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from supervisor.batch.remote.grounds import PARCELS, clear, keep, leave, make_grounds, parcel_lock
from supervisor.batch.remote.token import Token, read_token
from tests.stubs.process_table import ended_within

SLEEPER = "import signal, sys; sys.stdout.write('.'); sys.stdout.flush(); signal.pause()"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def token(epoch: int, batch_id: str = "b-1") -> Token:
    return Token(batch_id=batch_id, epoch=epoch, job_id="a.b_c-d", n=2)


def test_a_token_is_read_as_it_was_written_and_other_words_are_none() -> None:
    assert read_token(str(token(3))) == token(3)
    for word in ("", "corral-attempt:b:1", "corral-attempt:b:x:j:1", f"x{token(1)}", f"{token(1)} "):
        assert read_token(word) is None


def test_processes_and_folders_of_earlier_runs_are_cleared_and_no_others(temporary: Path) -> None:
    words = [str(token(1)), str(token(2)), str(token(1, "b-2"))]
    processes = [subprocess.Popen([sys.executable, "-c", SLEEPER, word], stdout=subprocess.PIPE) for word in words]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.read(1)
        old, new, other = (make_grounds(each) for each in (token(1), token(2), token(1, "b-2")))
        locked = old / "read-only"
        locked.mkdir()
        (locked / "file").touch()
        locked.chmod(0o500)
        assert clear("b-1", 2) == 1
        assert ended_within(processes[0].pid, 20)
        assert [process.poll() is None for process in processes[1:]] == [True, True]
        assert [folder.exists() for folder in (old, new, other)] == [False, True, True]
        assert leave("b-1", 2) == 1
        assert not new.parent.exists()
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_folder_that_somebody_else_has_put_there_is_not_used(temporary: Path) -> None:
    made = make_grounds(token(1)).parent
    made.chmod(0o777)
    with pytest.raises(PermissionError):
        make_grounds(token(2))
    aside = temporary / "aside"
    made.rename(aside)
    made.symlink_to(aside)
    with pytest.raises(PermissionError):
        make_grounds(token(2))
    assert clear("b-1", 9) == 0
    assert (aside / "1").exists()


def test_one_at_a_time_has_a_parcel() -> None:
    parcels = make_grounds(token(1)) / PARCELS
    with parcel_lock(parcels, "x") as first, parcel_lock(parcels, "x", wait=False) as second:
        assert (first, second) == (True, False)
    with parcel_lock(parcels, "x", wait=False) as again:
        assert again


def test_what_must_be_kept_is_where_nothing_clears_it_away() -> None:
    work = make_grounds(token(1)) / "work"
    work.mkdir()
    (work / "file").write_text("of worth")
    kept = keep(work, token(1))
    leave("b-1", 1)
    assert (kept / "file").read_text() == "of worth"
