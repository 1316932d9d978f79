"""Measures what agents cost as processes: their start, their memory, the path of their events, and a slow reader.

Every run has a model server of its own process, which holds the sub-agents' replies back until all have asked: what is
read from ``/proc`` is read while they wait. Runs that are compared with one another are made in the same rounds, so a
machine that drifts drifts for all of them; what is printed are medians.

    python -m scripts.bench_kernel [--quick] [--rounds N]      exit 1 where a run does not do what it should
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from scripts.bench_fan import BenchError, Crowd, Fan, prepare

MIB = 1024 * 1024
STARTING_AGENTS = 8
MANY_AGENTS = 200
STREAMING_AGENTS = 32
SLOW_BYTES_PER_SECOND = 1e6
IMPORTS = [sys.executable, "-I", "-c", "import trio, msgspec, httpx"]


class Row(NamedTuple):
    """One line of the table; ``aim`` is empty where the figure is there for comparison."""

    name: str
    value: float
    unit: str
    aim: str = ""


def measure_start(crowd: Crowd, rounds: int) -> list[Row]:
    """How long until all of some sub-agents have asked the model, against a fresh interpreter's imports."""
    crowd.time_command(IMPORTS)  # compiles the modules
    imports: list[float] = []
    starts: list[float] = []
    for _ in range(rounds):
        imports.append(crowd.time_command(IMPORTS))
        starts.append(crowd.run(Fan(agents=STARTING_AGENTS)).start_ms)
    return [
        Row("fresh interpreter importing trio, msgspec, httpx", median(imports), "ms"),
        Row(f"{STARTING_AGENTS} sub-agents have asked their model", median(starts), "ms"),
        Row("  against the fresh interpreter", median(starts) / median(imports), "x", "0.6"),
    ]


def measure_many(crowd: Crowd) -> list[Row]:
    """What each of very many sub-agents costs; one run, the medians are over its agents."""
    ended = crowd.run(Fan(agents=MANY_AGENTS, looks_at_workers=True))
    return [
        Row(f"{MANY_AGENTS} sub-agents have asked their model", ended.start_ms, "ms"),
        Row("  own memory of each (USS)", median(each.own_bytes for each in ended.workers) / MIB, "MiB", "10"),
        Row("  CPU of each before its first request", median(each.cpu_ms for each in ended.workers), "ms", "25"),
    ]


def measure_events(crowd: Crowd, rounds: int, lines: int) -> list[Row]:
    """The supervisor's CPU for each line of the wire: the difference between runs with many lines and with few."""
    costs: list[float] = []
    for _ in range(rounds):
        few = crowd.run(Fan(agents=STREAMING_AGENTS, lines=lines // 10))
        many = crowd.run(Fan(agents=STREAMING_AGENTS, lines=lines))
        costs.append((many.supervisor_cpu_ms - few.supervisor_cpu_ms) * 1000 / (many.lines - few.lines))
    return [Row(f"supervisor's CPU for an event of {STREAMING_AGENTS} workers", median(costs), "us", "2")]


def measure_slow_reader(crowd: Crowd, lines: int) -> list[Row]:
    """The supervisor's peak of memory where stdout is read slowly, against a reader that takes all."""
    fast = crowd.run(Fan(agents=STREAMING_AGENTS, lines=lines))
    slow = crowd.run(Fan(agents=STREAMING_AGENTS, lines=lines, bytes_per_second=SLOW_BYTES_PER_SECOND))
    return [
        Row(
            f"supervisor's peak memory, {fast.bytes / 1e6:.0f} MB of stdout, fast reader", fast.peak_bytes / MIB, "MiB"
        ),
        Row("  reader at 1 MB/s", slow.peak_bytes / MIB, "MiB"),
        Row("  slow against fast", slow.peak_bytes / fast.peak_bytes, "x", "1"),
    ]


def measure_cold_start(crowd: Crowd, rounds: int) -> list[Row]:
    """A run of one reply whose worker is forked, against one whose worker is executed."""
    fork: list[tuple[float, float]] = []
    fresh: list[tuple[float, float]] = []
    crowd.run_once("fresh")  # compiles what only this way imports
    for _ in range(rounds):
        fork.append(crowd.run_once("fork"))
        fresh.append(crowd.run_once("fresh"))
    asked = [median(first for first, _ in runs) for runs in (fork, fresh)]
    ended = [median(last for _, last in runs) for runs in (fork, fresh)]
    return [
        Row("exec to first model request, --spawn fork", asked[0], "ms"),
        Row("  against --spawn fresh", asked[0] / asked[1], "x", "1"),
        Row("exec to exit, --spawn fork", ended[0], "ms"),
        Row("  against --spawn fresh", ended[0] / ended[1], "x", "1"),
    ]


def report(rows: Sequence[Row], rounds: int) -> str:
    """The table, with what is aimed at beside what was measured."""
    return "\n".join(
        [
            (
                f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f};"
                f" medians of {rounds} rounds"
            ),
            "",
            f"{'':<58}{'measured':>12}{'aim':>12}",
            *map(_line_of, rows),
        ]
    )


def _line_of(row: Row) -> str:
    aim = f"{row.aim} {row.unit}" if row.aim else ""
    return f"{row.name:<58}{f'{row.value:.2f} {row.unit}':>12}{aim:>12}".rstrip()


def main() -> int:
    """Run the bench as the command line says and print the table."""
    parser = argparse.ArgumentParser(prog="bench kernel", description="What agents cost as processes.")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds to take the medians of (9; quick: 3)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shorter streams")
    options = parser.parse_args()
    rounds = options.rounds or (3 if options.quick else 9)
    lines = 500 if options.quick else 2000
    measurements: list[Callable[[Crowd], list[Row]]] = [
        partial(measure_start, rounds=rounds),
        measure_many,
        partial(measure_events, rounds=max(1, rounds // 3), lines=lines),
        partial(measure_slow_reader, lines=lines),
        partial(measure_cold_start, rounds=rounds),
    ]
    rows: list[Row] = []
    failures: list[str] = []
    for measure in measurements:
        # A model server for each: replies that a failed run left held back would be let go in the next one.
        try:
            with prepare() as crowd:
                crowd.run(Fan(agents=1))  # compiles the modules and warms the disk cache
                rows += measure(crowd)
        except BenchError as error:
            failures.append(str(error))
    print(report(rows, rounds))
    for failure in failures:
        print(f"bench kernel: a run failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
