from __future__ import annotations

from typing import get_args

import pytest

from protocol.agent_spec import Trust
from protocol.tool_names import ToolEffect
from workers.core.permission import denial

CHANGES: tuple[ToolEffect, ...] = ("write", "execute")


@pytest.mark.parametrize("trust", get_args(Trust))
def test_reading_and_delegating_are_never_denied(trust: Trust) -> None:
    assert denial(trust, "read") is denial(trust, "delegate") is None


def test_auto_denies_no_kind_of_call() -> None:
    assert [denial("auto", effect) for effect in get_args(ToolEffect)] == [None] * len(get_args(ToolEffect))


@pytest.mark.parametrize("trust", ["plan", "safe"])
@pytest.mark.parametrize("effect", CHANGES)
def test_the_narrower_modes_deny_every_change_and_name_themselves(trust: Trust, effect: ToolEffect) -> None:
    reason = denial(trust, effect)
    assert reason is not None
    assert reason.startswith("denied: ")
    assert f"trust mode {trust}" in reason
