from __future__ import annotations

import pytest
import trio
import trio.testing

from protocol.frames import ChildResult, SpawnRequest
from protocol.records import AgentOutcome
from workers.delegations import Delegations


def test_each_request_has_a_number_of_its_own() -> None:
    sent: list[SpawnRequest] = []
    delegations = Delegations(sent.append)
    assert [delegations.ask("a", "task", "one"), delegations.ask("b", "task", "two")] == [1, 2]
    assert [(each.request, each.call_id, each.prompt) for each in sent] == [(1, "a", "one"), (2, "b", "two")]


def test_a_restarted_worker_uses_no_number_of_the_one_before_it() -> None:
    sent: list[SpawnRequest] = []
    assert Delegations(sent.append, last_request=7).ask("a", "task", "more") == 8


def test_a_prompt_with_a_lone_surrogate_can_be_sent() -> None:
    sent: list[SpawnRequest] = []
    Delegations(sent.append).ask("a", "task", "odd \udc80 text")
    assert sent[0].prompt == "odd � text"


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [("complete", "success"), ("error", "error"), ("crashed", "error"), ("cancelled", "cancelled"), ("limit", "error")],
)
async def test_only_a_complete_sub_agent_is_a_success(outcome: AgentOutcome, expected: str) -> None:
    delegations = Delegations(lambda _request: None)
    delegations.take(ChildResult(request=1, outcome=outcome, text="found"))
    output = await delegations.result(1)
    assert (output.output, output.outcome) == ("found", expected)


async def test_a_result_reaches_who_waits_whether_it_comes_before_or_after_the_waiting() -> None:
    delegations = Delegations(lambda _request: None)
    delegations.take(ChildResult(request=2, outcome="complete", text="early"))
    found: dict[int, str] = {}

    async def wait(request: int) -> None:
        found[request] = (await delegations.result(request)).output

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, 1)
            nursery.start_soon(wait, 2)
            await trio.testing.wait_all_tasks_blocked()
            assert found == {2: "early"}
            delegations.take(ChildResult(request=1, outcome="complete", text="late"))
    assert found == {1: "late", 2: "early"}
