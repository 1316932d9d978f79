from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
import trio.testing

from protocol.records import Info, Record
from supervisor.admission import Admission, available_memory
from supervisor.core.admission import MemoryLimits
from supervisor.core.tagger import Tagger
from supervisor.hub import Hub
from supervisor.sinks.sink import Event

MIB = 1 << 20


class Kept:
    """A sink that keeps what it takes."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._changed = trio.Event()

    def take(self, event: Event) -> None:
        self.records.append(event.record)
        self._changed.set()
        self._changed = trio.Event()

    async def first(self, kind: type[Record]) -> Record:
        """The first record of its kind, as soon as it is there."""
        while True:
            for record in self.records:
                if isinstance(record, kind):
                    return record
            await self._changed.wait()

    async def room(self) -> None:
        pass

    def release(self) -> None:
        pass

    async def finish(self) -> None:
        pass


def admission(sink: Kept, usage: Iterator[tuple[int, int]], tree: int | None = 100 * MIB) -> Admission:
    """Of a run whose agents use, each time somebody looks, what ``usage`` says next."""
    tagger = Tagger("session")
    tagger.know_agent("new", "call", "task")
    return Admission(MemoryLimits(free=1, tree=tree), Hub(tagger, [sink]), lambda: next(usage))


async def test_an_agent_starts_at_once_where_there_is_memory(autojump_clock: trio.testing.MockClock) -> None:
    sink = Kept()
    await admission(sink, iter([(50 * MIB, 1)])).wait_for_memory("new", lambda: False)
    assert trio.current_time() == 0
    assert sink.records == []


async def test_an_agent_waits_until_others_have_given_memory_back_and_says_so_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sink = Kept()
    usage = iter([(200 * MIB, 2), (150 * MIB, 2), (120 * MIB, 1), (10 * MIB, 1)])
    await admission(sink, usage).wait_for_memory("new", lambda: False)
    assert trio.current_time() > 0
    assert sink.records == [Info(message="waiting for memory: the agents use 200 MiB, the run's ceiling is 100 MiB")]
    assert list(usage) == []


async def test_an_agent_that_need_not_start_any_more_waits_no_longer(autojump_clock: trio.testing.MockClock) -> None:
    looks = 0

    def is_cancelled() -> bool:
        nonlocal looks
        looks += 1
        return looks > 3

    always = iter([(200 * MIB, 2)] * 100)
    with trio.fail_after(10):
        await admission(Kept(), always).wait_for_memory("new", is_cancelled)


async def test_what_is_left_starts_when_all_others_have_ended(autojump_clock: trio.testing.MockClock) -> None:
    usage = iter([(200 * MIB, 1), (200 * MIB, 0)])
    with trio.fail_after(10):
        await admission(Kept(), usage).wait_for_memory("new", lambda: False)
    assert list(usage) == []


def test_the_memory_of_the_machine_is_a_number_of_bytes() -> None:
    available = available_memory()
    if available is None:
        pytest.skip("this system does not tell")
    assert MIB < available < 1 << 50
