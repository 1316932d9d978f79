"""Which run and which agent is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.live.choice import choose_agent, choose_run
from supervisor.live.errors import Ambiguous, NotFound
from supervisor.live.folder import LiveSocket
from tests.supervisor.live.staged_run import MAIN, StagedRun, agent

RUNS = [
    LiveSocket(path=Path("/x"), session_id=session_id, pid=pid)
    for session_id, pid in [("20250101-10", 77), ("20250101-100", 20), ("20250202-10", 3000), ("30", 4)]
]


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("20250101-10", 0),  # whole, though another begins so
        ("20250101-100", 1),
        ("202502", 2),
        ("77", 0),
        ("4", 3),
        ("3", 3),
        ("30", 3),
        ("3000", 2),
    ],
)
def test_a_run_is_chosen_by_id_pid_or_unique_beginning(words: str, chosen: int) -> None:
    assert choose_run(words, RUNS) is RUNS[chosen]


@pytest.mark.parametrize("words", ["20", "2025"])
def test_words_that_fit_several_runs_are_refused_with_their_names(words: str) -> None:
    # "20" is a pid and the beginning of session ids: nobody can tell which was meant.
    with pytest.raises(Ambiguous, match=r"20250101-10 \(pid 77\)") as caught:
        choose_run(words, RUNS)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("words", ["", "99", "x", "20250101-1000"])
def test_words_that_fit_no_run_are_not_found(words: str) -> None:
    with pytest.raises(NotFound, match="corral ps") as caught:
        choose_run(words, RUNS)
    assert caught.value.exit_code == 3


FAMILY = StagedRun(
    MAIN,
    agent("task-1-1", state="ended", outcome="complete"),
    agent("task-1-10"),
    agent("explore-1-2", name="explore"),
    agent("plan-1-3", name="plan", state="ended", outcome="error"),
).snapshot()


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("task-1-1", "task-1-1"),
        ("task-1-10", "task-1-10"),
        ("task", "task-1-10"),  # the other has ended
        ("explore", "explore-1-2"),
        ("exp", "explore-1-2"),
        ("plan", "plan-1-3"),
        ("main", "main"),
    ],
)
def test_an_agent_is_chosen_by_id_name_or_unique_beginning_live_ones_first(words: str, chosen: str) -> None:
    assert choose_agent(words, FAMILY).agent_id == chosen


def test_many_agents_that_fit_are_not_all_named() -> None:
    many = StagedRun(MAIN, *(agent(f"task-1-{number}") for number in range(1, 21))).snapshot()
    with pytest.raises(Ambiguous, match=r"'task' fits 20 agents: task-1-1, .* and 15 more"):
        choose_agent("task", many)
