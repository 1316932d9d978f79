"""The runner of the black-box tests: what a run leaves behind, or does not do in time, is found and ended."""

from __future__ import annotations

import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.stubs.corral_run import Place
from tests.stubs.process_table import process_table


def place_with(folder: Path, script: str) -> Place:
    """A place whose command is this shell script."""
    command = folder / "command"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return Place(folder, command)


def running(word: str) -> list[int]:
    """The pids of what runs with ``word`` in its command line."""
    return [process.pid for process in process_table().values() if process.alive and word in process.command]


def test_a_run_is_read_whole(tmp_path: Path) -> None:
    run = place_with(tmp_path, 'echo \'{"type": "hello"}\'; echo note >&2; cat; exit 7').command(stdin=b"")
    assert (run.types(), run.stderr, run.returncode) == (["hello"], "note\n", 7)
    assert run.one("hello") == {"type": "hello"}


def test_a_run_gets_a_clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_MODEL", "from outside")
    monkeypatch.setenv("OPENAI_API_KEY", "from outside")
    place = place_with(tmp_path, "env")
    given = place.command(environment={"EXTRA": "1"}).stdout.decode()
    assert "from outside" not in given
    assert f"HOME={place.home}" in given
    assert "EXTRA=1" in given


@pytest.fixture
def seconds() -> str:
    """A time to sleep that nobody else on this machine sleeps: it tells a process from all others."""
    return f"70.{uuid.uuid4().int % 10**9:09}"


@pytest.mark.parametrize(
    "leaking",
    [
        "sleep $1 >/dev/null 2>&1 &",
        "setsid sleep $1 >/dev/null 2>&1 &",
        "(setsid sh -c 'cd /; env -i sleep $0' $1 >/dev/null 2>&1 &)",
    ],
    ids=["background", "a session of its own", "orphan without marker and folder"],
)
def test_a_process_that_a_run_leaves_behind_fails_the_test_and_is_ended(
    tmp_path: Path, seconds: str, leaking: str
) -> None:
    with pytest.raises(AssertionError, match="left behind"):
        place_with(tmp_path, leaking).command(seconds)
    assert running(seconds) == []


def test_a_run_that_does_not_end_is_killed_with_all_that_it_started(tmp_path: Path, seconds: str) -> None:
    place = place_with(tmp_path, "setsid sleep $1 & echo out; sleep $1")
    with pytest.raises(AssertionError, match="still running"):
        place.command(seconds, timeout=0.3)
    assert running(seconds) == []


def test_a_traceback_on_stderr_fails_the_test(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="Traceback"):
        place_with(tmp_path, "echo 'Traceback (most recent call last):' >&2").command()


def test_a_live_run_can_be_watched_and_signalled(tmp_path: Path) -> None:
    script = 'trap "exit 9" TERM; echo \'{"type": "tool_output_line", "line": "begun"}\'; while :; do sleep 0.05; done'
    with place_with(tmp_path, script).start("http://nowhere") as live:
        live.wait_for_output("begun")
        live.signal(signal.SIGTERM)
        run = live.finish(checked=False)
    assert run.returncode == 9


def test_a_process_of_ours_that_was_there_before_is_left_alone(tmp_path: Path, seconds: str) -> None:
    with subprocess.Popen(["sleep", seconds]) as other:
        try:
            assert place_with(tmp_path, "true").command().returncode == 0
            assert running(seconds) == [other.pid]
        finally:
            other.kill()
