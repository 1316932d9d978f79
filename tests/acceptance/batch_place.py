"""A place where ``corral batch`` is run: a job file, a folder for its results, and what a test reads of them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.stubs.corral_run import COMMAND, LiveRun, Place, Run
from tests.stubs.model_server import Handler, ModelServer, ReceivedRequest
from tests.stubs.replies import Pause, Reply, charge, content, finish, status, stream, text, used
from tests.stubs.replies import event as sse_event

Result = dict[str, Any]


class BatchPlace(Place):
    """A project, a home, a job file ``jobs.jsonl`` and the batch's folder ``out``."""

    def __init__(self, folder: Path, executable: Path = COMMAND) -> None:
        super().__init__(folder, executable)
        self.jobs_file = folder / "jobs.jsonl"
        self.out = folder / "out"
        self.scenario = folder / "scenario.json"

    def write_jobs(self, *jobs: Mapping[str, object]) -> Path:
        """Write the job file anew."""
        self.jobs_file.write_text("".join(json.dumps(job) + "\n" for job in jobs))
        return self.jobs_file

    def write_rules(self, *rules: Mapping[str, object]) -> None:
        """Write the scenario of the scripted model: rules of the main agent, then one that says "done"."""
        scenario = {"version": 1, "agents": {"main": [*rules, {"reply": {"text": "done {{prompt}}"}}]}}
        self.scenario.write_text(json.dumps(scenario))

    def scripted(self) -> list[str]:
        """The flags that choose the scripted model."""
        return ["--provider", "scripted", "--script", str(self.scenario), "--project-root", str(self.project)]

    def words(self, server: ModelServer | str | None, flags: Sequence[str]) -> list[str]:
        """The arguments of a run on the job file; the scripted model without a server."""
        model = self.scripted() if server is None else self.model_flags(server)
        form = [] if "--output-format" in flags else ["--output-format", "stream-json"]
        return ["batch", str(self.jobs_file), "--out", str(self.out), *model, *form, *flags]

    def batch(self, server: ModelServer | str | None, *flags: str, timeout: float = 60.0) -> Run:
        """Run the batch to its end."""
        return self.command(*self.words(server, flags), timeout=timeout)

    @contextlib.contextmanager
    def started(
        self, server: ModelServer | str | None, *flags: str, stdout: int = subprocess.PIPE
    ) -> Generator[LiveRun, None, None]:
        """A run of the batch that the block may look at and signal; whatever it leaves running is a failure."""
        with self._started(self.words(server, flags), stdout=stdout) as live:
            yield live

    def results(self) -> dict[str, Result]:
        """The lines of ``results.jsonl`` by id; fails if an id is there twice or a line is torn."""
        text = (self.out / "results.jsonl").read_text()
        assert text == "" or text.endswith("\n")
        lines: list[Result] = [json.loads(line) for line in text.splitlines()]
        found = {line["id"]: line for line in lines}
        assert len(found) == len(lines), "an id is there twice"
        return found

    def statuses(self) -> dict[str, str]:
        """The verdicts by id."""
        return {job_id: result["status"] for job_id, result in self.results().items()}

    def summary(self) -> Result:
        """What ``summary.json`` holds."""
        summary: Result = json.loads((self.out / "summary.json").read_text())
        return summary

    def repository(self, *flags: str) -> Path:
        """Make the project a git repository with one commit."""
        self.write("kept.txt", "as it was\n")
        self.git("init", "-q", "-b", "main")
        for name, value in (("user.name", "t"), ("user.email", "t@t"), *(flag.split("=") for flag in flags)):
            self.git("config", name, value)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "first")
        return self.project

    def git(self, *words: str, folder: Path | None = None) -> str:
        """Run git in the project, or in ``folder``."""
        command = ["git", "-C", str(folder or self.project), *words]
        environment = {**self.environment(), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def jobs_named(*names: str, **fields: object) -> list[dict[str, object]]:
    """Jobs whose prompt is their id."""
    return [{"id": name, "prompt": name, **fields} for name in names]


def numbered(count: int, **fields: object) -> list[dict[str, object]]:
    """``count`` jobs j0, j1, ..."""
    return jobs_named(*(f"j{number}" for number in range(count)), **fields)


# -- what the model says -----------------------------------------------------------------------------------------------


def answer_done(request: ReceivedRequest) -> Reply:
    return text("Done.")


def always(make: Callable[[], Reply]) -> Handler:
    """Answer every request alike."""

    def answer(request: ReceivedRequest) -> Reply:
        return make()

    return answer


def held(pause: threading.Event) -> Reply:
    """A reply that comes when ``pause`` is set."""
    return stream(
        Pause(pause), content("Done."), finish("stop"), used(200, 20), sse_event("[DONE]"), usage=charge(200, 20)
    )


def job_starts(live: LiveRun, count: int) -> None:
    live.wait_for(lambda line: line["type"] == "job_start", count)


def bash(prompt: str, command: str) -> dict[str, object]:
    """A rule: at its first step a job with ``prompt`` runs ``command``."""
    call = {"name": "Bash", "arguments": {"command": command}}
    return {"when": {"prompt": prompt, "step": 1}, "reply": {"tool_calls": [call]}}


def ledger_rows(place: BatchPlace, sql: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(place.out / "ledger.db")) as connection:
        assert connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
        return connection.execute(sql).fetchall()


VOLATILE = {"batch_id", "session_id", "host", "wall_ms", "queue_ms", "started_at", "ended_at"}


def steady(result: Result) -> Result:
    """A result without what differs from run to run."""
    attempts = [{name: value for name, value in each.items() if name not in VOLATILE} for each in result["attempts"]]
    return {name: value for name, value in result.items() if name not in VOLATILE} | {"attempts": attempts}


class Bearing:
    """A model server's handler that bears ``limit`` calls at once and answers more with 429.

    No call is answered before one was refused. ``peaks`` has, for each call, how many there were with it.
    """

    def __init__(self, limit: int) -> None:
        self.peaks: list[int] = []
        self._limit = limit
        self._lock = threading.Lock()
        self._in_flight = 0
        self._has_refused = threading.Event()

    def __call__(self, _request: ReceivedRequest) -> Reply:
        with self._lock:
            self.peaks.append(self._in_flight + 1)
            if self._in_flight >= self._limit:
                self._has_refused.set()
                return status(429, "too many", [("retry-after", "0")])
            self._in_flight += 1
        answered = threading.Event()
        threading.Timer(0.02, self._leave, [answered]).start()
        return held(answered)

    def _leave(self, answered: threading.Event) -> None:
        self._has_refused.wait(60)
        with self._lock:
            self._in_flight -= 1
        answered.set()
