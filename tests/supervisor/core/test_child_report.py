from __future__ import annotations

import pytest

from protocol.frames import Finished
from supervisor.core.child_report import child_report


def test_a_complete_child_is_told_by_its_reply_alone() -> None:
    assert child_report("explore", Finished(outcome="complete", response="Three files."), "earlier") == "Three files."


@pytest.mark.parametrize(
    ("ending", "report"),
    [
        (Finished(outcome="error", message="HTTP 400"), "The agent task failed: HTTP 400."),
        (Finished(outcome="cancelled", message="ended by SIGINT"), "The agent task was cancelled: ended by SIGINT."),
        (Finished(outcome="crashed", message="killed"), "The agent task crashed: killed."),
        (Finished(outcome="limit", message="the cap"), "The agent task reached a limit: the cap."),
        (Finished(outcome="error"), "The agent task failed."),
    ],
)
def test_every_other_end_says_what_happened_and_why(ending: Finished, report: str) -> None:
    assert child_report("task", ending) == report


def test_what_a_child_had_found_is_not_lost_with_it() -> None:
    crashed = Finished(outcome="crashed", message="killed")
    report = child_report("task", crashed, "The bug is in parse().")
    assert report == "The agent task crashed: killed.\nWhat it had said last:\nThe bug is in parse()."


def test_its_unfinished_response_is_newer_than_what_it_had_said_before() -> None:
    limit = Finished(outcome="limit", message="the cap", response="My report.")
    assert child_report("task", limit, "earlier").endswith("\nMy report.")
