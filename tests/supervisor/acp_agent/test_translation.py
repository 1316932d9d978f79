"""Records as updates: what a client is shown of a run, without any run."""

from __future__ import annotations

import msgspec
import pytest

from protocol.content import AssistantMessage, Message, Outcome, Summary, ToolCall, ToolResult, UserMessage
from protocol.records import (
    AgentCrashed,
    Compaction,
    ContextUsage,
    Error,
    Record,
    Retry,
    SubAgentStart,
    TextDelta,
    ThinkingDelta,
    TodoItem,
    TodoUpdate,
    ToolCallResult,
    ToolCallStart,
    ToolOutputLine,
    TurnStart,
    Warn,
)
from supervisor.acp_agent.core import updates as shown_as
from supervisor.acp_agent.core.translation import KEPT_OUTPUT, Features, Translator
from supervisor.acp_agent.core.updates import Text, Update

ALL = Features(notices=True, compaction=True)


def started(call_id: str = "c", name: str = "Bash", **arguments: object) -> ToolCallStart:
    return ToolCallStart(id=call_id, name=name, args=msgspec.Raw(msgspec.json.encode(arguments)))


def ended(call_id: str = "c", outcome: Outcome = "success", output: str = "out", name: str = "Bash") -> ToolCallResult:
    return ToolCallResult(id=call_id, outcome=outcome, name=name, output=output, elapsed_ms=1)


def translator(features: Features = ALL) -> Translator:
    made = Translator("/project", 3, features)
    made.begin_turn()
    return made


def updates(made: Translator, *records: Record, agent: str = "main") -> list[Update]:
    return [update for record in records for update in made.translate(record, agent)]


def shown(text: str) -> tuple[shown_as.Content, ...]:
    return (shown_as.Content(content=Text(text=text)),)


def kind_of(update: Update) -> object:
    return msgspec.json.decode(msgspec.json.encode(update), type=dict[str, object])["sessionUpdate"]


def message_ids(found: list[Update]) -> list[str]:
    return [update.message_id for update in found if isinstance(update, shown_as.Chunk)]


# -- messages ---------------------------------------------------------------------------------------------------------


def test_pieces_of_one_reply_are_one_message_and_a_call_begins_another() -> None:
    made = translator()
    found = updates(made, TextDelta(text="a"), TextDelta(text="b"), started(), ended(), TextDelta(text="c"))
    first, second, third = message_ids(found)
    assert first == second != third


def test_reasoning_is_a_message_of_its_own() -> None:
    found = updates(translator(), ThinkingDelta(text="hm"), TextDelta(text="a"), ThinkingDelta(text="hm"))
    assert [type(update) for update in found] == [
        shown_as.AgentThoughtChunk,
        shown_as.AgentMessageChunk,
        shown_as.AgentThoughtChunk,
    ]
    assert len(set(message_ids(found))) == 3


def test_a_retry_ends_the_message_whose_text_went_void() -> None:
    retry = Retry(reason="stream_failed", attempt=1, max_attempts=5, delay_ms=10)
    found = updates(translator(), TextDelta(text="Hel"), retry, TextDelta(text="Hello"))
    texts = [update for update in found if isinstance(update, shown_as.AgentMessageChunk)]
    assert texts[0].message_id != texts[1].message_id
    assert any(isinstance(update, shown_as.Notice) and update.severity == "warning" for update in found)


def test_what_is_no_news_for_a_client_is_no_update() -> None:
    assert updates(translator(), TurnStart(), TextDelta(text="")) == []


def test_a_client_without_notices_is_told_in_a_thought() -> None:
    (update,) = updates(translator(Features()), Warn(message="careful"))
    assert isinstance(update, shown_as.AgentThoughtChunk) and update.content.text == "careful"


def test_notices_have_the_severity_of_their_record() -> None:
    found = updates(
        translator(), Error(message="x"), AgentCrashed(agent_name="main", agent_id="main", cause="signal", restart=1)
    )
    assert [update.severity for update in found if isinstance(update, shown_as.Notice)] == ["error", "warning"]


def test_compactions_are_told_to_those_who_take_them() -> None:
    records = [
        Compaction(trigger="threshold", status="started"),
        Compaction(trigger="threshold", status="completed"),
        Compaction(trigger="threshold", status="started"),
        Compaction(trigger="threshold", status="skipped"),
    ]
    assert updates(translator(Features()), *records) == []
    found = [update for update in updates(translator(), *records) if isinstance(update, shown_as.CompactionUpdate)]
    assert [update.status for update in found] == ["in_progress", "completed", "in_progress", "cancelled"]
    assert found[0].compaction_id == found[1].compaction_id != found[2].compaction_id == found[3].compaction_id


def test_the_list_of_things_to_do_is_the_plan_and_context_is_usage() -> None:
    item = TodoItem(content="mend it", status="in_progress", priority="high")
    plan, usage = updates(translator(), TodoUpdate(items=(item,)), ContextUsage(used=5, max=9))
    assert plan == shown_as.Plan(
        entries=(shown_as.PlanEntry(content="mend it", status="in_progress", priority="high"),)
    )
    assert usage == shown_as.UsageUpdate(used=5, size=9)


# -- calls ------------------------------------------------------------------------------------------------------------


def test_an_id_that_a_model_uses_again_is_another_call() -> None:
    made = translator()
    found = updates(made, started(), ended(), started(), ended())
    ids = [update.tool_call_id for update in found if isinstance(update, shown_as.ToolCall | shown_as.ToolCallUpdate)]
    assert ids[0] == ids[1] != ids[2] == ids[3]


@pytest.mark.parametrize("outcome", ["error", "denied", "cancelled", "interrupted"])
def test_all_but_success_is_a_failed_call_with_its_output(outcome: Outcome) -> None:
    made = translator()
    change = started(name="Write", file_path="a", content="x")
    _, end = updates(made, change, ended(outcome=outcome, output="why"))
    assert end == shown_as.ToolCallUpdate(tool_call_id="call-3-1", status="failed", content=shown("why"))


def test_a_change_that_was_made_keeps_showing_itself() -> None:
    made = translator()
    begin, end = updates(made, started(name="Write", file_path="a", content="x"), ended())
    assert isinstance(begin, shown_as.ToolCall)
    assert begin.content == (shown_as.Diff(path="/project/a", new_text="x"),)
    assert end == shown_as.ToolCallUpdate(tool_call_id="call-3-1", status="completed")


def test_live_output_is_shown_when_asked_for_and_only_what_is_new() -> None:
    made = translator()
    lines = [ToolOutputLine(id="c", line=text, is_stderr=False) for text in ("one", "two")]
    assert updates(made, started(), *lines)[1:] == []
    assert made.live_output() == [shown_as.ToolCallUpdate(tool_call_id="call-3-1", content=shown("one\ntwo\n"))]
    assert made.live_output() == []
    updates(made, lines[0], ended())
    assert made.live_output() == []


def test_live_output_is_bounded_and_keeps_the_newest() -> None:
    made = translator()
    updates(made, started(), *(ToolOutputLine(id="c", line=f"{n} {'x' * 100}", is_stderr=False) for n in range(1000)))
    (update,) = made.live_output()
    assert isinstance(update, shown_as.ToolCallUpdate) and update.content is not None
    (block,) = update.content
    assert isinstance(block, shown_as.Content)
    assert len(block.content.text) == KEPT_OUTPUT and "\n999 " in block.content.text


def test_a_question_shows_the_call_until_it_has_ended() -> None:
    made = translator()
    updates(made, started(name="Write", file_path="a", content="x"))
    question = made.question("main", "c")
    assert question is not None
    assert (question.tool_call_id, question.title, question.status) == ("call-3-1", "Write a", "pending")
    updates(made, ended())
    assert made.question("main", "c") is None


# -- sub-agents -------------------------------------------------------------------------------------------------------


def delegated() -> Translator:
    made = translator()
    updates(made, started("d", "InvokeAgent", agent_name="explore", prompt="look"))
    made.know_sub_agent("explore-1", "main", "d")
    return made


def test_a_sub_agent_is_the_call_that_started_it_and_its_text_is_that_calls_content() -> None:
    made = delegated()
    start = SubAgentStart(agent_name="explore", agent_id="explore-1", prompt="look")
    assert updates(made, start, agent="explore-1") == [
        shown_as.ToolCallUpdate(tool_call_id="call-3-1", title="explore-1: look")
    ]
    assert updates(made, TextDelta(text="I see"), ThinkingDelta(text="hm"), agent="explore-1") == []
    assert made.live_output() == [shown_as.ToolCallUpdate(tool_call_id="call-3-1", content=shown("I see"))]


def test_a_sub_agents_calls_bear_its_name_and_do_not_meet_its_parents() -> None:
    made = delegated()
    (read,) = updates(made, started("d", "Read", file_path="a"), agent="explore-1")
    assert isinstance(read, shown_as.ToolCall) and read.title == "explore-1: Read a"
    (end,) = updates(made, ended("d"), agent="explore-1")
    assert isinstance(end, shown_as.ToolCallUpdate) and end.tool_call_id == read.tool_call_id
    assert made.question("main", "d") is not None


def test_a_sub_agents_list_context_and_troubles_are_not_the_main_agents() -> None:
    records = [TodoUpdate(items=()), ContextUsage(used=1, max=2), Warn(message="x"), Error(message="x")]
    assert updates(delegated(), *records, agent="explore-1") == []


# -- a stored transcript ----------------------------------------------------------------------------------------------


def test_a_transcript_is_replayed_in_its_order() -> None:
    todo = '{"items":[{"content":"a"}]}'
    transcript: list[Message] = [
        UserMessage(text="do it"),
        AssistantMessage(
            text="Well.", reasoning="hm", tool_calls=(ToolCall(id="1", name="TodoWrite", arguments=todo),)
        ),
        ToolResult(call_id="1", name="TodoWrite", outcome="success", output="kept"),
        Summary(text="so far", replaces=2),
        AssistantMessage(text="Done."),
    ]
    found = translator().replay(transcript)
    assert [kind_of(update) for update in found] == [
        "user_message_chunk",
        "agent_thought_chunk",
        "agent_message_chunk",
        "tool_call",
        "plan",
        "tool_call_update",
        "agent_message_chunk",
    ]
    assert len(set(message_ids(found))) == 4


def test_arguments_that_a_model_garbled_are_replayed_all_the_same() -> None:
    calls = (ToolCall(id="1", name="TodoWrite", arguments='{"items":3}'), ToolCall(id="2", name="Edit", arguments="{}"))
    found = translator().replay([AssistantMessage(tool_calls=calls)])
    assert [type(update) for update in found] == [shown_as.ToolCall, shown_as.ToolCall]
