"""``corral batch`` whose jobs are made by a cluster: all of it but Ray itself, for which there is a stand-in.

With a real Ray the same is in tests/interop.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.acceptance.batch_place import BatchPlace, Bearing, Result, always, bash, held, jobs_named, numbered, steady
from tests.stubs.model_server import ModelServer, ReceivedRequest
from tests.stubs.process_table import descendants, ended_within
from tests.stubs.replies import Reply, status, text, tool_call

STUB = Path(__file__).resolve().parents[1] / "stubs" / "ray_stub"
KILL_ATTEMPT = """\
pid=$PPID
while [ "$pid" -gt 1 ]; do
    if tr '\\0' ' ' < /proc/$pid/cmdline | grep -q corral-attempt:; then attempt=$pid; fi
    pid=$(sed -n 's/^PPid:\\t//p' /proc/$pid/status)
done
kill -9 $attempt
"""
"""Kills the process that makes the attempt: the uppermost of those that have its words, as its forks do."""
FLAGS = ("--backend", "ray:stub", "--shared-fs")
PLAIN = (*FLAGS, "--isolation", "none", "--trust", "plan")
SECONDS = 60.0


class RemotePlace(BatchPlace):
    """A place whose commands find the stand-in, and whose machine has a folder for temporary files of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PYTHONPATH": str(STUB), "TMPDIR": str(self.temporary)}


@pytest.fixture
def place(tmp_path: Path) -> Generator[RemotePlace, None, None]:
    place = RemotePlace(tmp_path)
    yield place
    left = [path.name for path in place.temporary.iterdir()]
    assert left == [], "something was left on the machine"


# -- the same as local -------------------------------------------------------------------------------------------------


def test_jobs_that_are_made_elsewhere_come_to_the_same_as_here(place: RemotePlace) -> None:
    place.repository()
    plain = place.folder / "plain"
    plain.mkdir()
    (plain / "there.txt").write_text("there\n")
    (plain / "link").symlink_to("there.txt")
    place.write_rules(
        bash("commits", "echo $COLOUR > new.txt && git add new.txt && git -c user.name=a -c user.email=b commit -qm x"),
        bash("copies", "cat there.txt link && echo more >> there.txt"),
        bash("dies", "printf '\\0\\1' > bin; ln -s kept.txt link; kill -9 $PPID"),
    )
    place.write_jobs(
        *jobs_named("commits", env={"COLOUR": "green"}, tags=["a"], metadata={"n": [1, None]}),
        *jobs_named("copies", cwd=str(plain), isolation="copy", check={"cmd": "test $(wc -l < there.txt) = 2"}),
        *jobs_named("stays", isolation="none", check={"cmd": "echo told; exit 3"}),
        *jobs_named("dies", retries=0),
    )
    found: list[dict[str, Result]] = []
    for name, flags in (("here", ()), ("there", FLAGS)):
        place.out = place.folder / name
        run = place.batch(None, *flags, "--ref", "--include-events", timeout=SECONDS)
        assert run.returncode == 1, run
        assert {line["job_id"] for line in run.of_type("run_summary")} == {"commits", "copies", "stays", "dies"}
        found.append({job: steady(result) for job, result in place.results().items()})
    here, there = found
    assert here == there
    assert {job: result["status"] for job, result in there.items()} == {
        "commits": "ok",
        "copies": "ok",
        "stays": "check_failed",
        "dies": "crashed",
    }
    for job in ("commits", "dies"):
        patches = [(place.folder / name / there[job]["patch"]).read_bytes() for name in ("here", "there")]
        assert patches[0] == patches[1] != b""
    assert "told" in (place.folder / "there/jobs/stays/attempt-1/stderr.log").read_text()
    refs = place.git("for-each-ref", "--format=%(refname)", "refs/corral/*/commits").split()
    assert len(refs) == 2
    assert place.git("diff", *refs) == ""
    assert (plain / "there.txt").read_text() == "there\n"


# -- crashes -----------------------------------------------------------------------------------------------------------


def test_a_process_that_dies_elsewhere_costs_its_job_an_attempt_and_usage_is_what_was_billed(
    place: RemotePlace,
) -> None:
    script = place.write("kill_attempt.sh", KILL_ATTEMPT)
    place.write_jobs(*jobs_named("once", "never", "always"))
    killed: set[str] = set()

    def answer(request: ReceivedRequest) -> Reply:
        if request.prompt == "never" or request.prompt in killed:
            return text("Done.")
        killed.update({request.prompt} - {"always"})
        return tool_call("end", "Bash", {"command": f"sh {script}"})

    with ModelServer(answer) as server:
        run = place.batch(server, *FLAGS, "--isolation", "copy", "--trust", "auto", timeout=SECONDS)
        billed = server.billed
    assert run.returncode == 1, run
    results = place.results()
    ends = {job: [(each["outcome"], each["reason"]) for each in result["attempts"]] for job, result in results.items()}
    lost = ("crashed", "node_lost")
    assert ends == {"once": [lost, ("ok", "")], "never": [("ok", "")], "always": [lost, lost]}
    assert (results["always"]["status"], results["always"]["reason"]) == ("crashed", "node_lost")
    assert place.summary()["usage"]["api_calls"] == billed.api_calls
    assert place.summary()["usage"]["prompt_tokens"] == billed.prompt_tokens
    assert "signal 9" in (place.out / "jobs/always/attempt-2/stderr.log").read_text()


def test_when_the_runner_is_killed_nothing_lives_elsewhere_and_only_what_was_not_done_runs_again(
    place: RemotePlace,
) -> None:
    place.write_jobs(*numbered(3))
    pause = threading.Event()
    asked: dict[str, int] = {}

    def answer(request: ReceivedRequest) -> Reply:
        asked[request.prompt] = asked.get(request.prompt, 0) + 1
        return text("Done.") if request.prompt == "j0" or pause.is_set() else held(pause)

    with ModelServer(answer) as server:
        with place.started(server, *PLAIN) as live:
            live.wait_for(lambda line: line["type"] == "job_result", 1, timeout=SECONDS)
            server.wait_for_requests(3, timeout=SECONDS)
            doomed = [process.pid for process in descendants(live.process.pid)]
            os.kill(live.process.pid, signal.SIGKILL)
            assert all(ended_within(pid, 20) for pid in doomed)
        pause.set()
        run = place.batch(server, *PLAIN, timeout=SECONDS)
    assert run.returncode == 0, run
    assert run.one("batch_start")["pending"] == 2
    assert asked == {"j0": 1, "j1": 2, "j2": 2}
    assert [attempt["outcome"] for attempt in place.results()["j2"]["attempts"]] == ["lost", "ok"]
    assert place.summary()["uncertain_calls"] == 2


# -- the gate, and other ends ------------------------------------------------------------------------------------------


def test_a_server_that_bears_three_calls_gets_three_from_all_machines_together(place: RemotePlace) -> None:
    place.write_jobs(*numbered(8))
    bearing = Bearing(3)
    with ModelServer(bearing) as server:
        run = place.batch(server, *PLAIN, "-j", "5", timeout=SECONDS)
    assert run.returncode == 0, run
    assert set(place.statuses().values()) == {"ok"}
    assert max(bearing.peaks[:4]) == 4
    assert max(bearing.peaks[4:]) <= 3, bearing.peaks


def test_a_key_that_is_refused_elsewhere_stops_the_batch(place: RemotePlace) -> None:
    place.write_jobs(*numbered(6))
    with ModelServer(always(lambda: status(401, "no such key"))) as server:
        run = place.batch(server, *PLAIN, "-j", "2", timeout=SECONDS)
        assert len(server.chats) <= 2
    assert run.returncode == 3, run
    assert (place.summary()["reason"], place.summary()["not_run"]) == ("provider", 6)


@pytest.mark.parametrize("drain", ["0", "600"])
def test_ctrl_c_cancels_what_runs_elsewhere_and_a_second_one_kills_it(place: RemotePlace, drain: str) -> None:
    place.write_jobs(*numbered(2))
    pause = threading.Event()
    with ModelServer(always(lambda: held(pause))) as server, place.started(server, *PLAIN, "--drain", drain) as live:
        server.wait_for_requests(2, timeout=SECONDS)
        os.killpg(live.process.pid, signal.SIGINT)
        if drain != "0":
            live.wait_for_stderr("no job starts any more", timeout=SECONDS)
            os.killpg(live.process.pid, signal.SIGINT)
        run = live.finish(SECONDS, checked=False)
    assert run.returncode == 130, run
    assert (place.results(), place.summary()["reason"]) == ({}, "signal")


def test_an_attempt_that_takes_too_long_elsewhere_ends_as_it_does_here(place: RemotePlace) -> None:
    place.write_jobs(*jobs_named("slow", timeout_s=1))
    pause = threading.Event()
    with ModelServer(always(lambda: held(pause))) as server:
        run = place.batch(server, *PLAIN, timeout=SECONDS)
    assert run.returncode == 1, run
    assert place.statuses() == {"slow": "timeout"}


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_jobs_that_work_in_their_folders_need_a_word_that_all_machines_have_them(place: RemotePlace) -> None:
    place.write_rules()
    place.write_jobs(*numbered(2, isolation="none"))
    run = place.batch(None, "--backend", "ray:stub")
    assert run.returncode == 2
    assert "j0 and 1 more would work in the folder itself" in run.stderr and "--shared-fs" in run.stderr
    assert not place.out.exists()


def test_where_no_cluster_answers_nothing_is_started(place: RemotePlace) -> None:
    place.write_rules()
    place.write_jobs(*numbered(1))
    run = place.batch(None, "--backend", "ray:nowhere")
    assert run.returncode == 2
    assert "no Ray answers at nowhere" in run.stderr
    assert not (place.out / "ledger.db").exists()
    assert "Ray prints" not in run.stdout.decode()


def test_without_ray_the_command_that_installs_it_is_told(tmp_path: Path) -> None:
    place = BatchPlace(tmp_path)
    place.write_rules()
    place.write_jobs(*numbered(1))
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(HIDE_RAY)
    run = place.command(*place.words(None, ["--backend", "ray"]), environment={"PYTHONPATH": str(tmp_path / "hidden")})
    assert run.returncode == 2
    assert "pip install 'corral[ray]'" in run.stderr
    assert not place.out.exists()


HIDE_RAY = """\
import importlib.util as found
ask = found.find_spec
found.find_spec = lambda name, *rest: None if name == "ray" else ask(name, *rest)
"""
"""For an installation that happens to have Ray."""
