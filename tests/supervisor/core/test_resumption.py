from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.content import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from supervisor.core.resumption import plan_resumption, unanswered, unfinished_result


def call(call_id: str, name: str = "Bash") -> ToolCall:
    return ToolCall(id=call_id, name=name)


def result(call_id: str, output: str = "ok") -> ToolResult:
    return ToolResult(call_id=call_id, name="Bash", outcome="success", output=output)


def history(*calls: ToolCall, results: tuple[ToolResult, ...] = ()) -> tuple[Message, ...]:
    return (UserMessage(text="go"), AssistantMessage(tool_calls=calls), *results)


def test_an_open_call_becomes_interrupted_and_is_told_to_client_and_worker() -> None:
    plan = plan_resumption(history(call("a")), {}, [call("a")], {})
    assert [(each.call_id, each.outcome) for each in plan.results] == [("a", "interrupted")]
    assert plan.ended == plan.results
    assert plan.opened == ()


def test_a_call_that_the_client_never_saw_begin_is_opened_before_it_is_ended() -> None:
    plan = plan_resumption(history(call("a"), call("b")), {}, [call("a")], {})
    assert [each.id for each in plan.opened] == ["b"]
    assert [each.call_id for each in plan.ended] == ["a", "b"]


def test_a_call_that_is_not_stored_is_ended_for_the_client_alone() -> None:
    """As an external agent's is, which is stored once it has ended."""
    plan = plan_resumption(history(), {}, [call("a")], {})
    assert [(each.call_id, each.outcome) for each in plan.ended] == [("a", "interrupted")]
    assert (plan.results, plan.opened) == ((), ())


def test_a_result_that_was_on_the_wire_is_given_to_the_worker_and_not_told_again() -> None:
    plan = plan_resumption(history(call("a"), call("b")), {"a": result("a", "done")}, [call("b")], {})
    assert plan.results[0].output == "done"
    assert [each.call_id for each in plan.ended] == ["b"]


def test_a_sub_agent_that_goes_on_is_waited_for_and_not_interrupted() -> None:
    plan = plan_resumption(history(call("a", "InvokeAgent")), {}, [call("a", "InvokeAgent")], {"a": 4})
    assert plan.delegations == {"a": 4}
    assert (plan.results, plan.ended, plan.opened) == ((), (), ())


def test_a_sub_agent_whose_result_the_client_has_is_not_waited_for() -> None:
    known = {"a": ToolResult(call_id="a", name="InvokeAgent", outcome="success", output="found")}
    plan = plan_resumption(history(call("a", "InvokeAgent")), known, [], {"a": 4})
    assert plan.delegations == {}
    assert plan.results == (known["a"],)


def test_only_the_last_reply_can_have_open_calls() -> None:
    earlier: tuple[Message, ...] = (*history(call("a")), AssistantMessage(text="done"))
    assert unanswered(earlier) == ()
    assert unanswered((*earlier, UserMessage(text="more"))) == ()
    assert unanswered(()) == ()
    assert unanswered(history(call("a"), call("b"), results=(result("a"),))) == (call("b"),)


def test_the_result_of_an_unfinished_call_says_that_it_may_have_run_in_part() -> None:
    ended = unfinished_result(call("a"), "cancelled")
    assert (ended.call_id, ended.name, ended.outcome) == ("a", "Bash", "cancelled")
    assert "in part" in ended.output


@given(st.data())
def test_every_open_call_is_answered_or_waited_for_exactly_once(data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True))
    calls = [call(each) for each in ids]
    subsets = st.sets(st.sampled_from(ids))
    known = {each: result(each) for each in data.draw(subsets)}
    delegations = {each: number for number, each in enumerate(data.draw(subsets), 1)}
    begun = [call(each) for each in ids if each in data.draw(subsets) and each not in known]
    plan = plan_resumption(history(*calls), known, begun, delegations)
    assert sorted([*(each.call_id for each in plan.results), *plan.delegations]) == sorted(ids)
    assert {each.call_id for each in plan.ended} == set(ids) - set(known) - set(delegations)
    assert {each.id for each in plan.opened} <= {each.call_id for each in plan.ended}
