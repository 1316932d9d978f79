from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.workers.tools.project import HeldPipe
from workers.sandbox.process import Child, open_process

ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.fixture
def held_pipe(tmp_path: Path) -> Iterator[HeldPipe]:
    pipe = HeldPipe(tmp_path / "held")
    yield pipe
    pipe.close()


@pytest.fixture(params=["pidfd", "thread", "polling"])
def way_of_waiting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every way to notice an exit that some system needs."""
    if request.param != "pidfd":

        def refuse(pid: int) -> int:
            raise OSError(errno.ENOSYS, "as an old kernel says")

        monkeypatch.setattr(os, "pidfd_open", refuse)
    if request.param == "polling":
        monkeypatch.setattr("workers.sandbox.process._HAS_WAITID", False)
    return str(request.param)


def is_unreaped(child: Child) -> bool:
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", -signal.SIGKILL)])
async def test_the_exit_code_is_that_of_the_process(
    tmp_path: Path, way_of_waiting: str, script: str, code: int
) -> None:
    with trio.fail_after(10):
        async with open_process(["sh", "-c", script], cwd=tmp_path, env=ENVIRONMENT) as child:
            assert await child.wait() == code
            assert await child.wait() == code
    assert not is_unreaped(child)


async def test_several_tasks_may_wait_and_one_that_gives_up_does_not_disturb_the_others(
    tmp_path: Path, way_of_waiting: str
) -> None:
    codes: list[int] = []
    with trio.fail_after(10):
        async with open_process(["cat"], cwd=tmp_path, env=ENVIRONMENT, stdin=True) as child:

            async def wait(scope: trio.CancelScope) -> None:
                with scope:
                    codes.append(await child.wait())

            async with trio.open_nursery() as nursery:
                impatient = trio.CancelScope()
                for scope in (impatient, trio.CancelScope(), trio.CancelScope()):
                    nursery.start_soon(wait, scope)
                await trio.testing.wait_all_tasks_blocked()
                impatient.cancel()
                await trio.testing.wait_all_tasks_blocked()
                assert child.stdin is not None
                await child.stdin.aclose()
    assert codes == [0, 0]


async def test_leaving_the_block_by_an_exception_ends_the_whole_group(
    tmp_path: Path, way_of_waiting: str, held_pipe: HeldPipe
) -> None:
    command = f"exec 9>'{held_pipe.path}'; (trap '' TERM; sleep 60) & echo; sleep 60"
    with pytest.raises(KeyError), trio.fail_after(10):
        async with open_process(["sh", "-c", command], cwd=tmp_path, env=ENVIRONMENT) as child:
            assert child.stdout is not None
            await child.stdout.receive_some(1)
            raise KeyError
    await held_pipe.wait_until_let_go()


async def test_leaving_the_block_while_it_runs_ends_the_process(tmp_path: Path, held_pipe: HeldPipe) -> None:
    command = f"exec 9>'{held_pipe.path}'; echo; sleep 60"
    with trio.fail_after(10):
        async with open_process(["sh", "-c", command], cwd=tmp_path, env=ENVIRONMENT) as child:
            assert child.stdout is not None
            await child.stdout.receive_some(1)
    assert child.exit_code() == -signal.SIGTERM
    assert not is_unreaped(child)
    await held_pipe.wait_until_let_go()


async def test_what_an_exited_process_left_in_its_group_stays(tmp_path: Path, held_pipe: HeldPipe) -> None:
    command = f"exec 9>'{held_pipe.path}'; sleep 60 >/dev/null 2>&1 & echo $!"
    with trio.fail_after(10):
        async with open_process(["sh", "-c", command], cwd=tmp_path, env=ENVIRONMENT) as child:
            assert child.stdout is not None
            pid = int(await child.stdout.receive_some(100))
            await child.wait()
    assert held_pipe.is_held()
    os.kill(pid, signal.SIGKILL)
    await held_pipe.wait_until_let_go()


async def test_the_leader_is_reaped_only_at_the_end_of_the_block(tmp_path: Path) -> None:
    async with open_process(["true"], cwd=tmp_path, env=ENVIRONMENT) as child:
        await child.wait()
        assert is_unreaped(child)
    assert not is_unreaped(child)


async def test_a_child_can_be_talked_to_over_its_pipes(tmp_path: Path) -> None:
    with trio.fail_after(10):
        async with open_process(["cat"], cwd=tmp_path, env=ENVIRONMENT, stdin=True) as child:
            assert child.stdin is not None and child.stdout is not None
            await child.stdin.send_all(b"hello")
            assert await child.stdout.receive_some(100) == b"hello"
            await child.stdin.aclose()
            assert await child.stdout.receive_some(100) == b""
            assert await child.wait() == 0


async def test_a_child_leads_a_session_of_its_own_and_inherits_no_descriptor(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    script = f"import os; print(os.getsid(0) == os.getpid(), os.path.exists('/dev/fd/{descriptor}'))"
    try:
        async with open_process([sys.executable, "-c", script], cwd=tmp_path, env=ENVIRONMENT) as child:
            assert child.stdout is not None
            assert await child.stdout.receive_some(100) == b"True False\n"
    finally:
        os.close(descriptor)


async def test_a_missing_program_and_a_missing_folder_raise_and_leave_nothing(tmp_path: Path) -> None:
    before = len(list(Path("/dev/fd").iterdir()))
    for argv, folder in ((["no-such-program"], tmp_path), (["true"], tmp_path / "missing")):
        with pytest.raises(FileNotFoundError):
            async with open_process(argv, cwd=folder, env=ENVIRONMENT):
                pass
    assert len(list(Path("/dev/fd").iterdir())) == before
