from __future__ import annotations

from dataclasses import replace

import msgspec

from protocol.codec import encode_frame_body, upward_decoder
from protocol.content import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from protocol.records import TodoItem, TodoUpdate
from tests.workers.tools.project import Project
from workers.tools.todo_write import MOST_CHARACTERS, MOST_ITEMS, todos_of

LIST = [
    {"content": "look", "status": "completed", "priority": "high"},
    {"content": "mend", "status": "in_progress"},
    {"content": "test"},
]
ITEMS = (
    TodoItem(content="look", status="completed", priority="high"),
    TodoItem(content="mend", status="in_progress", priority="medium"),
    TodoItem(content="test", status="pending", priority="medium"),
)


def said(items: object, outcome: str = "success", call_id: str = "1", name: str = "TodoWrite") -> list[Message]:
    call = ToolCall(id=call_id, name=name, arguments=msgspec.json.encode({"items": items}).decode())
    result = msgspec.convert(
        {"type": "tool", "call_id": call_id, "name": name, "outcome": outcome, "output": ""}, ToolResult
    )
    return [AssistantMessage(tool_calls=(call,)), result]


async def test_the_list_goes_out_as_a_record_and_is_counted(project: Project) -> None:
    records: list[TodoUpdate] = []
    project.context = replace(project.context, emit=records.append)
    text = await project.text("TodoWrite", items=LIST)
    assert text == "The list is kept: 1 completed, 1 in_progress, 1 pending."
    assert records == [TodoUpdate(items=ITEMS)]
    assert upward_decoder.decode(encode_frame_body(records[0])) == records[0]


async def test_a_list_as_text_is_taken_too(project: Project) -> None:
    assert "1 completed" in await project.text("TodoWrite", items=msgspec.json.encode(LIST).decode())


async def test_a_list_without_end_is_refused(project: Project) -> None:
    for items in ([{"content": "x"}] * (MOST_ITEMS + 1), [{"content": "x" * (MOST_CHARACTERS + 1)}]):
        assert "at most" in await project.refusal("TodoWrite", items=items)
    assert "`items[0].status`" in await project.refusal("TodoWrite", items=[{"content": "x", "status": "later"}])


def test_the_list_is_found_again_in_the_transcript() -> None:
    assert todos_of([]) == todos_of([UserMessage(text="hello"), *said(LIST, name="Other")]) == ()
    assert todos_of([*said([{"content": "old"}]), UserMessage(text="go on"), *said(LIST)]) == ITEMS
    assert todos_of(said(msgspec.json.encode(LIST).decode())) == ITEMS


def test_a_call_that_failed_or_never_ended_changes_nothing() -> None:
    before = said(LIST)
    assert todos_of([*before, *said([{"content": "new"}], outcome="interrupted")]) == ITEMS
    assert todos_of([*before, *said("no list", outcome="error")]) == ITEMS
    assert todos_of([*before, *said([])[:1]]) == ITEMS
    assert todos_of([*before, *said([])]) == ()
