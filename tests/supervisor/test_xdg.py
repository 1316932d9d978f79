"""Where a person's files are."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.xdg import config_folder, state_folder


def test_the_variables_are_honoured() -> None:
    environ = {"HOME": "/h", "XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s"}
    assert (config_folder(environ), state_folder(environ)) == (Path("/c/corral"), Path("/s/corral"))


@pytest.mark.parametrize("value", ["", "relative", "./x", "~/x"])
def test_a_relative_value_is_ignored(value: str) -> None:
    environ = {"HOME": "/h", "XDG_CONFIG_HOME": value, "XDG_STATE_HOME": value}
    assert config_folder(environ) == Path("/h/.config/corral")
    assert state_folder(environ) == Path("/h/.local/state/corral")


def test_without_a_home_the_account_s_is_taken() -> None:
    assert state_folder({}).is_absolute()
