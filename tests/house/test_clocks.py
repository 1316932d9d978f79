"""A clock that jumps must not move a deadline: these are on the monotonic clock, and order is by ``seq``."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WALL_CLOCK = re.compile(r"\btime\.time(?:_ns)?\(|\bdatetime\.(?:now|utcnow|today)\(")

TELLS_WHEN_SOMETHING_WAS = {
    "supervisor/batch/attempt.py",
    "supervisor/batch/books.py",
    "supervisor/batch/command.py",
    "supervisor/batch/history.py",
    "supervisor/batch/ledger.py",
    "supervisor/batch/lost.py",
    "supervisor/batch/remote/attempt.py",
    "supervisor/batch/remote/node.py",
    "supervisor/batch/resume.py",  # a wait that another process began
    "supervisor/batch/status.py",
    "supervisor/run_view.py",
    "supervisor/store/session_store.py",
    "workers/providers/openai_chat.py",  # Retry-After may be a date
}


def readers_of_the_wall_clock(root: Path) -> set[str]:
    """The modules that ask what time of day it is."""
    return {
        path.relative_to(root).as_posix()
        for package in ("protocol", "supervisor", "workers")
        for path in (root / package).rglob("*.py")
        if WALL_CLOCK.search(path.read_text(encoding="utf-8"))
    }


def test_the_wall_clock_is_read_only_to_tell_when_something_was() -> None:
    assert readers_of_the_wall_clock(ROOT) == TELLS_WHEN_SOMETHING_WAS


def test_a_module_that_reads_the_wall_clock_is_found(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "late.py").write_text("import time\nDEADLINE = time.time() + 5\n")
    (tmp_path / "workers" / "early.py").write_text("import time\nDEADLINE = time.monotonic() + 5\n")
    assert readers_of_the_wall_clock(tmp_path) == {"workers/late.py"}
