"""``corral batch --backend ray`` with a real Ray on this machine. What needs no Ray is in tests/acceptance."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.batch_place import BatchPlace, Result, always, bash, held, jobs_named, numbered, steady
from tests.interop.installed import python_packages
from tests.stubs.model_server import ModelServer, ReceivedRequest
from tests.stubs.process_table import descendants, ended_within
from tests.stubs.replies import Reply, status, text, tool_call

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
RAY = "ray==2.60.0"
SECONDS = 300.0
FLAGS = ("--backend", "ray", "--shared-fs")

KILL_ABOVE = """\
pid=$PPID
while [ "$pid" -gt 1 ]; do
    above=$(sed -n 's/^PPid:\\t//p' /proc/$pid/status)
    if tr '\\0' ' ' < /proc/$pid/cmdline | grep -q corral-attempt:; then attempt=$pid task=$above; fi
    pid=$above
done
eval "kill -9 \\$$1"
"""
"""Kills the process that makes the ``attempt``, or Ray's process of its ``task``. (Forks of it have its words too.)"""


@pytest.fixture(scope="session")
def command() -> Path:
    """The command of this checkout, in an installation that has Ray."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = python_packages(RAY, *project["dependencies"])
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (python.parents[1] / "lib" / version / "site-packages" / "checkout.pth").write_text(f"{ROOT}\n")
    script = python.with_name("corral")
    script.write_text(f"#!{python}\nimport sys\nfrom supervisor.cli import main\nsys.exit(main())\n")
    script.chmod(0o755)
    return script


class RayPlace(BatchPlace):
    """A place with a folder for temporary files of its own, whose path is short enough for Ray's sockets."""

    def __init__(self, folder: Path, executable: Path, temporary: Path) -> None:
        super().__init__(folder, executable)
        self.temporary = temporary
        self.variables: dict[str, str] = {}

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "TMPDIR": str(self.temporary), **self.variables}


@pytest.fixture
def place(tmp_path: Path, command: Path) -> Generator[RayPlace, None, None]:
    with tempfile.TemporaryDirectory(prefix="c", dir="/tmp") as temporary:
        yield RayPlace(tmp_path, command, Path(temporary))
        left = [path.name for path in Path(temporary).iterdir()]
    assert left == [], "something was left on the machine"
    assert not (tmp_path / "home" / ".ray").exists()


def ray_flags(place: BatchPlace, *flags: str) -> tuple[str, ...]:
    return (*FLAGS, "--isolation", "none", "--trust", "plan", *flags)


# -- crashes -----------------------------------------------------------------------------------------------------------


def test_with_every_tenth_task_killed_every_job_gets_its_verdict_and_usage_is_what_was_billed(
    place: BatchPlace,
) -> None:
    place.write("kill_above.sh", KILL_ABOVE)
    place.write_jobs(*numbered(24))
    doomed = {"j0": "sh kill_above.sh attempt", "j10": "sh kill_above.sh task", "j20": "kill -9 $PPID"}
    killed: set[str] = set()

    def answer(request: ReceivedRequest) -> Reply:
        if request.prompt in doomed and request.prompt not in killed:
            killed.add(request.prompt)
            return tool_call("end", "Bash", {"command": doomed[request.prompt]})
        return text("Done.")

    with ModelServer(answer) as server:
        run = place.batch(
            server, *ray_flags(place, "-j", "6", "--isolation", "copy", "--trust", "auto"), timeout=SECONDS
        )
        billed = server.billed
    assert run.returncode == 0, run
    results = place.results()
    assert place.statuses() == dict.fromkeys((f"j{number}" for number in range(24)), "ok")
    ends = {job: [(each["outcome"], each["reason"]) for each in results[job]["attempts"]] for job in doomed}
    assert ends == {
        "j0": [("crashed", "node_lost"), ("ok", "")],
        "j10": [("crashed", "node_lost"), ("ok", "")],
        "j20": [("crashed", "signal"), ("ok", "")],
    }
    assert sum(len(result["attempts"]) for result in results.values()) == 27
    assert place.summary()["usage"]["api_calls"] == billed.api_calls
    assert place.summary()["usage"]["prompt_tokens"] == billed.prompt_tokens


CLUSTER = """\
import sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "temp_dir": sys.argv[1]})
other = cluster.add_node(num_cpus=4)
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.remove_node(other, allow_graceful=False)
sys.stdin.read()
cluster.shutdown()
"""
"""A cluster of two machines, the second of which dies at a word."""


def test_a_machine_of_a_cluster_that_dies_costs_its_jobs_an_attempt(place: RayPlace, command: Path) -> None:
    place.write_jobs(*numbered(5))
    pause = threading.Event()
    no_statistics = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    place.variables.update(no_statistics)
    with (
        subprocess.Popen(
            [command.with_name("python"), "-c", CLUSTER, str(place.temporary / "ray")],
            env={**place.environment(), **no_statistics},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as cluster,
        ModelServer(lambda _: held(pause)) as server,
    ):
        assert cluster.stdin is not None and cluster.stdout is not None
        flags = ("--backend", f"ray:{cluster.stdout.readline().strip()}", "--isolation", "copy", "-j", "5")
        with place.started(server, *flags) as live:
            server.wait_for_requests(4, timeout=SECONDS)  # as many as may go at once in the beginning
            cluster.stdin.write("now\n")
            cluster.stdin.flush()
            live.wait_for(lambda line: line["type"] == "job_retry", 1, timeout=SECONDS)
            pause.set()
            run = live.finish(SECONDS, checked=False)
        cluster.stdin.close()
        cluster.wait(60)
    shutil.rmtree(place.temporary / "ray")
    assert run.returncode == 0, run
    assert place.statuses() == dict.fromkeys((f"j{number}" for number in range(5)), "ok")
    ends = {(each["outcome"], each["reason"]) for result in place.results().values() for each in result["attempts"]}
    assert ends == {("ok", ""), ("crashed", "node_lost")}


# -- the same as local -------------------------------------------------------------------------------------------------


def test_the_same_file_gives_the_same_results_as_without_ray(place: BatchPlace) -> None:
    place.repository()
    plain = place.folder / "plain"
    plain.mkdir()
    (plain / "there.txt").write_text("there\n")
    (plain / "link").symlink_to("there.txt")
    place.write_rules(
        bash("commits", "echo new > new.txt && git add new.txt && git -c user.name=a -c user.email=b commit -qm x"),
        bash("binary", "head -c 300000 /dev/urandom | sha256sum > sum; printf '\\0\\1' > bin; ln -s kept.txt link"),
        bash("copies", "cat there.txt link && echo more >> there.txt"),
        bash("stays", "cat kept.txt"),
        bash("env", "echo $COLOUR"),
        bash("slow", "sleep 60"),
        bash("dies", "kill -9 $PPID"),
    )
    place.write_jobs(
        *jobs_named("commits", "env", env={"COLOUR": "green"}, tags=["a"], metadata={"n": [1, None]}),
        *jobs_named("copies", cwd=str(plain), isolation="copy", check={"cmd": "test $(wc -l < there.txt) = 2"}),
        *jobs_named("stays", isolation="none", check={"cmd": "exit 3"}),
        *jobs_named("slow", timeout_s=10, isolation="none"),
        *jobs_named("dies", "binary"),
    )
    results: list[dict[str, Result]] = []
    for name, flags in (("here", ()), ("there", FLAGS)):
        place.out = place.folder / name
        run = place.batch(None, *flags, "--ref", timeout=SECONDS)
        assert run.returncode == 1, run
        results.append({job: steady(result) for job, result in place.results().items()})
    for job, result in results[0].items():
        assert results[1][job] == result
    assert results[1]["copies"]["status"] == "ok"
    for job in ("commits", "env", "dies", "binary"):
        patch = results[1][job]["patch"]
        here, there = ((place.folder / name / patch).read_bytes() for name in ("here", "there"))
        assert here == there or job == "binary"
    ref = place.git("for-each-ref", "--format=%(refname)", "refs/corral/*/commits").split()
    assert len(ref) == 2
    assert place.git("diff", *ref) == ""
    assert (plain / "there.txt").read_text() == "there\n"
    assert place.git("status", "--porcelain") == ""
    assert place.git("worktree", "list", "--porcelain").count("worktree ") == 1 + len(kept_work(place.folder / "here"))


def kept_work(folder: Path) -> list[Path]:
    return [path for path in folder.glob("jobs/*/attempt-*/work") if (path / ".git").exists()]


# -- the runner dies ---------------------------------------------------------------------------------------------------


def test_after_the_runner_was_killed_nothing_lives_and_only_what_was_not_done_runs_again(place: BatchPlace) -> None:
    place.write_jobs(*numbered(4))
    pause = threading.Event()
    asked: dict[str, int] = {}

    def answer(request: ReceivedRequest) -> Reply:
        asked[request.prompt] = asked.get(request.prompt, 0) + 1
        return text("Done.") if request.prompt in ("j0", "j1") or pause.is_set() else held(pause)

    flags = ray_flags(place, "-j", "4")
    with ModelServer(answer) as server:
        with place.started(server, *flags) as live:
            live.wait_for(lambda line: line["type"] == "job_result", 2, timeout=SECONDS)
            server.wait_for_requests(4)
            doomed = [process.pid for process in descendants(live.process.pid)]
            os.kill(live.process.pid, signal.SIGKILL)
            assert all(ended_within(pid, 10) for pid in doomed)
        pause.set()
        run = place.batch(server, *flags, timeout=SECONDS)
    assert run.returncode == 0, run
    assert run.one("batch_start")["pending"] == 2
    assert place.statuses() == dict.fromkeys((f"j{number}" for number in range(4)), "ok")
    assert (asked["j0"], asked["j1"]) == (1, 1)
    assert [attempt["outcome"] for attempt in place.results()["j3"]["attempts"]] == ["lost", "ok"]
    assert place.summary()["uncertain_calls"] == 2


# -- other ends --------------------------------------------------------------------------------------------------------


def test_a_key_that_is_refused_stops_the_batch_and_leaves_its_jobs_pending(place: BatchPlace) -> None:
    place.write_jobs(*numbered(8))
    with ModelServer(always(lambda: status(401, "no such key"))) as server:
        run = place.batch(server, *ray_flags(place, "-j", "3"), timeout=SECONDS)
        assert len(server.chats) <= 3
    assert run.returncode == 3, run
    assert (place.summary()["reason"], place.summary()["not_run"]) == ("provider", 8)


def test_ctrl_c_of_the_whole_group_cancels_what_runs_and_a_second_one_kills(place: BatchPlace) -> None:
    place.write_jobs(*numbered(2))
    for signals in (1, 2):
        pause = threading.Event()
        place.out = place.folder / f"out-{signals}"
        with (
            ModelServer(always(partial(held, pause))) as server,
            place.started(server, *ray_flags(place, "--drain", "0" if signals == 1 else "600")) as live,
        ):
            live.wait_for(lambda line: line["type"] == "job_start", 2, timeout=SECONDS)
            server.wait_for_requests(2)
            os.killpg(live.process.pid, signal.SIGINT)
            if signals == 2:
                live.wait_for_stderr("no job starts any more")
                os.killpg(live.process.pid, signal.SIGINT)
            run = live.finish(60, checked=False)
        assert run.returncode == 130, run
        assert place.results() == {}
        assert place.summary()["reason"] == "signal"


def test_a_key_is_in_no_file_argument_or_environment_of_ray(place: BatchPlace) -> None:
    key = "sk-not-to-be-seen-5f2c81"
    place.write_jobs(*numbered(1))
    pause = threading.Event()
    words = place.words
    with ModelServer(always(lambda: held(pause))) as server:
        arguments = words(server, ray_flags(place, "--provider", "lmstudio"))
        with place._started(arguments, environment={"LMSTUDIO_API_KEY": key}) as live:  # pyright: ignore[reportPrivateUsage]  # a key is no flag
            live.wait_for(lambda line: line["type"] == "job_start", 1, timeout=SECONDS)
            server.wait_for_requests(1)
            found = traces_of(key, live.process.pid)
            pause.set()
            run = live.finish(60, checked=False)
        assert any(key in str(request.headers) for request in server.chats)
    assert run.returncode == 0, run
    assert found == []


def traces_of(key: str, runner: int) -> list[str]:
    """Where the key can be read: in what the processes were given, and in files of Ray's."""
    found: list[str] = []
    folders: set[Path] = set()
    for process in descendants(runner):
        for name in ("cmdline", "environ"):
            content = Path(f"/proc/{process.pid}/{name}").read_bytes()
            found += [f"{process.command} {name}"] if key.encode() in content else []
        folders.update(
            Path(word.partition("=")[2]).parents[2]
            for word in process.command.split()
            if word.startswith("--raylet_socket_name=")
        )
    assert len(folders) == 1
    for path in folders.pop().rglob("*"):
        if path.is_file() and key.encode() in path.read_bytes():
            found.append(str(path))
    return found
