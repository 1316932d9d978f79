"""Measures how many jobs a second ``corral batch`` runs, against one ``corral -p`` for each job.

Each job has a folder of its own, and a model that answers at once. The other side starts the same run for each job with
GNU parallel where there is one, else with xargs, so many at once; each of these pays the imports, which a batch pays
once. Both are measured in turn in each round; what is printed are medians. Neither machine nor load is told apart: the
ratio is what lasts.

    python -m scripts.bench_batch [--quick] [--jobs N] [--slots N] [--rounds N]     exit 1 where a job does not end well
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
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

ROOT = Path(__file__).resolve().parent.parent
CORRAL = Path(sys.executable).with_name("corral")
TIMEOUT = 600.0
AIM = 4.0


class BenchError(Exception):
    """A job did not end as it should."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """``folder`` holds a folder for each job; ``model`` are the flags that choose the model."""

    folder: Path
    environ: dict[str, str]
    model: list[str]
    jobs: int
    slots: int

    def measure_batch(self, number: int) -> float:
        """Jobs a second of a batch; raises `BenchError`."""
        lines = (
            json.dumps({"id": f"j{job}", "prompt": "go", "cwd": f"p{job}", "isolation": "none"})
            for job in range(self.jobs)
        )
        file = self.folder / "jobs.jsonl"
        file.write_text("\n".join(lines), encoding="utf-8")
        flags = ["--out", str(self.folder / f"out{number}"), "-j", str(self.slots), "--output-format", "json"]
        return self._measure([str(CORRAL), "batch", str(file), *flags, *self.model])

    def measure_single_runs(self) -> float:
        """Jobs a second of as many runs, each of its own; raises `BenchError`."""
        run = shlex.join([str(CORRAL), "-p", "go", "--quiet", *self.model])
        command = f"{run} --project-root {{}} > {{}}/reply"
        if (parallel := shutil.which("parallel")) is not None:
            starter = [parallel, "--will-cite", "--halt", "now,fail=1", f"-j{self.slots}", command]
        else:
            starter = ["xargs", f"-P{self.slots}", "-I{}", "sh", "-c", command]
        return self._measure(starter, "".join(f"p{job}\n" for job in range(self.jobs)))

    def _measure(self, command: list[str], stdin: str = "") -> float:
        began = time.monotonic()
        done = subprocess.run(
            command,
            input=stdin,
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        if done.returncode != 0:
            raise BenchError(f"exit {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        return self.jobs / (time.monotonic() - began)


@contextmanager
def prepare(jobs: int, slots: int) -> Generator[Bench]:
    """Folders, a home, and a model server that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as name:
        folder = Path(name)
        for job in range(jobs):
            (folder / f"p{job}").mkdir()
        command = [sys.executable, "-m", "scripts.bench_model"]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as model:
            assert model.stdin is not None
            assert model.stdout is not None
            try:
                port = int(model.stdout.readline())
                # What it says of each call interests nobody, but somebody has to take it.
                threading.Thread(target=model.stdout.read, daemon=True).start()
                environ = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), "LANG": "C.UTF-8"}
                address = f"http://127.0.0.1:{port}/none/0/v1"
                flags = ["--provider", "openai-compatible", "--model", "bench", "--base-url", address]
                yield Bench(folder=folder, environ=environ, model=flags, jobs=jobs, slots=slots)
            finally:
                model.stdin.close()
                model.wait(10)


def report(batch: list[float], single: list[float], bench: Bench) -> str:
    """The table."""
    starter = "parallel" if shutil.which("parallel") is not None else "xargs"
    fast, slow = median(batch), median(single)
    return "\n".join(
        [
            (
                f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f};"
                f" medians of {len(batch)} rounds of {bench.jobs} jobs, {bench.slots} at once"
            ),
            "",
            f"{'':<34}{'jobs a second':>16}{'aim':>10}",
            f"{f'{starter}, one corral -p for each job':<34}{slow:>16.1f}",
            f"{'corral batch':<34}{fast:>16.1f}",
            f"{'ratio':<34}{fast / slow:>16.1f}{f'{AIM:g}':>10}",
        ]
    )


def main() -> int:
    """Run the bench as the command line says and print the table."""
    parser = argparse.ArgumentParser(prog="bench_batch", description="Jobs a second, against a run for each job.")
    parser.add_argument("--jobs", type=int, default=48, metavar="N", help="jobs of a round (48)")
    parser.add_argument("--slots", type=int, default=8, metavar="N", help="jobs at once (8)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds to take the medians of (3)")
    parser.add_argument("--quick", action="store_true", help="one round of half as many jobs")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.jobs = 1, max(1, options.jobs // 2)
    batch: list[float] = []
    single: list[float] = []
    try:
        with prepare(options.jobs, options.slots) as bench:
            for number in range(options.rounds):
                single.append(bench.measure_single_runs())
                batch.append(bench.measure_batch(number))
            print(report(batch, single, bench))
    except BenchError as error:
        print(f"bench_batch: a job failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
