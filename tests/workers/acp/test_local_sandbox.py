"""The end of a process group: asked first, killed then, awaited to the last of its members."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
import trio

from workers.sandbox import LocalSandbox
from workers.sandbox.local_sandbox import LocalProcess
from workers.sandbox.process_group import living_members, wait_until_gone

ENVIRONMENT = {"PATH": os.environ["PATH"]}
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
TIDY = (
    "import pathlib, signal, sys, time\n"
    "def tidy(*_): time.sleep(0.3); pathlib.Path('tidy').touch(); sys.exit()\n"
    "signal.signal(signal.SIGTERM, tidy)\n"
    "print(flush=True)\n"
    "time.sleep(600)\n"
)


async def start(folder: Path, script: str, *arguments: str) -> LocalProcess:
    """A shell that has written its first line."""
    argv = ["sh", "-c", script, "sh", *arguments]
    process = await LocalSandbox(folder).open_stdio(argv, cwd=folder, env=ENVIRONMENT)
    await process.stdout.receive_some()
    return process


async def test_whoever_ends_when_asked_is_not_killed_although_its_leader_is_gone(tmp_path: Path) -> None:
    with trio.fail_after(20):
        process = await start(tmp_path, '"$1" -c "$2" & wait', sys.executable, TIDY)
        await process.end_group(10.0)
    assert (tmp_path / "tidy").exists()
    assert living_members(process.pid) == []
    process.release()


async def test_what_a_leader_left_in_its_group_is_killed_without_being_asked(tmp_path: Path) -> None:
    with trio.fail_after(20):
        process = await start(tmp_path, '"$1" -c "$2" & read line', sys.executable, STUBBORN)
        await process.stdin.aclose()
        assert await process.wait() == 1
        assert len(living_members(process.pid)) == 1
        started = trio.current_time()
        await process.end_group(10.0)
        assert trio.current_time() - started < 5
    assert living_members(process.pid) == []
    process.release()


async def test_a_stopped_process_is_ended_too(tmp_path: Path) -> None:
    with trio.fail_after(20):
        process = await start(tmp_path, "echo; kill -STOP $$")
        # Before it is stopped SIGTERM would do.
        await trio.to_thread.run_sync(os.waitid, os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        await process.end_group(0.1)
        assert await process.wait() == -9
    process.release()


@pytest.mark.parametrize("has_pidfd", [True, False])
async def test_a_group_is_awaited_to_its_last_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_pidfd: bool
) -> None:
    if not has_pidfd:

        def refuse(pid: int) -> int:
            raise OSError(errno.ENOSYS, "as an old kernel says")

        monkeypatch.setattr(os, "pidfd_open", refuse)
    with trio.fail_after(20):
        process = await start(tmp_path, "sleep 600 & sleep 600 & echo; wait")
        assert len(living_members(process.pid)) == 3
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_until_gone, process.pid)
            process.terminate()
        assert living_members(process.pid) == []
        await process.end_group(0)
    process.release()
