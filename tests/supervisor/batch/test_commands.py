"""Commands that workers run, as real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from supervisor.batch.commands import Commands, is_out_of_room, plain_environment, words_of
from supervisor.spawn import FreshSpawner
from tests.stubs.process_table import descendants, ended_within

BOUND = 30.0


@asynccontextmanager
async def commands() -> AsyncGenerator[Commands, None]:
    spawner = FreshSpawner()
    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spawner.run)
            yield Commands(spawner)
            nursery.cancel_scope.cancel()


async def test_a_command_runs_where_and_with_what_it_was_given(tmp_path: Path) -> None:
    async with commands() as run:
        ended = await run.run(
            ("sh", "-c", "pwd; echo $WORD >&2; exit 3"), tmp_path, plain_environment({"WORD": "heard"})
        )
    assert (ended.exit_code, ended.stdout.decode().strip(), words_of(ended)) == (3, str(tmp_path), "heard")


async def test_a_command_that_takes_too_long_is_killed_with_all_it_started(tmp_path: Path) -> None:
    async with commands() as run:
        script = "trap '' TERM; (setsid sleep 55 & echo $! > pid); sleep 55"
        ended = await run.run(("sh", "-c", script), tmp_path, plain_environment(), timeout=0.5)
    assert ended.exit_code is None
    assert ended_within(int((tmp_path / "pid").read_text()), 5)


async def test_cancelling_ends_the_command(tmp_path: Path) -> None:
    async with commands() as run, trio.open_nursery() as nursery:
        nursery.start_soon(run.run, ("sh", "-c", "echo $$ > pid; exec sleep 55"), tmp_path, plain_environment())
        await written(tmp_path / "pid")
        nursery.cancel_scope.cancel()
    assert ended_within(int((tmp_path / "pid").read_text()), 5)


async def test_a_command_that_is_not_there_says_so(tmp_path: Path) -> None:
    async with commands() as run:
        ended = await run.run(("no-such-command",), tmp_path, plain_environment())
    assert ended.exit_code == 127
    assert "no-such-command" in words_of(ended)


async def test_of_much_output_the_end_is_kept(tmp_path: Path) -> None:
    async with commands() as run:
        script = "head -c 3000000 /dev/zero; echo the end"
        ended = await run.run(("sh", "-c", script), tmp_path, plain_environment())
    assert ended.stdout.endswith(b"the end\n")
    assert len(ended.stdout) == 1024 * 1024


async def test_a_worker_that_is_killed_is_a_failed_command(tmp_path: Path) -> None:
    async with commands() as run:
        ended = await run.run(("sh", "-c", "kill -9 $PPID; sleep 55"), tmp_path, plain_environment())
    assert ended.exit_code == -signal.SIGKILL
    for process in descendants(os.getpid()):
        if "sleep 55" in process.command:
            os.kill(process.pid, signal.SIGKILL)


async def test_no_room_is_known_by_the_words_of_the_system(tmp_path: Path) -> None:
    async with commands() as run:
        ended = await run.run(("sh", "-c", "cat /dev/zero > /dev/full"), tmp_path, plain_environment({"LC_ALL": "C"}))
    assert ended.exit_code != 0
    assert is_out_of_room(ended)


async def written(
    path: Path, is_there: Callable[[Path], bool] = lambda path: path.exists() and path.stat().st_size > 0
) -> None:
    """Return once a process has written the file."""
    while not is_there(path):
        await trio.lowlevel.checkpoint()
