"""Ceilings by cgroup: what is read from the system, what is written to it, and what the kernel makes of that.

The folders of a fake system show what is written; killing, waiting and removing are tried on the kernel's own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
import trio

from protocol.frames import UpwardFrame
from protocol.records import CrashCause
from supervisor.cgroup_base import find_base, read_count, read_mount_point, read_own_path
from supervisor.cgroups import Cgroup, RunCgroups, judged
from supervisor.spawn import ExitStatus
from supervisor.worker_life import WorkerEnd, WorkerLife
from tests.stubs.memory_cgroups import base_with_memory
from tests.supervisor.test_worker_life import PATIENT, OneFault

MIB = 1 << 20
KILLED = ExitStatus(None, signal.SIGKILL)
V2_ONLY = "29 22 0:26 / {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = "30 22 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" + V2_ONLY


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/\n", "/"),
        ("0::/user.slice/a b.scope\n", "/user.slice/a b.scope"),
        ("4:memory:/old\n1:cpu:/\n0::/new\n", "/new"),
        ("4:memory:/old\n", None),
        ("0::/gone (deleted)\n", None),
        ("0::/../outside\n", None),
        ("", None),
    ],
)
def test_the_own_cgroup_is_that_of_version_two_if_it_can_be_reached(text: str, path: str | None) -> None:
    assert read_own_path(text) == path


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        (V2_ONLY.format(mount="/sys/fs/cgroup"), Path("/sys/fs/cgroup")),
        (HYBRID.format(mount="/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/unified")),
        (V2_ONLY.format(mount="/with\\040space"), None),
        ("29 22 0:26 /part /mnt rw - cgroup2 cgroup2 rw\n", None),
        ("30 22 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", None),
        ("cut off", None),
    ],
)
def test_the_mount_point_is_where_all_of_version_two_is_seen(text: str, mount: Path | None) -> None:
    assert read_mount_point(text) == mount


def test_a_count_is_found_by_its_whole_key() -> None:
    events = "low 0\noom 7\noom_kill 3\noom_group_kill 1\n"
    assert read_count(events, "oom_kill") == 3
    assert read_count(events, "kill") == 0
    assert read_count("oom_kill many\n", "oom_kill") == 0


# -- a base for ours --------------------------------------------------------------------------------------------------


class FakeSystem:
    """Folders that look like ``/proc/self`` and a mounted hierarchy; the process is in ``own``."""

    def __init__(self, folder: Path, own: str = "/unit/supervisor") -> None:
        self.mount = folder / "cgroup"
        self.proc = folder / "proc"
        self.proc.mkdir()
        (self.proc / "cgroup").write_text(f"0::{own}\n")
        (self.proc / "mountinfo").write_text(V2_ONLY.format(mount=self.mount))
        self.own = self.mount / own.lstrip("/")
        self.own.mkdir(parents=True)

    def offer(self, folder: Path, controllers: str = "cpu memory pids") -> None:
        (folder / "cgroup.controllers").write_text(f"{controllers}\n")
        (folder / "cgroup.subtree_control").write_text("\n")
        (folder / "cgroup.procs").write_text("")

    def mark_delegated(self, folder: Path) -> None:
        try:
            os.setxattr(folder, "user.delegate", b"1")
        except (AttributeError, OSError) as error:
            pytest.skip(f"no extended attributes of users here: {error}")


def test_the_own_cgroup_is_the_base_if_it_has_the_controller_to_give(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path)
    system.offer(system.own)
    assert find_base(system.proc) == system.own
    assert (system.own / "cgroup.subtree_control").read_text() == "+memory"


def test_the_root_of_the_hierarchy_can_be_the_base(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path, own="/")
    system.offer(system.mount)
    assert find_base(system.proc) == system.mount


def test_a_cgroup_without_the_memory_controller_is_no_base(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path)
    system.offer(system.own, controllers="hugetlb")
    assert find_base(system.proc) is None


def test_a_cgroup_whose_controllers_can_not_be_switched_on_is_no_base(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path)
    system.offer(system.own)
    (system.own / "cgroup.subtree_control").unlink()
    (system.own / "cgroup.subtree_control").mkdir()  # what is refused to root too
    assert find_base(system.proc) is None


def test_the_cgroup_around_is_the_base_only_if_it_was_delegated(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path)
    system.offer(system.own.parent)
    assert find_base(system.proc) is None
    system.mark_delegated(system.own.parent)
    assert find_base(system.proc) == system.own.parent


def test_nothing_outside_of_the_mount_is_taken_for_a_base(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path, own="/")
    system.offer(tmp_path)
    system.mark_delegated(tmp_path)
    assert find_base(system.proc) is None


def test_a_system_that_tells_nothing_has_no_base(tmp_path: Path) -> None:
    assert find_base(tmp_path / "no-proc") is None


# -- ceilings ---------------------------------------------------------------------------------------------------------


def test_a_worker_gets_a_cgroup_of_its_own_below_that_of_the_run(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path)
    system.offer(system.own)
    cgroups = RunCgroups(100 * MIB, 300 * MIB, proc=system.proc)
    first, second = cgroups.place(4_000_001), cgroups.place(4_000_002)
    assert first is not None and second is not None and cgroups.path is not None
    assert cgroups.path.parent == system.own
    assert cgroups.path.name.startswith(f"corral-{os.getpid()}-")
    assert [first.path.name, second.path.name] == ["agent-1", "agent-2"]
    assert (cgroups.path / "memory.max").read_text() == str(300 * MIB)
    found = {path.name: path.read_text() for path in second.path.iterdir()}
    assert found == {
        "memory.max": str(100 * MIB),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cgroup.procs": "4000002",
    }


def test_two_runs_of_one_process_have_a_cgroup_each(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path)
    system.offer(system.own)
    first, second = (RunCgroups(MIB, None, proc=system.proc) for _ in range(2))
    assert None not in (first.path, second.path)
    assert first.path != second.path
    assert first.path is not None and not (first.path / "memory.max").exists()


def test_no_cgroup_is_made_where_no_ceiling_is_asked_for(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path)
    system.offer(system.own)
    cgroups = RunCgroups(None, 300 * MIB, proc=system.proc)
    assert (cgroups.path, cgroups.place(4_000_001)) == (None, None)
    assert not [path for path in system.own.iterdir() if path.is_dir()]


def test_what_a_run_that_was_killed_left_is_removed_and_a_living_one_s_is_not(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path)
    system.offer(system.own)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(20)
    stale, living = system.own / f"corral-{ended.pid}-1", system.own / f"corral-{os.getppid()}-1"
    for folder in (stale, living):
        (folder / "agent-1").mkdir(parents=True)
    RunCgroups(MIB, None, proc=system.proc)
    assert (stale.exists(), living.exists()) == (False, True)


# -- the verdict ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["signal", "exited_early", "channel_closed", "unresponsive"])
@pytest.mark.parametrize("status", [KILLED, ExitStatus(None, None)])
def test_the_kernel_s_kill_is_out_of_memory(cause: CrashCause, status: ExitStatus) -> None:
    end = judged(WorkerEnd(cause=cause, status=status), "there was none left")
    assert (end.cause, end.status, end.detail) == ("out_of_memory", status, "there was none left")


@pytest.mark.parametrize(
    ("end", "why_killed"),
    [
        (WorkerEnd(cause="signal", status=KILLED), None),
        (WorkerEnd(cause="signal", status=ExitStatus(None, signal.SIGSEGV)), "no memory"),
        (WorkerEnd(cause="exited_early", status=ExitStatus(3, None)), "no memory"),
        (WorkerEnd(cause="unresponsive", status=ExitStatus(None, signal.SIGTERM)), "no memory"),
        (WorkerEnd(cause="protocol_error", status=KILLED), "no memory"),
        (WorkerEnd(status=KILLED), "no memory"),
        (WorkerEnd(cause="spawn_failed"), None),
    ],
)
def test_any_other_end_stays_what_it_was(end: WorkerEnd, why_killed: str | None) -> None:
    assert judged(end, why_killed) == end


@pytest.mark.parametrize(
    ("agent_s_ooms", "run_s_ooms", "said"),
    [(1, 0, "its ceiling of memory"), (1, 1, "its ceiling of memory"), (0, 1, "the run's ceiling"), (0, 0, "machine")],
    ids=["the agent's", "the agent's, and once the run's", "the run's", "neither"],
)
async def test_a_worker_is_in_its_cgroup_before_it_is_heard_and_the_kernel_s_counts_tell_why_it_died(
    tmp_path: Path, agent_s_ooms: int, run_s_ooms: int, said: str
) -> None:
    system = FakeSystem(tmp_path)
    system.offer(system.own)
    cgroups = RunCgroups(100 * MIB, None, proc=system.proc)
    assert cgroups.path is not None
    agent, spawner, placed = cgroups.path / "agent-1", OneFault("is_killed"), list[str]()

    def the_kernel_kills(frame: UpwardFrame) -> None:
        placed.append((agent / "cgroup.procs").read_text())
        (agent / "memory.events.local").write_text(f"oom {agent_s_ooms}\noom_kill 2\n")
        (agent.parent / "memory.events.local").write_text(f"oom {run_s_ooms}\n")

    worker = WorkerLife(the_kernel_kills, trio.lowlevel.checkpoint, PATIENT)
    with trio.fail_after(20):
        end = await cgroups.run_worker(worker, spawner, ())
    spawner.close()
    assert spawner.process is not None
    assert placed == [str(spawner.process.pid)]
    assert (end.cause, end.status) == ("out_of_memory", KILLED)
    assert said in end.in_words()
    assert (agent / "cgroup.kill").read_text() == "1"


async def test_the_end_of_a_run_kills_what_is_left_and_takes_no_worker_any_more(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path)
    system.offer(system.own)
    cgroups = RunCgroups(100 * MIB, None, proc=system.proc)
    around = cgroups.path
    assert around is not None
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cgroups.keep)
            nursery.cancel_scope.cancel()
    assert (around / "cgroup.kill").read_text() == "1"
    assert (cgroups.path, cgroups.place(4_000_001)) == (None, None)


async def test_without_cgroups_a_worker_runs_as_ever(tmp_path: Path) -> None:
    cgroups, spawner = RunCgroups(100 * MIB, None, proc=tmp_path), OneFault("is_killed")
    worker = WorkerLife(lambda _: None, trio.lowlevel.checkpoint, PATIENT)
    with trio.fail_after(20):
        end = await cgroups.run_worker(worker, spawner, ())
    spawner.close()
    assert (end.cause, end.status) == ("signal", KILLED)


# -- the kernel's own -------------------------------------------------------------------------------------------------

WAITS = "import sys; sys.stdin.read()"
BACKGROUND = "import subprocess, sys; subprocess.Popen(['sleep', '300'], start_new_session=True); print(flush=True); "
GREEDY = "import sys; sys.stdin.readline(); held = bytearray(b'x' * (400 << 20)); sys.stdin.read()"


@pytest.fixture
def real() -> Generator[Cgroup, None, None]:
    """A cgroup below that of this process, without controllers."""
    own = read_own_path(read("/proc/self/cgroup"))
    mount = read_mount_point(read("/proc/self/mountinfo"))
    if own is None or mount is None:
        pytest.skip("no cgroup v2 is mounted here")
    cgroup = Cgroup(mount / own.lstrip("/") / f"corral-{os.getpid()}-test")
    try:
        cgroup.path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield cgroup
    cgroup.kill()
    cgroup.wait_until_empty(time.monotonic() + 10)
    assert cgroup.remove()


def read(path: str) -> str:
    """What is in the file; nothing where there is none."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def start_in(cgroup: Cgroup, code: str) -> subprocess.Popen[bytes]:
    """Start Python with ``code``, placed as a worker is: after its start."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", "input(); " + code], stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    try:
        cgroup.write("cgroup.procs", str(process.pid))
    except OSError as error:
        process.kill()
        process.communicate()
        pytest.skip(f"no process can be put into a cgroup here: {error}")
    process.stdin.write(b"\n")
    process.stdin.flush()
    return process


def needs_kill(cgroup: Cgroup) -> None:
    if not (cgroup.path / "cgroup.kill").exists():
        pytest.skip("the kernel is older than 5.14")


def test_a_cgroup_with_a_process_in_it_is_not_removed(real: Cgroup) -> None:
    with start_in(real, WAITS) as process:
        assert not real.remove()
        process.kill()
    real.wait_until_empty(time.monotonic() + 10)
    assert real.remove()
    assert real.remove(), "what is gone is removed"
    real.path.mkdir()  # for the fixture's end


def test_a_cgroup_is_removed_with_those_that_tools_made_in_it(real: Cgroup) -> None:
    for name in ("one/below/deep", "other"):
        (real.path / name).mkdir(parents=True)
    assert real.remove()
    assert not real.path.exists()
    real.path.mkdir()  # for the fixture's end


def test_what_a_worker_put_into_the_background_is_killed_with_the_cgroup(real: Cgroup) -> None:
    needs_kill(real)
    with start_in(real, BACKGROUND + WAITS) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pids = [int(pid) for pid in (real.path / "cgroup.procs").read_text().split()]
        assert len(pids) == 2
        real.kill()
        assert process.wait(10) == -signal.SIGKILL
    real.wait_until_empty(time.monotonic() + 10)
    assert read_count((real.path / "cgroup.events").read_text(), "populated") == 0


def test_the_wait_for_a_cgroup_to_be_empty_has_an_end(real: Cgroup) -> None:
    with start_in(real, WAITS) as process:
        began = time.monotonic()
        real.wait_until_empty(began + 0.05)
        assert 0.05 <= time.monotonic() - began < 10
        process.kill()


def test_a_worker_with_its_tools_is_killed_at_its_ceiling_and_nothing_is_left() -> None:
    base_with_memory()
    cgroups = RunCgroups(100 * MIB, None)
    path = cgroups.path
    assert path is not None
    try:
        with subprocess.Popen([sys.executable, "-c", GREEDY], stdin=subprocess.PIPE) as process:
            cgroup = cgroups.place(process.pid)
            assert cgroup is not None
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.wait(20) == -signal.SIGKILL
        assert cgroup.oom_kills() >= 1
        assert cgroup.is_too_small()
        assert not Cgroup(path).is_too_small()
    finally:
        cgroups.close()
    assert not path.exists()
