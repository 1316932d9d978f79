from __future__ import annotations

import pytest

from supervisor.core.admission import MemoryLimits, shortage

MIB = 1 << 20


def test_there_is_room_while_the_machine_keeps_what_is_to_stay_free() -> None:
    limits = MemoryLimits(free=512 * MIB)
    assert shortage(limits, 512 * MIB, 0, 5) is None
    assert shortage(limits, 511 * MIB, 0, 5) == "511 MiB of memory are free, 512 MiB are to stay free"


def test_a_run_has_a_ceiling_of_its_own() -> None:
    limits = MemoryLimits(tree=100 * MIB)
    assert shortage(limits, None, 99 * MIB, 5) is None
    assert shortage(limits, None, 100 * MIB, 5) == "the agents use 100 MiB, the run's ceiling is 100 MiB"


@pytest.mark.parametrize("limits", [MemoryLimits(), MemoryLimits(tree=1)])
def test_the_only_agent_never_waits_however_short_the_memory_is(limits: MemoryLimits) -> None:
    assert shortage(limits, 0, 10 * MIB, 0) is None


def test_a_system_that_does_not_tell_its_memory_makes_nobody_wait() -> None:
    assert shortage(MemoryLimits(free=1 << 50), None, 0, 5) is None
