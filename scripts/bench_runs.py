"""Measures what a run costs and prints it as multiples of a bare interpreter's start, taken in the same rounds.

Each round starts, one after the other, a bare interpreter (``python -I -c pass``), a run whose model answers at once,
and runs whose model makes tool calls, one a reply; so a machine that drifts drifts for all of them. What is printed
are medians. The clock starts before the process is made; a tool call's cost holds its share of everything that a call
needs: the model call that asks for it, the grant, the commit, the process. The model is a server of its own process.

    python -m scripts.bench_runs [--quick] [--runs N] [--calls N]      exit 1 where a run does not do what it should
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
RUN_TIMEOUT = 120.0
FIRST_REQUEST_AIM = 18
EXIT_AIM = 25
TOOL_CALL_AIM_MS = 12
NS_PER_MS = 1e6


class BenchError(Exception):
    """A run did not do what is to be measured."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One measurement of each kind, in milliseconds."""

    bare: float
    first_request: float
    exit: float
    bash_call: float
    read_call: float


@dataclass(frozen=True, kw_only=True)
class Bench:
    """``project`` is the folder that the runs work in; ``calls`` how many tool calls the longer ones make."""

    project: Path
    environ: dict[str, str]
    port: int
    arrivals: IO[str]
    calls: int

    def measure_round(self) -> Round:
        """Start each kind of process once; raises `BenchError`."""
        bare = self._measure_bare()
        first_request, no_call = self._measure_run("none", 0)
        _, bash = self._measure_run("bash", self.calls)
        _, read = self._measure_run("read", self.calls)
        return Round(
            bare=bare,
            first_request=first_request,
            exit=no_call,
            bash_call=(bash - no_call) / self.calls,
            read_call=(read - no_call) / self.calls,
        )

    def _measure_bare(self) -> float:
        return _timed_run([sys.executable, "-I", "-c", "pass"], self.environ, self.project).elapsed_ms

    def _measure_run(self, kind: str, calls: int) -> tuple[float, float]:
        """From the start to the first model request and to the exit, in milliseconds."""
        command = [
            str(Path(sys.executable).with_name("corral")),
            *("-p", "go", "--output-format", "stream-json", "--provider", "openai-compatible", "--model", "bench"),
            *("--base-url", f"http://127.0.0.1:{self.port}/{kind}/{calls}/v1", "--project-root", str(self.project)),
        ]
        run = _timed_run(command, self.environ, self.project)
        succeeded = run.output.count('"outcome":"success"')
        if run.returncode != 0 or succeeded != calls:
            raise BenchError(
                f"exit {run.returncode}, {succeeded} of {calls} tool calls succeeded:\n{run.output[-2000:]}"
            )
        arrivals = [int(self.arrivals.readline()) for _ in range(calls + 1)]
        return (arrivals[0] - run.started_ns) / NS_PER_MS, run.elapsed_ms


@dataclass(frozen=True, kw_only=True)
class TimedRun:
    """A process that has ended; ``started_ns`` is of `time.monotonic_ns`, before the process was made."""

    started_ns: int
    elapsed_ms: float
    returncode: int
    output: str


def _timed_run(command: list[str], environ: dict[str, str], folder: Path) -> TimedRun:
    """Run a command to its end, its output in a file: this process sleeps meanwhile and leaves the CPUs alone."""
    with tempfile.TemporaryFile() as output:
        started = time.monotonic_ns()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environ, cwd=folder
        )
        # A timeout of wait() would poll, and be up to 50 ms late.
        bound = threading.Timer(RUN_TIMEOUT, process.kill)
        bound.start()
        returncode = process.wait()
        elapsed = time.monotonic_ns() - started
        bound.cancel()
        bound.join()
        output.seek(0)
        text = output.read().decode(errors="replace")
    return TimedRun(started_ns=started, elapsed_ms=elapsed / NS_PER_MS, returncode=returncode, output=text)


@contextmanager
def prepare(calls: int) -> Generator[Bench]:
    """A temporary project and home, and a model server that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        project, home = Path(folder, "project"), Path(folder, "home")
        project.mkdir()
        home.mkdir()
        for number in range(10):
            (project / f"file{number}.txt").write_text("a line of text\n" * 100, encoding="utf-8")
        command = [sys.executable, "-m", "scripts.bench_model"]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as model:
            assert model.stdin is not None
            assert model.stdout is not None
            try:
                environ = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
                port = int(model.stdout.readline())
                yield Bench(project=project, environ=environ, port=port, arrivals=model.stdout, calls=calls)
            finally:
                model.stdin.close()


def report(rounds: list[Round], calls: int) -> str:
    """The table, with what is aimed at beside what was measured."""
    bare = median(each.bare for each in rounds)
    starts = [
        ("exec to first model request", median(each.first_request for each in rounds), FIRST_REQUEST_AIM),
        ("exec to exit", median(each.exit for each in rounds), EXIT_AIM),
    ]
    tool_calls = [
        ("each Bash call (`true`)", median(each.bash_call for each in rounds)),
        ("each Read call", median(each.read_call for each in rounds)),
    ]
    setting = (
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f};"
        f" medians of {len(rounds)} rounds, {calls} tool calls a run, one a reply"
    )
    lines = [
        setting,
        "",
        f"{'':<30}{'ms':>9}{'bare starts':>14}{'aim':>8}",
        f"{'bare start (python -I -c pass)':<30}{bare:>9.1f}{1:>14.1f}",
        *(f"{name:<30}{ms:>9.1f}{ms / bare:>14.1f}{aim:>8}" for name, ms, aim in starts),
        *(f"{name:<30}{ms:>9.1f}{ms / bare:>14.2f}{f'{TOOL_CALL_AIM_MS} ms':>8}" for name, ms in tool_calls),
    ]
    return "\n".join(lines)


def main() -> int:
    """Run the bench as the command line says and print the table."""
    parser = argparse.ArgumentParser(prog="bench runs", description="What a run costs, in bare interpreter starts.")
    parser.add_argument("--runs", type=int, default=15, metavar="N", help="rounds to take the medians of (15)")
    parser.add_argument("--calls", type=int, default=30, metavar="N", help="tool calls of the longer runs (30)")
    parser.add_argument("--quick", action="store_true", help="three rounds")
    options = parser.parse_args()
    if options.quick:
        options.runs = 3
    if options.runs < 1 or options.calls < 1:
        parser.error("--runs and --calls must be at least 1")
    try:
        with prepare(options.calls) as bench:
            bench.measure_round()  # compiles the modules and warms the disk cache
            rounds = [bench.measure_round() for _ in range(options.runs)]
    except BenchError as error:
        print(f"bench runs: a run failed: {error}", file=sys.stderr)
        return 1
    print(report(rounds, options.calls))
    return 0


if __name__ == "__main__":
    sys.exit(main())
