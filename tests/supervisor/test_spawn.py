"""Starting workers, in both ways, with the same promises: real processes, seen as the supervisor sees them."""

from __future__ import annotations

import ast
import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

import tests
from supervisor.config import SpawnMode
from supervisor.early_fork import fork_early
from supervisor.spawn import ExitStatus, ForkSpawner, FreshSpawner, Spawner, WorkerProcess, choose_spawner
from tests.stubs.process_table import descendants, ended_within, process_table, subreaper

ENTRIES = "tests.workers.fork_entries"
SECONDS = 20.0
TESTS = Path(tests.__path__[0])


@pytest.fixture(params=["fork", "fresh"])
def mode(request: pytest.FixtureRequest) -> SpawnMode:
    """Everything here holds for both."""
    chosen: SpawnMode = request.param
    return chosen


@pytest.fixture(autouse=True)
def _limits_are_put_back() -> Generator[None, None, None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@asynccontextmanager
async def running(
    mode: SpawnMode, entry: str = "echo", packages: tuple[Path, ...] = (TESTS,)
) -> AsyncGenerator[Spawner, None]:
    """A spawner at work; within the block this process is a subreaper, afterwards none of its children is left."""
    before = {process.pid for process in descendants(os.getpid())}
    spawner = choose_spawner(mode, entry=f"{ENTRIES}:{entry}", packages=packages)
    try:
        with subreaper(), trio.fail_after(SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(spawner.run)
                yield spawner
                nursery.cancel_scope.cancel()
    finally:
        spawner.close()
    left = {process.pid for process in descendants(os.getpid())} - before
    assert all(ended_within(pid, 15) for pid in left)


async def line_of(worker: WorkerProcess) -> str:
    data = b""
    while not data.endswith(b"\n"):
        piece = await worker.stream.receive_some()
        assert piece, "the worker has gone"
        data += piece
    return data.decode()


async def check_echo(worker: WorkerProcess, text: bytes = b"hello\n") -> None:
    await worker.stream.send_all(text)
    assert await line_of(worker) == text.decode()


async def end(worker: WorkerProcess) -> ExitStatus:
    await worker.stream.aclose()
    return await worker.wait()


def parent_of(pid: int) -> int:
    return process_table()[pid].parent


@contextmanager
def no_more_descriptors() -> Generator[None, None, None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- both ways --------------------------------------------------------------------------------------------------------


async def test_workers_are_processes_of_their_own_that_lead_groups(mode: SpawnMode) -> None:
    async with running(mode) as spawner:
        workers = [await spawner.spawn("") for _ in range(3)]
        assert len({worker.pid for worker in workers} | {os.getpid()}) == 4
        for worker in workers:
            assert await line_of(worker) == f"{worker.pid}\n"
            assert os.getpgid(worker.pid) == worker.pid
            await check_echo(worker)
        assert {await end(worker) for worker in workers} == {ExitStatus(0, None)}


async def test_many_workers_that_are_asked_for_at_once_all_come(mode: SpawnMode) -> None:
    workers: list[WorkerProcess] = []

    async def spawn(spawner: Spawner) -> None:
        workers.append(await spawner.spawn(""))

    async with running(mode) as spawner:
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(spawn, spawner)
        assert sorted([await line_of(worker) for worker in workers]) == sorted(f"{w.pid}\n" for w in workers)
        for worker in workers:
            assert await end(worker) == ExitStatus(0, None)


async def test_a_worker_has_only_its_own_descriptors_and_the_limit_that_was(mode: SpawnMode) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
    try:
        async with running(mode, "describe") as spawner:
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 600
            others = [await spawner.spawn("") for _ in range(2)]
            worker = await spawner.spawn("")
            found = ast.literal_eval(await line_of(worker))
            assert found["descriptors"] == [0, 1, 2, found["channel"]]
            assert found["open_files"] == 600
            for each in [*others, worker]:
                await each.stream.aclose()
                await each.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [
        ("return", ExitStatus(0, None), ""),
        ("exit 3", ExitStatus(3, None), ""),
        ("say too bad", ExitStatus(1, None), "too bad\n"),
        ("raise", ExitStatus(1, None), "RuntimeError: as it was told\n"),
        ("signal 9", ExitStatus(None, 9), ""),
        ("signal 11", ExitStatus(None, 11), ""),
    ],
)
async def test_how_a_worker_ended_and_what_it_said_last(
    mode: SpawnMode, kind: str, status: ExitStatus, said: str
) -> None:
    async with running(mode, "leave") as spawner:
        worker = await spawner.spawn(kind)
        await worker.collect_stderr()
        assert await worker.wait() == status
        assert await worker.wait() == status
        assert worker.stderr_tail.endswith(said)
        worker.kill()
        worker.terminate()
        await worker.stream.aclose()
        left = process_table().get(worker.pid)  # its number may be a stranger's by now
    assert left is None or left.parent != os.getpid()


async def test_several_tasks_may_wait_for_one_end(mode: SpawnMode) -> None:
    statuses: list[ExitStatus] = []

    async def wait(worker: WorkerProcess) -> None:
        statuses.append(await worker.wait())

    async with running(mode) as spawner:
        worker = await spawner.spawn("")
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(wait, worker)
            await line_of(worker)
            worker.kill()
        await worker.stream.aclose()
    assert statuses == [ExitStatus(None, signal.SIGKILL)] * 3


async def test_terminate_asks_and_kill_takes_the_whole_group(mode: SpawnMode) -> None:
    async with running(mode, "stay") as spawner:
        worker = await spawner.spawn("")
        _, near, far = map(int, (await line_of(worker)).split())
        worker.terminate()
        assert ended_within(near, 5), "it is in the group, and does not ignore SIGTERM"
        assert worker.pid in process_table()
        worker.kill()
        assert await worker.wait() == ExitStatus(None, signal.SIGKILL)
        await worker.stream.aclose()
        if mode == "fresh":  # this process is not told to end orphans
            os.kill(far, signal.SIGKILL)
            os.waitpid(far, 0)
        assert far not in process_table()


async def test_orphans_of_a_dead_worker_are_ended_where_this_process_has_no_other_children(mode: SpawnMode) -> None:
    before = {process.pid for process in descendants(os.getpid())}
    if before:
        pytest.skip("other tests of this process have children")
    spawner = choose_spawner(mode, entry=f"{ENTRIES}:stay", packages=(TESTS,), ends_orphans=True)
    with subreaper(), trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spawner.run)
            worker, other = await spawner.spawn(""), await spawner.spawn("")
            _, near, far = map(int, (await line_of(worker)).split())
            await line_of(other)
            worker.kill()
            await worker.wait()
            assert not process_table().keys() & {near, far}
            assert process_table()[other.pid].alive
            other.kill()
            await other.wait()
            await worker.stream.aclose()
            await other.stream.aclose()
            nursery.cancel_scope.cancel()
    spawner.close()


async def test_a_cancelled_request_leaves_no_worker(mode: SpawnMode) -> None:
    async with running(mode) as spawner:
        with trio.move_on_after(0) as scope:
            await spawner.spawn("")
        worker = await spawner.spawn("")
        assert await line_of(worker) == f"{worker.pid}\n"
        assert await end(worker) == ExitStatus(0, None)
    assert scope.cancelled_caught or mode == "fresh"


async def test_without_descriptors_there_is_an_error_and_later_a_worker(mode: SpawnMode) -> None:
    async with running(mode) as spawner:
        worker = await spawner.spawn("")
        with no_more_descriptors(), pytest.raises(OSError, match="Too many open files") as caught:
            await spawner.spawn("")
        assert caught.value.errno == errno.EMFILE
        await check_after_greeting(worker)
        assert await end(worker) == ExitStatus(0, None)
        worker = await spawner.spawn("")
        await check_after_greeting(worker)
        assert await end(worker) == ExitStatus(0, None)


async def check_after_greeting(worker: WorkerProcess) -> None:
    await line_of(worker)
    await check_echo(worker)


# -- a fork server that dies ------------------------------------------------------------------------------------------


async def test_workers_outlive_their_server_and_the_next_has_a_new_one() -> None:
    async with running("fork") as spawner:
        first, second = await spawner.spawn(""), await spawner.spawn("")
        await line_of(first)
        await line_of(second)
        server = parent_of(first.pid)
        assert server not in (os.getpid(), os.getppid())
        os.kill(server, signal.SIGKILL)
        await check_echo(first)
        third = await spawner.spawn("")
        await line_of(third)
        assert parent_of(third.pid) not in (os.getpid(), server)
        assert server not in process_table()
        assert parent_of(first.pid) == os.getpid()
        await check_echo(first)
        second.kill()
        assert await second.wait() == ExitStatus(None, signal.SIGKILL)
        assert [await end(first), await end(third)] == [ExitStatus(0, None)] * 2
        assert first.pid not in process_table()
        await second.stream.aclose()


async def test_who_waits_when_the_server_dies_gets_the_status_all_the_same() -> None:
    statuses: list[ExitStatus] = []

    async def wait(worker: WorkerProcess) -> None:
        statuses.append(await worker.wait())

    async with running("fork") as spawner:
        worker = await spawner.spawn("")
        await line_of(worker)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, worker)
            await trio.testing.wait_all_tasks_blocked()
            os.kill(parent_of(worker.pid), signal.SIGKILL)
            os.kill(worker.pid, signal.SIGSEGV)
        await worker.stream.aclose()
    assert statuses == [ExitStatus(None, signal.SIGSEGV)]


async def test_workers_come_by_exec_where_servers_do_not_live_to_serve(tmp_path: Path) -> None:
    """A package of the name of the HTTP library that ends whoever imports it: the server does, the worker doesn't."""
    package = tmp_path / "httpx"
    package.mkdir()
    (package / "__init__.py").write_text("def __getattr__(name):\n    import os\n    os._exit(9)\n")
    async with running("fork", packages=(TESTS, package)) as spawner:
        for _ in range(2):
            worker = await spawner.spawn("")
            await line_of(worker)
            assert parent_of(worker.pid) == os.getpid()
            assert await end(worker) == ExitStatus(0, None)


async def test_a_worker_that_kills_its_servers_is_started_by_exec_in_the_end() -> None:
    async with running("fork", "kill_the_server") as spawner:
        worker = await spawner.spawn("")
        await worker.stream.aclose()
        worker.kill()
        await worker.wait()


# -- the choice -------------------------------------------------------------------------------------------------------


def test_the_system_is_fit_for_a_fork_server_or_not() -> None:
    assert isinstance(choose_spawner("fresh"), FreshSpawner)
    assert isinstance(choose_spawner("auto"), ForkSpawner)
    assert isinstance(choose_spawner("fork"), ForkSpawner)


def test_a_process_with_threads_is_not_forked() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert fork_early() is None
    finally:
        stop.set()
        thread.join()


def test_an_early_server_that_is_not_wanted_is_ended() -> None:
    check_in_a_new_process(
        """
        early = fork_early()
        assert early is not None and Path(f"/proc/{early.pid}").exists()
        choose_spawner("fresh", early)
        assert not Path(f"/proc/{early.pid}").exists()
        """
    )


def test_an_early_server_forks_the_first_worker() -> None:
    check_in_a_new_process(
        f"""
        early = fork_early()
        spawner = choose_spawner("auto", early, entry="{ENTRIES}:echo")

        async def main():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(spawner.run)
                worker = await spawner.spawn("")
                parent = Path(f"/proc/{{worker.pid}}/stat").read_text().rpartition(")")[2].split()[1]
                assert int(parent) == early.pid
                await worker.stream.receive_some()
                await worker.stream.aclose()
                assert (await worker.wait()).code == 0
                nursery.cancel_scope.cancel()

        trio.run(main)
        spawner.close()
        spawner.close()
        assert not Path(f"/proc/{{early.pid}}").exists()
        """
    )


def test_ends_are_known_though_sigchld_was_ignored() -> None:
    check_in_a_new_process(
        f"""
        import signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        early = fork_early()

        async def main(spawner):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(spawner.run)
                worker = await spawner.spawn("exit 3")
                assert (await worker.wait()).code == 3
                nursery.cancel_scope.cancel()

        for spawner in (
            choose_spawner("fork", early, entry="{ENTRIES}:leave"),
            choose_spawner("fresh", entry="{ENTRIES}:leave", packages=[Path("tests").absolute()]),
        ):
            trio.run(main, spawner)
            spawner.close()
        """
    )


def check_in_a_new_process(program: str) -> None:
    """Run ``program`` in a process that has one thread and has run no event loop."""
    head = (
        "from pathlib import Path\nimport trio\n"
        "from supervisor.early_fork import fork_early\nfrom supervisor.spawn import choose_spawner\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(program)],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
