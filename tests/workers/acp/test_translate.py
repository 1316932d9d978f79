from __future__ import annotations

import json
from typing import TypeAlias

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec import encode_frame_body, upward_decoder
from protocol.content import ToolCall
from protocol.frames import ToolCallOpened
from protocol.records import (
    ContextUsage,
    Info,
    TextDelta,
    ThinkingDelta,
    TodoItem,
    TodoUpdate,
    ToolCallResult,
    Warn,
)
from protocol.usage import Usage
from workers.acp.reported_call import LONGEST_HOLD
from workers.acp.translate import NO_END_TOLD, Translated, UpdateTranslator, usage_of

Update: TypeAlias = dict[str, object]


def text(content: object, kind: str = "agent_message_chunk") -> Update:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": content}}


def call(**fields: object) -> Update:
    return {"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "Read a.py", **fields}


def change(**fields: object) -> Update:
    return {"sessionUpdate": "tool_call_update", "toolCallId": "c1", **fields}


def translate(*updates: Update) -> list[Translated]:
    """One update a second."""
    translator = UpdateTranslator()
    return [record for now, update in enumerate(updates) for record in translator.take(update, float(now))]


def opened(arguments: object, name: str = "read", call_id: str = "c1") -> ToolCallOpened:
    return ToolCallOpened(call=ToolCall(id=call_id, name=name, arguments=json.dumps(arguments, separators=(",", ":"))))


def test_text_and_thoughts_are_deltas() -> None:
    assert translate(text("a"), text("b", "agent_thought_chunk"), text(""), text(None), text("c")) == [
        TextDelta(text="a"),
        ThinkingDelta(text="b"),
        TextDelta(text="c"),
    ]


def test_a_character_cut_in_two_is_put_together_and_a_lost_half_is_not_lost_silently() -> None:
    assert translate(text("a\ud83d"), text("\ude00b")) == [TextDelta(text="a"), TextDelta(text="\U0001f600b")]
    assert translate(text("\ud83d"), text("b", "agent_thought_chunk")) == [
        TextDelta(text="\ufffd"),
        ThinkingDelta(text="b"),
    ]


def test_what_is_no_text_is_told_of() -> None:
    blocks: list[Update] = [
        {"type": "image", "mimeType": "image/png", "data": "AAAA"},
        {"type": "resource_link", "name": "notes", "uri": "file:///notes"},
        {"type": "resource", "resource": {"uri": "file:///x", "text": "embedded"}},
        {"type": "resource", "resource": {"uri": "file:///x", "blob": "AAAA"}},
        {"type": "hologram"},
    ]
    updates: list[Update] = [{"sessionUpdate": "agent_message_chunk", "content": block} for block in blocks]
    assert translate(*updates) == [
        Info(message="[image: image/png]"),
        Info(message="[notes: file:///notes]"),
        Info(message="embedded"),
        Info(message="[resource: file:///x]"),
    ]


def test_a_call_is_told_once_with_its_arguments_and_closed_with_its_content() -> None:
    content = [
        {"type": "content", "content": {"type": "text", "text": "line one\n"}},
        {"type": "diff", "path": "a.py", "oldText": "x\ny", "newText": "z"},
        {"type": "diff", "path": "b.py", "oldText": None, "newText": "new"},
        {"type": "terminal", "terminalId": "t1"},
    ]
    records = translate(
        call(kind="edit", status="pending"),
        change(rawInput={"path": "a.py", "text": "\ud83d"}),
        change(status="in_progress", rawInput={}),
        change(rawInput={"ignored": "it was told already"}),
        change(status="completed", content=content, rawOutput="not shown"),
        change(status="failed"),
        change(content=[]),
    )
    output = "line one\n\n[changed: a.py]\n-x\n-y\n+z\n[new: b.py]\n+new\n[terminal: t1]"
    assert records == [
        ToolCallOpened(call=ToolCall(id="c1", name="edit", arguments='{"path":"a.py","text":"\ufffd"}')),
        ToolCallResult(id="c1", outcome="success", name="edit", output=output, elapsed_ms=4000),
    ]


@pytest.mark.parametrize(
    ("fields", "name", "arguments"),
    [
        ({"name": "Grep", "kind": "search"}, "Grep", {"title": "Read a.py"}),
        ({"kind": "execute", "rawInput": {"command": ["ls"]}}, "execute", {"command": ["ls"]}),
        ({"rawInput": "ls"}, "other", {"title": "Read a.py", "input": "ls"}),
        (
            {"kind": "read", "locations": [{"path": "/a.py", "line": 3}, {}, None]},
            "read",
            {"title": "Read a.py", "paths": ["/a.py"]},
        ),
        ({"kind": 7, "title": None, "locations": "?"}, "other", {}),
    ],
)  # fmt: skip
def test_a_call_has_the_name_and_the_arguments_that_are_known(fields: Update, name: str, arguments: Update) -> None:
    assert translate(call(**{"status": "in_progress", **fields})) == [opened(arguments, name)]


def test_a_call_that_is_over_at_once_is_opened_first() -> None:
    assert translate(change(status="failed", rawOutput={"error": "no"}, kind="fetch")) == [
        opened({}, "fetch"),
        ToolCallResult(id="c1", outcome="error", name="fetch", output='{"error": "no"}', elapsed_ms=0),
    ]


def test_a_call_is_held_back_until_it_runs_and_then_has_its_whole_input() -> None:
    """As opencode opens its calls."""
    whole = {"command": "ls", "cwd": "/x"}
    assert translate(call(status="pending", rawInput={"cwd": "/x"}, kind="execute", title="bash")) == []
    assert translate(
        call(status="pending", rawInput={"cwd": "/x"}, kind="execute", title="bash"),
        change(rawInput={}),
        {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "Hm."}},
        change(status="in_progress", rawInput=whole, title="ls"),
    ) == [ThinkingDelta(text="Hm."), opened(whole, "execute")]


def test_a_call_is_held_back_until_consent_is_asked_or_it_is_over() -> None:
    """As Gemini CLI and Claude Code open theirs."""
    translator = UpdateTranslator()
    assert translator.take(call(rawInput={}, kind="execute", title="Terminal"), 0) == []
    assert translator.take(call(rawInput={"command": "ls"}, title="`ls`"), 0) == []
    assert translator.permission_asked({"toolCallId": "c1"}, 0) == [opened({"command": "ls"}, "execute")]
    over = translate(call(rawInput={"command": "ls"}), change(status="completed"))
    assert [type(record).__name__ for record in over] == ["ToolCallOpened", "ToolCallResult"]


def test_text_that_goes_on_is_said_after_the_calls_that_are_held_back() -> None:
    """So that it is the reply even where an agent never says that a call ran or ended, as fast-agent of its shell."""
    translator = UpdateTranslator()
    assert translator.take(text("Look\ud83d"), 0) == [TextDelta(text="Look")]
    assert translator.take(call(title="bash"), 0) == []
    assert translator.take(text(""), 0) == []
    assert translator.take(text("\ude00 and \ud83d"), 0) == [
        opened({"title": "bash"}, "other"),
        TextDelta(text="\U0001f600 and "),
    ]
    assert translator.take(text("\ude00"), 0) == [TextDelta(text="\U0001f600")]
    assert [type(record).__name__ for record in translator.end_prompt(0)] == ["ToolCallResult"]


def test_a_call_keeps_the_name_that_it_was_opened_with() -> None:
    records = translate(
        call(status="in_progress", kind="execute", title="bash"),
        change(name="Shell", kind="other", title="ls"),
        change(status="completed", name="Again"),
    )
    assert records == [
        opened({"title": "bash"}, "execute"),
        ToolCallResult(id="c1", outcome="success", name="execute", output="", elapsed_ms=2000),
    ]


PREVIEW = [
    {"type": "content", "content": {"type": "text", "text": "Lists files"}},
    {"type": "diff", "path": "a.py", "oldText": None, "newText": "new"},
]


@pytest.mark.parametrize(
    ("ending", "output"),
    [
        ({"status": "completed", "rawOutput": "done"}, "[new: a.py]\n+new"),
        ({"status": "failed", "rawOutput": "no such file"}, "no such file"),
        ({"status": "failed"}, ""),
        ({"status": "completed", "content": []}, ""),
        ({"status": "completed"}, "Lists files\n[new: a.py]\n+new"),
    ],
)  # fmt: skip
def test_what_a_call_proposed_is_not_what_came_of_it_unless_it_is_a_change_that_was_made(
    ending: Update, output: str
) -> None:
    (_, result) = translate(call(status="pending", content=PREVIEW), change(**ending))
    assert isinstance(result, ToolCallResult) and result.output == output


def test_a_question_for_consent_to_a_call_that_runs_shows_no_output() -> None:
    translator = UpdateTranslator()
    translator.take(call(status="in_progress"), 0)
    translator.permission_asked({"toolCallId": "c1", "content": PREVIEW[:1]}, 0)
    (result,) = translator.take(change(status="completed", rawOutput=""), 0)
    assert isinstance(result, ToolCallResult) and result.output == ""


def test_an_id_may_be_used_again_by_a_new_call() -> None:
    records = translate(call(status="completed"), call(status="completed"))
    assert [type(record).__name__ for record in records] == ["ToolCallOpened", "ToolCallResult"] * 2


def test_a_call_that_is_asked_about_is_told_of_first_and_denied_when_it_fails() -> None:
    translator = UpdateTranslator()
    asked: Update = {"toolCallId": "c1", "title": "Delete all", "kind": "delete"}
    assert translator.permission_asked(asked, 0) == [opened({"title": "Delete all"}, "delete")]
    assert translator.permission_asked(asked, 0) == []
    assert translator.permission_asked({}, 0) == []
    translator.permission_denied(asked)
    translator.permission_denied({"toolCallId": "unknown"})
    assert translator.take(change(status="failed"), 1) == [
        ToolCallResult(id="c1", outcome="denied", name="delete", output="", elapsed_ms=1000)
    ]


def test_a_call_that_was_denied_is_over_with_its_prompt_where_the_agent_says_no_more_of_it() -> None:
    """As Gemini CLI, Qwen Code and Codex leave theirs."""
    translator = UpdateTranslator()
    translator.permission_asked({"toolCallId": "c1", "content": PREVIEW[:1]}, 0)
    translator.permission_denied({"toolCallId": "c1"})
    (result,) = translator.end_prompt(1)
    assert isinstance(result, ToolCallResult) and (result.outcome, result.output) == ("denied", "")


@pytest.mark.parametrize(("cancelled", "outcome"), [(True, "cancelled"), (False, "interrupted")])
def test_calls_that_are_open_at_the_end_of_the_prompt_are_closed(cancelled: bool, outcome: str) -> None:
    translator = UpdateTranslator()
    translator.take(call(status="in_progress", kind="read"), 0)
    translator.take({**call(), "toolCallId": "c2"}, 0)
    translator.take(text("\ud83d"), 0)
    records = translator.end_prompt(2, cancelled=cancelled)
    assert [type(record).__name__ for record in records] == [
        "TextDelta", "ToolCallResult", "ToolCallOpened", "ToolCallResult"
    ]  # fmt: skip
    results = [record for record in records if isinstance(record, ToolCallResult)]
    assert [(result.id, result.outcome, result.output) for result in results] == [
        ("c1", outcome, NO_END_TOLD),
        ("c2", outcome, NO_END_TOLD),
    ]
    assert translator.end_prompt(3) == []


def test_a_long_output_is_shortened_and_free_of_controls() -> None:
    (_, result) = translate(call(status="completed", rawOutput="\x1b[31m" + "x" * 100_000))
    assert isinstance(result, ToolCallResult)
    assert len(result.output) < 40_000
    assert "characters left out" in result.output
    assert "\x1b" not in result.output


def test_a_plan_is_the_list_of_what_is_to_be_done() -> None:
    entries = [
        {"content": "one", "status": "completed", "priority": "high"},
        {"content": "two", "status": "blocked", "priority": ["?"]},
        {"status": "pending"},
        None,
    ]
    assert translate({"sessionUpdate": "plan", "entries": entries}) == [
        TodoUpdate(
            items=(
                TodoItem(content="one", status="completed", priority="high"),
                TodoItem(content="two", status="pending", priority="medium"),
            )
        )
    ]


def test_the_use_of_the_context_is_told_where_it_can_be() -> None:
    translator = UpdateTranslator()
    told = translator.take({"sessionUpdate": "usage_update", "used": 5, "size": 100, "cost": {"amount": 1}}, 0)
    assert told == [ContextUsage(used=5, max=100)]
    for broken in (
        {"used": 2**64, "size": 1},
        {"used": True, "size": 1},
        {"used": 1, "size": 0},
        {"used": -1, "size": 9},
        {},
    ):
        assert translator.take({"sessionUpdate": "usage_update", **broken}, 0) == []


def test_notices_are_for_a_person() -> None:
    notice: Update = {"sessionUpdate": "notice", "title": "Slow", "description": "busy", "severity": "warning"}
    assert translate(notice, {**notice, "severity": "info", "description": None}, {"sessionUpdate": "notice"}) == [
        Warn(message="Slow: busy"),
        Info(message="Slow"),
    ]


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"inputTokens": 10, "outputTokens": 4, "totalTokens": 14}, (10, 4, 0, 0, 0)),
        (
            {
                "inputTokens": 10,
                "outputTokens": 4,
                "totalTokens": 20,
                "cachedReadTokens": 3,
                "cachedWriteTokens": 2,
                "thoughtTokens": 1,
            },
            (15, 5, 3, 2, 1),
        ),
        ({"inputTokens": 10, "outputTokens": 4, "totalTokens": 14, "cachedReadTokens": 3}, (10, 4, 3, 0, 0)),
        ({"inputTokens": 10, "outputTokens": 4, "thoughtTokens": None}, (10, 4, 0, 0, 0)),
    ],
)  # fmt: skip
def test_the_usage_of_a_prompt_counts_all_it_lists(usage: Update, counted: tuple[int, ...]) -> None:
    assert usage_of({"stopReason": "end_turn", "usage": usage}) == Usage(
        prompt_tokens=counted[0],
        completion_tokens=counted[1],
        cache_read_tokens=counted[2],
        cache_creation_tokens=counted[3],
        thinking_tokens=counted[4],
        api_calls=1,
    )


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"usage": None},
        {"usage": {"inputTokens": "10", "outputTokens": 1}},
        {"usage": {"inputTokens": 2**64, "outputTokens": 1}},
        {"_meta": {"quota": {"token_count": {"input_tokens": 1}}}},
    ],
)  # fmt: skip
def test_usage_that_is_not_reported_is_not_made_up(result: Update) -> None:
    assert usage_of(result) is None


def test_usage_that_stands_beside_the_protocol_is_counted_where_the_protocol_has_none() -> None:
    """As Gemini CLI and Qwen Code report it."""
    counts = {"input_tokens": 22, "output_tokens": 6}
    quota: Update = {"stopReason": "end_turn", "_meta": {"quota": {"token_count": counts}}}
    assert usage_of(quota) == Usage(prompt_tokens=22, completion_tokens=6, api_calls=1)
    translator = UpdateTranslator()
    used = {"inputTokens": 100, "outputTokens": 10, "totalTokens": 0, "thoughtTokens": 3, "cachedReadTokens": 7}
    translator.take({**text(""), "_meta": {"usage": used}}, 0)
    translator.take({**text(""), "_meta": {"usage": {"inputTokens": 1, "outputTokens": 2}}}, 0)
    assert translator.usage({"stopReason": "end_turn"}) == Usage(
        prompt_tokens=101, completion_tokens=12, cache_read_tokens=7, thinking_tokens=3, api_calls=2
    )
    assert translator.usage({}) is None
    translator.take({**text(""), "_meta": {"usage": used}}, 0)
    assert translator.usage(quota) == usage_of(quota)


MORE_FIELDS = ("title", "name", "kind", "rawInput", "rawOutput", "locations", "used", "size", "cost")
KINDS = (
    "agent_message_chunk",
    "agent_thought_chunk",
    "tool_call",
    "tool_call_update",
    "plan",
    "usage_update",
    "notice",
)
scalars: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None), max_size=3)
)
values: st.SearchStrategy[object] = (
    scalars
    | st.just(2**64)
    | st.lists(scalars, max_size=2)
    | st.dictionaries(st.sampled_from(("type", "text", "path")), scalars)
)
fields: st.SearchStrategy[Update] = st.fixed_dictionaries(
    {"sessionUpdate": st.sampled_from(KINDS)},
    optional={
        "toolCallId": st.sampled_from(["c1", "c2", "\ud83d", 1]),
        "status": st.sampled_from(["pending", "in_progress", "completed", "failed", None, 1]),
        "content": values | st.fixed_dictionaries({"type": st.just("text"), "text": values}),
        "entries": st.lists(st.fixed_dictionaries({"content": values, "status": values}), max_size=2),
        **dict.fromkeys(MORE_FIELDS, values),
    },
)


@settings(max_examples=40)
@given(st.lists(fields, max_size=10))
def test_whatever_an_agent_sends_becomes_frames_that_pair_up(updates: list[Update]) -> None:
    translator = UpdateTranslator()
    records = [record for update in updates for record in translator.take(update, 0.0)]
    records += translator.end_prompt(1.0)
    still_open: dict[str, str] = {}
    for record in records:
        decoded = upward_decoder.decode(encode_frame_body(record))
        assert decoded == record
        if isinstance(record, ToolCallOpened):
            assert isinstance(msgspec.json.decode(record.call.arguments), dict)
            assert record.call.id not in still_open
            still_open[record.call.id] = record.call.name
        elif isinstance(record, ToolCallResult):
            assert record.name == still_open.pop(record.id)
    assert still_open == {}


def pending_with(raw_input: Update) -> Update:
    return change(rawInput=raw_input, status="pending")


inputs: st.SearchStrategy[Update] = st.dictionaries(st.sampled_from(["cwd", "command"]), st.integers(0, 2))
others = st.sampled_from([text("Hm.", "agent_thought_chunk"), {"sessionUpdate": "usage_update", "used": 1, "size": 2}])


@settings(max_examples=60)
@given(
    st.lists(inputs.map(pending_with) | others, max_size=LONGEST_HOLD - 2),
    st.sampled_from(["runs", "asks", "ends"]),
)
def test_a_held_call_is_opened_once_with_the_last_input_that_it_had(before: list[Update], then: str) -> None:
    translator = UpdateTranslator()
    told = [record for update in [call(), *before] for record in translator.take(update, 0)]
    assert not any(isinstance(record, ToolCallOpened) for record in told)
    given = [update["rawInput"] for update in before if update.get("rawInput")]
    match then:
        case "asks":
            told = translator.permission_asked({"toolCallId": "c1"}, 0)
        case "runs":
            told = translator.take(change(status="in_progress"), 0)
        case _:
            told = translator.take(change(status="completed"), 0)
    assert told[0] == opened(given[-1] if given else {"title": "Read a.py"}, "other")
    assert not any(isinstance(record, ToolCallOpened) for record in [*told[1:], *translator.end_prompt(0)])


@settings(max_examples=40)
@given(st.lists(others | st.just(change(rawInput={"cwd": "/x"})), min_size=LONGEST_HOLD, max_size=2 * LONGEST_HOLD))
def test_a_call_that_never_runs_is_not_held_back_for_ever(updates: list[Update]) -> None:
    translator = UpdateTranslator()
    translator.take(call(rawInput={"cwd": "/x"}), 0)
    told = [record for update in updates for record in translator.take(update, 0)]
    assert told.count(opened({"cwd": "/x"}, "other")) == 1
