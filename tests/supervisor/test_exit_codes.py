"""What a run exits with. The numbers are a contract with scripts: a change of one breaks them."""

from __future__ import annotations

from typing import TypeVar

import pytest

from protocol.frames import Finished
from supervisor import exit_codes
from supervisor.errors import SessionLocked, StorageFailed, StoreCorrupt, SupervisorError, WrongUsage
from workers.providers.provider import ProviderError, Retryable

Kind = TypeVar("Kind", bound=Exception)


def with_all_below(kind: type[Kind]) -> list[type[Kind]]:
    return [kind, *(found for below in kind.__subclasses__() for found in with_all_below(below))]


def test_the_numbers_are_those_of_the_contract() -> None:
    numbers = {name: value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert numbers == {
        "COMPLETE": 0,
        "ERROR": 1,
        "USAGE": 2,
        "LIMIT": 3,
        "SESSION_LOCKED": 4,
        "STORAGE": 5,
        "TRY_AGAIN_LATER": 75,
        "STDOUT_CLOSED": 141,
    }


@pytest.mark.parametrize(("number", "code"), [(1, 129), (2, 130), (15, 143)])
def test_an_end_by_signal_is_told_as_a_shell_tells_it(number: int, code: int) -> None:
    assert exit_codes.of_signal(number) == code


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (Finished(outcome="complete"), 0),
        (Finished(outcome="complete", code="storage_failed"), 0),
        (Finished(outcome="error"), 1),
        (Finished(outcome="error", code="loop_guard"), 1),
        (Finished(outcome="crashed", code="agent_crashed"), 1),
        (Finished(outcome="cancelled", code="cancelled"), 1),
        (Finished(outcome="cancelled", code="stdout_closed"), 141),
        (Finished(outcome="limit", code="max_turns"), 3),
        (Finished(outcome="limit", code="timeout"), 3),
        (Finished(outcome="error", code="storage_full"), 5),
    ],
)
def test_the_way_an_agent_ended_decides_the_code(ending: Finished, code: int) -> None:
    assert exit_codes.of_ending(ending) == code


@pytest.mark.parametrize("kind", with_all_below(StorageFailed))
def test_a_turn_that_storage_ended_exits_as_one_that_storage_kept_from_starting(kind: type[StorageFailed]) -> None:
    assert exit_codes.of_ending(Finished(outcome="error", code=kind.code)) == exit_codes.STORAGE == kind.exit_code


def test_a_full_disk_is_told_apart_and_exits_the_same() -> None:
    full = StorageFailed("no room is left", full=True)
    assert (full.code, exit_codes.of_ending(Finished(outcome="error", code=full.code))) == ("storage_full", 5)
    assert StoreCorrupt("damaged").code == "store_corrupt"


@pytest.mark.parametrize("kind", [kind for kind in with_all_below(ProviderError) if kind is not Retryable])
def test_what_was_retried_in_vain_may_be_tried_again_later_and_nothing_else(kind: type[ProviderError]) -> None:
    expected = exit_codes.TRY_AGAIN_LATER if issubclass(kind, Retryable) else exit_codes.ERROR
    assert exit_codes.of_ending(Finished(outcome="error", code=kind.code)) == expected


def test_what_keeps_a_run_from_starting_has_the_code_of_its_family() -> None:
    assert SupervisorError.exit_code == exit_codes.ERROR
    assert {kind.exit_code for kind in with_all_below(WrongUsage)} == {exit_codes.USAGE}
    assert SessionLocked.exit_code == exit_codes.SESSION_LOCKED
