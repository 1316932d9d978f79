"""Nobody is left behind, whichever way a run ends: the matrix of ends, of what the worker does, and of who runs it.

See `tests.faults.ends`. Each combination has tools of every kind. Twenty trials of each are a soak, in which the kills
of one end are ever further apart; a few combinations are tried once in every run of the tests.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from tests.faults.ends import (
    KILLS,
    KILLS_OF_FRESH,
    LONGEST_GAP,
    ORDERLY,
    TERM,
    End,
    Spawn,
    State,
    Trial,
    answers,
    carry_out,
)
from tests.stubs.model_server import ModelServer
from tests.stubs.ordinary_user import prefix_of_nobody

TRIALS = 20
USERS = [False, True] if os.geteuid() == 0 else [False]
STATES: tuple[State, ...] = ("waits", "stuck")
SPAWNS: tuple[Spawn, ...] = ("fork", "fresh")
OTHER_STATES: tuple[State, ...] = ("stop", "loop")
"""Ways not to react that differ from being stuck only where nobody is there to see it."""

MATRIX = [
    Trial(end=end, state=state, spawn=spawn, is_ordinary=is_ordinary)
    for is_ordinary in USERS
    for spawn in SPAWNS
    for end in (*ORDERLY, *(KILLS if spawn == "fork" else KILLS_OF_FRESH))
    for state in STATES
] + [
    Trial(end=end, state=state, is_ordinary=is_ordinary)
    for is_ordinary in USERS
    for end in KILLS
    for state in OTHER_STATES
    if "supervisor" in end.victims and "worker" not in end.victims
]
FEW = [
    Trial(end=End(("supervisor",)), state="stuck", spawn="fresh"),
    Trial(end=End(("supervisor",), (TERM,))),
    Trial(end=End(("worker", "fork server", "supervisor")), state="stop"),
    Trial(end=End(("supervisor", "fork server")), state="stuck", is_ordinary=USERS[-1]),
    Trial(end=End(("supervisor",)), is_ordinary=USERS[-1]),
    Trial(end=End(signals=(TERM,)), state="stuck", is_ordinary=USERS[-1]),
    Trial(end=End(), is_ordinary=USERS[-1]),
]


@pytest.fixture(scope="module")
def server() -> Generator[ModelServer, None, None]:
    with ModelServer(answers()) as server:
        yield server


@pytest.fixture(scope="module")
def nobody() -> Generator[tuple[str, ...], None, None]:
    """The prefix of a command that an ordinary user is to run."""
    if os.geteuid() != 0:
        yield ()
        return
    with prefix_of_nobody() as prefix:
        yield prefix


@pytest.fixture
def prefix(trial: Trial, request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.getfixturevalue("nobody") if trial.is_ordinary else ()
    return found


@pytest.mark.parametrize("trial", FEW, ids=str)
def test_nothing_is_left_of_a_run_at_its_end(trial: Trial, server: ModelServer, prefix: tuple[str, ...]) -> None:
    carry_out(trial, server, prefix, gap=0)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(TRIALS))
@pytest.mark.parametrize("trial", MATRIX, ids=str)
def test_nothing_is_left_in_twenty_of_twenty_trials(
    trial: Trial, server: ModelServer, prefix: tuple[str, ...], number: int
) -> None:
    carry_out(trial, server, prefix, gap=LONGEST_GAP * number / TRIALS)
