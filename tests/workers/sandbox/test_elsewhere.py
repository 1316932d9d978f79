"""The rules once more: as an ordinary user, on a full disk, on a read-only one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.stubs.ordinary_user import folder_of_nobody
from tests.workers.sandbox.elsewhere import run_as_nobody, run_with_mounts

RULES = [
    "tests/workers/sandbox/test_beneath.py",
    "tests/workers/sandbox/test_races.py",
    "tests/workers/sandbox/test_paths.py",
    "tests/workers/sandbox/test_regular_file.py",
    "tests/workers/tools/test_read.py",
    "tests/workers/tools/test_write.py",
    "tests/workers/tools/test_delete.py",
]

TRY_TO_WRITE = """
import sys
from pathlib import Path
from workers.sandbox.regular_file import replace_regular
from workers.tools.tool import ToolError
root = Path(sys.argv[1])
for name, content in (("a", b"x" * 300_000), ("a", b"new"), ("sub/b", b"x")):
    try:
        replace_regular(root, root / name, content)
        print("written")
    except ToolError as error:
        print(error)
print((root / "a").read_bytes(), sorted(path.name for path in root.iterdir()))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="these tests run as an ordinary user already")
def test_the_rules_hold_for_an_ordinary_user_too() -> None:
    with folder_of_nobody() as folder:
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=-m 'not soak'"]
        command = [sys.executable, "-m", "pytest", *options, f"--basetemp={folder}/t", *RULES]
        done = run_as_nobody(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_a_full_disk_is_said_to_be_full_and_the_old_file_stays(tmp_path: Path) -> None:
    mounts = [f"mount -t tmpfs -o size=100k none {tmp_path}", f"printf old >{tmp_path}/a"]
    too_much, little, other, left = run_with_mounts(mounts, TRY_TO_WRITE, tmp_path).splitlines()
    assert too_much.startswith("a can't be written: the disk is full")
    assert little == other == "written"
    assert left == "b'new' ['a', 'sub']"


def test_a_project_that_is_read_only_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    mounts = [f"mount --bind {tmp_path} {tmp_path}", f"mount -o remount,bind,ro {tmp_path}"]
    first, second, third, left = run_with_mounts(mounts, TRY_TO_WRITE, tmp_path).splitlines()
    assert first == second
    assert "read-only" in first and "read-only" in third
    assert left == "b'old' ['a']"
