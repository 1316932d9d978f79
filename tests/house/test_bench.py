"""The bench measures real runs, and its table says what it measured."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bench_fan import Fan, prepare
from scripts.bench_kernel import Row
from scripts.bench_kernel import report as kernel_report
from scripts.bench_runs import Round, report

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_table_gives_medians_and_multiples_of_the_bare_start() -> None:
    rounds = [
        Round(bare=10, first_request=180, exit=240, bash_call=11, read_call=5),
        Round(bare=30, first_request=900, exit=900, bash_call=99, read_call=99),
        Round(bare=10, first_request=170, exit=230, bash_call=10, read_call=4),
    ]
    rows = [re.split(r"\s{2,}", line) for line in report(rounds, calls=30).splitlines()[3:]]
    assert rows == [
        ["bare start (python -I -c pass)", "10.0", "1.0"],
        ["exec to first model request", "180.0", "18.0", "18"],
        ["exec to exit", "240.0", "24.0", "25"],
        ["each Bash call (`true`)", "11.0", "1.10", "12 ms"],
        ["each Read call", "5.0", "0.50", "12 ms"],
    ]


def test_a_short_bench_measures_real_runs() -> None:
    command = [sys.executable, "-m", "scripts.bench_runs", "--runs", "1", "--calls", "2"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    starts = {line[:30].strip(): float(line[39:].split()[0]) for line in ended.stdout.splitlines()[3:]}
    assert 1 < starts["exec to first model request"] < starts["exec to exit"]


def test_the_kernel_table_names_the_aim_beside_the_figure() -> None:
    rows = [Row("imports", 200.0, "ms"), Row("  against the imports", 0.55, "x", "0.6")]
    lines = [re.split(r"\s{2,}", line) for line in kernel_report(rows, rounds=3).splitlines()[3:]]
    assert lines == [["imports", "200.00 ms"], ["", "against the imports", "0.55 x", "0.6 x"]]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_fan_of_sub_agents_is_measured_while_all_of_them_wait() -> None:
    with prepare() as crowd:
        ended = crowd.run(Fan(agents=3, lines=20, looks_at_workers=True))
    assert ended.start_ms > 0
    assert len(ended.workers) == 3
    assert all(each.own_bytes > 0 and each.cpu_ms > 0 for each in ended.workers)
    assert ended.lines >= 3 * 20
    assert ended.peak_bytes > 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_run_is_measured_with_either_way_to_spawn() -> None:
    with prepare() as crowd:
        for spawn in ("fork", "fresh"):
            asked_ms, ended_ms = crowd.run_once(spawn)
            assert 0 < asked_ms < ended_ms
