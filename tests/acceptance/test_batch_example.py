"""The example of the batch page does what the page says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/batch.md"
COMMAND = Path(sys.executable).with_name("corral")


def rows(table: str) -> list[list[str]]:
    """The cells of each line but those of time and tokens: what a model is told of its tools may change."""
    lines = table.strip().splitlines()
    cells = [re.split(r" {2,}", line.strip()) for line in lines[:-1]]
    return [*(row[:4] + row[6:] for row in cells), [lines[-1].partition(";")[0]]]


def test_the_example_runs_without_a_key_and_prints_the_table_of_its_page(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    command = re.search(r"^    corral (batch examples/\S+ .+)$", page, re.MULTILINE)
    table = re.search(r"^```text\n(JOB .+?)^```$", page, re.MULTILINE | re.DOTALL)
    assert command is not None
    assert table is not None
    arguments = [str(tmp_path / "out") if word == "voyage" else word for word in shlex.split(command[1])]
    done = subprocess.run(
        [str(COMMAND), *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert rows(done.stdout) == rows(table[1])
