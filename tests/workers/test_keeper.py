"""The keeper's own life. That it leaves nothing behind is seen in `tests.faults.test_ends`."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from protocol.fork_frames import KEEPER_PID_BYTES
from protocol.process_tree import MARK_VARIABLE
from workers import keeper
from workers.keeper import Keeper

MARK = f"test-{os.getpid()}"


@contextmanager
def waiting(**environment: str) -> Generator[subprocess.Popen[bytes], None, None]:
    """A process that lives until it is killed; it is gone after the block."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={"PATH": os.environ["PATH"], **environment})
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


def told(*workers: int) -> int:
    """The end of a pipe whose other end said this and was closed."""
    reader, writer = os.pipe()
    for worker in workers:
        os.write(writer, worker.to_bytes(KEEPER_PID_BYTES, "big"))
    os.close(writer)
    return reader


def test_it_ends_as_soon_as_it_is_dismissed_and_ends_nobody() -> None:
    with waiting(**{MARK_VARIABLE: MARK}) as worker, waiting() as supervisor:
        Keeper(supervisor.pid, MARK, told(worker.pid, 0)).run()
        assert (worker.poll(), supervisor.poll()) == (None, None)


def test_it_stays_a_while_for_a_supervisor_that_outlives_its_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LINGER_SECONDS", 0.01)
    with waiting() as supervisor, waiting(**{MARK_VARIABLE: MARK}) as command:
        Keeper(supervisor.pid, MARK, told()).run()
        assert command.poll() is None, "it belongs to a supervisor that lives"


@pytest.mark.parametrize("is_worker", [True, False], ids=["a worker", "what carries the mark"])
def test_once_all_others_are_gone_it_ends(is_worker: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "GRACE_SECONDS", 0.01)
    with waiting() as supervisor, waiting(**({} if is_worker else {MARK_VARIABLE: MARK})) as left:
        supervisor.kill()
        supervisor.wait(20)
        Keeper(supervisor.pid, MARK, told(*([left.pid] if is_worker else []))).run()
        assert left.wait(20) == -signal.SIGKILL
