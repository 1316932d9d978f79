from __future__ import annotations

from typing import get_args

import pytest

from protocol.agent_spec import Trust
from protocol.content import ToolCall
from protocol.tool_names import ToolEffect
from workers.core.permission import command_denial, denial

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


def denied(arguments: str) -> str | None:
    return command_denial("auto", ToolCall(id="1", name="Bash", arguments=arguments), "/p")


def test_a_denied_command_is_told_why_what_to_do_and_that_this_is_advice() -> None:
    reason = denied('{"command":"make && git push"}')
    assert reason is not None
    assert reason.startswith("denied: it calls git push. ")
    assert "trust mode auto" in reason
    assert "no boundary" in reason


@pytest.mark.parametrize("arguments", ['{"command":"git pull"}', "{}", '{"command":[1]}', "[]", "{", "\ud800"])
def test_what_is_no_harm_and_what_is_no_command_is_left_to_the_tool(arguments: str) -> None:
    assert denied(arguments) is None
