"""One worker's life, against real processes that misbehave (`tests.stubs.raw_worker`)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from pathlib import Path

import pytest
import trio

import tests
from protocol.content import UserMessage
from protocol.errors import ProtocolError
from protocol.frames import DownwardFrame, History, UpwardFrame
from protocol.records import TextDelta
from supervisor.core.worker_times import WorkerTimes
from supervisor.spawn import Spawner, WorkerProcess, choose_spawner
from supervisor.worker_life import DRAIN_SECONDS, WorkerEnd, WorkerLife
from tests.stubs import process_table, raw_worker
from tests.stubs.process_table import ended_within

QUICK = WorkerTimes(grace=0.3, silence=2.0, terminate=0.3)  # a pulse is late on a busy machine, never by that
PATIENT = WorkerTimes(grace=30.0, silence=30.0, terminate=30.0)
"""For tests in which no bound may be what ends the worker."""


@pytest.fixture(autouse=True)
def nothing_is_left() -> Generator[None, None, None]:
    """Orphans of a worker come to this process, and are gone with the worker's end."""
    with process_table.subreaper():
        known = {process.pid for process in process_table.descendants(os.getpid())}
        yield
        left = [process for process in process_table.descendants(os.getpid()) if process.pid not in known]
        for process in left:
            os.kill(process.pid, 9)
            os.waitpid(process.pid, 0)
    assert not left


class OneFault:
    """Starts workers that misbehave as the function ``name`` of `raw_worker` says."""

    def __init__(self, name: str) -> None:
        self._name = name
        packages = (Path(tests.__path__[0]),)
        self._spawner = choose_spawner("fresh", entry=raw_worker.ENTRY, packages=packages, ends_orphans=True)
        self.process: WorkerProcess | None = None
        self.started = trio.Event()

    async def spawn(self, kind: str) -> WorkerProcess:
        assert kind == "agent"
        self.process = await self._spawner.spawn(self._name)
        self.started.set()
        return self.process

    async def run(self) -> None:
        await self._spawner.run()

    def close(self) -> None:
        self._spawner.close()


class Life:
    """A `WorkerLife` and what was heard of it."""

    def __init__(
        self,
        fault: str,
        times: WorkerTimes = QUICK,
        *,
        handle: Callable[[UpwardFrame], None] | None = None,
        room: Callable[[], Awaitable[None]] | None = None,
        spawner: Spawner | None = None,
    ) -> None:
        self.heard: list[UpwardFrame] = []
        self.spawner = spawner or OneFault(fault)
        self.worker = WorkerLife(handle or self.heard.append, room or trio.lowlevel.checkpoint, times)
        self.end = WorkerEnd()

    async def run(self, assignment: Sequence[DownwardFrame] = ()) -> WorkerEnd:
        with trio.fail_after(20):
            self.end = await self.worker.run(self.spawner, assignment)
        self.spawner.close()
        return self.end

    @property
    def texts(self) -> list[str]:
        return [frame.text for frame in self.heard if isinstance(frame, TextDelta)]


# -- the causes -------------------------------------------------------------------------------------------------------


async def test_a_worker_that_finishes_has_no_cause_of_death() -> None:
    life = Life("finishes", PATIENT)
    end = await life.run()
    assert end.cause is None
    assert end.finished is not None
    assert (end.finished.outcome, end.finished.response) == ("complete", "all")
    assert life.texts == ["all"]


async def test_a_worker_that_is_done_and_does_not_go_is_killed_and_was_done() -> None:
    end = await Life("finishes_and_lives_on").run()
    assert end.finished is not None
    assert end.status is not None
    assert (end.cause, end.status.signal) == (None, 9)


async def test_what_a_worker_says_after_its_end_is_not_heard() -> None:
    life = Life("says_more_after_the_end", PATIENT)
    end = await life.run()
    assert end.finished is not None
    assert life.texts == []


@pytest.mark.parametrize("fault", ["is_killed", "is_killed_before_it_greets"])
async def test_a_signal_is_the_cause(fault: str) -> None:
    end = await Life(fault, PATIENT).run()
    assert end.status is not None
    assert (end.cause, end.status.signal, end.status.code) == ("signal", 9, None)


async def test_a_segmentation_fault_is_told_with_where_it_came_up() -> None:
    end = await Life("reads_where_nothing_is", PATIENT).run()
    assert end.status is not None
    assert (end.cause, end.status.signal) == ("signal", 11)
    assert end.detail.startswith("Fatal Python error: Segmentation fault")
    assert "reads_where_nothing_is" in end.detail
    assert len(end.detail) <= 4096


async def test_what_was_said_before_a_death_is_heard() -> None:
    life = Life("is_killed", PATIENT)
    await life.run()
    assert life.texts == ["half"]


async def test_an_exit_before_the_last_frame_is_a_failure_even_with_code_0() -> None:
    end = await Life("exits_early", PATIENT).run()
    assert end.status is not None
    assert (end.cause, end.status.code) == ("exited_early", 0)


async def test_an_error_of_the_worker_is_named_by_its_last_line() -> None:
    end = await Life("fails", PATIENT).run()
    assert (end.cause, end.detail) == ("exited_early", "RuntimeError: the reason why")


async def test_a_worker_that_closes_its_channel_and_lives_on_is_killed_after_its_grace() -> None:
    end = await Life("ends_the_channel_and_lives_on").run()
    assert end.status is not None
    assert (end.cause, end.status.signal) == ("channel_closed", 9)


async def test_half_a_frame_before_the_end_of_the_channel_is_dropped_and_told() -> None:
    life = Life("stops_inside_a_frame")
    end = await life.run()
    assert end.cause == "channel_closed"
    assert "inside the frame at offset" in end.detail
    assert life.heard == []


async def test_a_death_inside_a_frame_has_its_own_cause_and_the_rest_is_dropped_and_told() -> None:
    life = Life("dies_inside_a_frame", PATIENT)
    end = await life.run()
    assert end.status is not None
    assert (end.cause, end.status.signal) == ("signal", 9)
    assert "inside the frame at offset" in end.detail
    assert life.texts == ["whole"]


async def test_the_end_is_the_exit_of_the_process_though_its_child_holds_the_channel_open() -> None:
    life = Life("leaves_the_channel_to_another", PATIENT)
    end = await life.run()
    assert end.cause == "signal"
    assert life.texts == ["last words"]


# -- frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["sends_garbage", "sends_a_command"])
async def test_a_frame_that_is_none_is_a_protocol_error_with_its_place_and_no_effect(fault: str) -> None:
    life = Life(fault, PATIENT)
    end = await life.run()
    assert end.cause == "protocol_error"
    assert "at offset" in end.detail
    assert life.heard == [], "neither it nor what came behind it"


async def test_a_length_over_the_limit_is_refused_by_its_prefix_alone() -> None:
    end = await Life("announces_too_much", PATIENT).run()
    assert end.cause == "protocol_error"
    assert "4294967295 bytes" in end.detail


@pytest.mark.parametrize(
    ("fault", "named"),
    [("greets_as_another_version", "version"), ("does_not_greet_first", "TextDelta instead of Ready")],
)
async def test_a_worker_that_does_not_greet_as_it_should_is_a_protocol_error(fault: str, named: str) -> None:
    life = Life(fault, PATIENT)
    end = await life.run()
    assert end.cause == "protocol_error"
    assert named in end.detail
    assert life.heard == []


async def test_a_frame_that_its_handler_refuses_is_a_protocol_error() -> None:
    def refuse(_frame: UpwardFrame) -> None:
        raise ProtocolError("no worker of ours says that")

    end = await Life("finishes_and_lives_on", PATIENT, handle=refuse).run()
    assert (end.cause, end.detail) == ("protocol_error", "no worker of ours says that")


# -- silence ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["is_stopped", "never_greets", "ignores_sigterm"])
async def test_a_silent_worker_is_unresponsive_and_ended(fault: str) -> None:
    end = await Life(fault).run()
    assert end.cause == "unresponsive"
    assert "silent for 2 s" in end.detail


async def test_a_worker_that_takes_nothing_is_unresponsive_though_it_gives_signs_of_life() -> None:
    much = [History(message=UserMessage(text="x" * 1_000_000))] * 4
    end = await Life("is_deaf").run(much)
    assert end.cause == "unresponsive"
    assert "took nothing" in end.detail


async def test_a_worker_that_takes_not_even_a_little_is_unresponsive_too() -> None:
    # All of it fits the buffers of the channel: only the worker itself can say what it has taken.
    end = await Life("is_deaf").run([History(message=UserMessage(text="x"))])
    assert end.cause == "unresponsive"
    assert "took nothing it was told" in end.detail


async def test_a_worker_that_nobody_listens_to_is_not_called_silent() -> None:
    # While the sinks push back nothing is read, for longer than silence is allowed.
    has_begun = False

    async def room() -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            await trio.sleep(3 * QUICK.silence)

    end = await Life("floods", QUICK, room=room).run()
    assert end.finished is not None


async def test_what_a_worker_said_before_it_ended_is_read_though_nobody_could_read_for_long() -> None:
    # The sinks push back from its greeting on until it is long dead; its last word lies in the channel all the time.
    life: Life
    looks = 0

    async def room() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            assert life.worker.pid is not None
            await trio.to_thread.run_sync(ended_within, life.worker.pid, 10)
            await trio.sleep(5 * DRAIN_SECONDS)  # the time that is not to count

    life = Life("finishes", PATIENT, room=room)
    end = await life.run()
    assert end.finished is not None
    assert end.cause is None


# -- floods -----------------------------------------------------------------------------------------------------------


async def test_a_flood_is_heard_whole_and_never_more_of_it_at_once_than_one_wake_up_reads() -> None:
    since_room: list[int] = [0]
    most = 0

    def handle(_frame: UpwardFrame) -> None:
        nonlocal most
        since_room[0] += 1
        most = max(most, since_room[0])

    total = 0

    async def room() -> None:
        nonlocal total
        total += since_room[0]
        since_room[0] = 0
        await trio.lowlevel.checkpoint()

    end = await Life("floods", PATIENT, handle=handle, room=room).run()
    assert end.finished is not None
    assert total + since_room[0] == raw_worker.FLOOD
    # 256 KiB in one wake-up, in frames of some 120 bytes each.
    assert most < 256 * 1024 / 100


async def test_a_reader_that_pushes_back_holds_a_flood_back_in_the_worker() -> None:
    heard = 0
    gate = trio.Event()
    blocked = trio.Event()

    def handle(_frame: UpwardFrame) -> None:
        nonlocal heard
        heard += 1

    async def room() -> None:
        if heard > 1000:
            blocked.set()
            await gate.wait()

    life = Life("floods", PATIENT, handle=handle, room=room)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.run)
            await blocked.wait()
            assert isinstance(life.spawner, OneFault)
            assert life.spawner.process is not None
            # The worker can't be done: what it still has to send is more than the channel takes.
            assert heard < raw_worker.FLOOD / 2
            assert not ended_within(life.spawner.process.pid, 0.0)
            gate.set()
    assert heard == raw_worker.FLOOD


# -- cancelling -------------------------------------------------------------------------------------------------------


async def test_a_worker_that_has_not_greeted_is_killed_at_once_by_a_cancel() -> None:
    life = Life("never_greets", PATIENT)
    assert isinstance(life.spawner, OneFault)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(life.run)
        await life.spawner.started.wait()
        life.worker.cancel("enough")
    assert life.end.cause is None
    assert life.end.status is not None
    assert life.end.status.signal == 9


async def test_a_worker_that_does_not_obey_a_cancel_is_killed_after_its_grace() -> None:
    told = trio.Event()
    life = Life("is_deaf", WorkerTimes(grace=0.2, silence=30, terminate=30), handle=lambda _frame: told.set())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(life.run)
        await told.wait()
        life.worker.cancel("enough")
    assert life.end.cause is None
    assert life.end.finished is None


async def test_a_second_signal_kills_without_any_grace() -> None:
    told = trio.Event()
    life = Life("is_deaf", PATIENT, handle=lambda _frame: told.set())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(life.run)
        await told.wait()
        life.worker.cancel("enough")
        life.worker.kill()
    assert life.end.finished is None


# -- no worker --------------------------------------------------------------------------------------------------------


class NoProcesses:
    """A system that has no process left."""

    async def spawn(self, kind: str) -> WorkerProcess:
        raise BlockingIOError(11, f"no process for a worker of kind {kind}")

    async def run(self) -> None:
        await trio.sleep_forever()

    def close(self) -> None:
        pass


async def test_a_worker_that_can_not_be_started_is_told_with_the_systems_words() -> None:
    life = Life("", spawner=NoProcesses())
    end = await life.run()
    assert (end.cause, end.status) == ("spawn_failed", None)
    assert "no process for a worker of kind agent" in end.detail
    assert life.worker.pid is None
