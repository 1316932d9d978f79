from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.content import AssistantMessage, Message, Summary, ToolCall, ToolResult, UserMessage
from tests.workers.providers.chat_wire import request, settings
from workers.providers.chat_request import NO_OUTPUT, request_body

CALL = ToolCall(id="x", name="Read", arguments='{"path":"a"}')


def built(*messages: Message, include_usage: bool = True, **changes: object) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(
        request_body(settings(), request(*messages, **changes), include_usage=include_usage)
    )
    return made


def messages_of(*messages: Message) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = built(*messages)["messages"]
    return made[1:]


def test_a_streamed_request_has_the_protocols_form() -> None:
    assert built(UserMessage(text="hi")) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {
                "type": "function",
                "function": {"name": "Read", "description": "Reads.", "parameters": {"type": "object"}},
            }
        ],
    }


def test_stream_options_are_sent_only_in_streams_and_only_if_the_server_takes_them() -> None:
    assert "stream_options" not in built(include_usage=False)
    whole = built(streaming=False)
    assert "stream_options" not in whole
    assert whole["stream"] is False


def test_no_tools_and_no_system_prompt_leave_no_empty_fields() -> None:
    made = built(tools=(), system_prompt=" ")
    assert "tools" not in made
    assert [message["role"] for message in made["messages"]] == ["user"]


def test_the_settings_of_the_model_are_sent_where_they_are_set() -> None:
    model = settings(temperature=0.0, reasoning_effort="low", max_tokens=100)
    made = json.loads(request_body(model, request(max_tokens=50), include_usage=True))
    assert (made["temperature"], made["reasoning_effort"], made["max_tokens"]) == (0.0, "low", 50)
    assert json.loads(request_body(model, request(), include_usage=True))["max_tokens"] == 100
    assert {"temperature", "reasoning_effort", "max_tokens"}.isdisjoint(built())


def test_the_openai_api_itself_gets_the_newer_name_of_max_tokens() -> None:
    model = settings("https://api.openai.com/v1", max_tokens=100)
    made = json.loads(request_body(model, request(), include_usage=True))
    assert made["max_completion_tokens"] == 100
    assert "max_tokens" not in made


def test_a_call_and_its_result_go_back_with_their_ids() -> None:
    result = ToolResult(call_id="x", name="Read", outcome="success", output="text")
    assert messages_of(UserMessage(text="hi"), AssistantMessage(text="a", tool_calls=(CALL,)), result)[1:] == [
        {
            "role": "assistant",
            "content": "a",
            "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "Read", "arguments": '{"path":"a"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "x", "content": "text"},
    ]


def test_a_failing_call_goes_back_without_what_the_model_sent() -> None:
    bad = ToolCall(id="x", name="Read", fault="The arguments are not valid JSON.")
    (message,) = messages_of(AssistantMessage(tool_calls=(bad,)))
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


def test_a_name_that_the_model_invented_goes_back_in_letters_that_servers_take() -> None:
    odd = ToolCall(id="x", name="functions.Read file: " + "x" * 100)
    (message,) = messages_of(AssistantMessage(tool_calls=(odd,)))
    name = message["tool_calls"][0]["function"]["name"]
    assert name.startswith("functions_Read_file__x")
    assert len(name) == 64


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_goes_back_under_its_own_name_with_tool_calls_only(field: str) -> None:
    calling = AssistantMessage(reasoning="hm", reasoning_field=field, tool_calls=(CALL,))
    speaking = AssistantMessage(text="a", reasoning="hm", reasoning_field=field)
    first, second = messages_of(calling, speaking)
    assert first[field] == "hm"
    assert {"reasoning_content", "reasoning"} & first.keys() == {field}
    assert second == {"role": "assistant", "content": "a"}


def test_nothing_empty_is_sent() -> None:
    made = messages_of(
        UserMessage(text=""),
        AssistantMessage(),
        AssistantMessage(text="\n", tool_calls=(CALL,)),
        ToolResult(call_id="x", name="Read", outcome="success", output=""),
    )
    assert [message["content"] for message in made] == [None, NO_OUTPUT]


def test_a_summary_is_a_users_message() -> None:
    (message,) = messages_of(Summary(text="We did things.", replaces=4))
    assert message["role"] == "user"
    assert message["content"].endswith("We did things.")


def test_lone_surrogates_do_not_break_the_request() -> None:
    result = ToolResult(call_id="x", name="Read", outcome="success", output="a\ud800")
    assert messages_of(UserMessage(text="\ud83d\ude00 \udc00"), AssistantMessage(text="b\ud800"), result) == [
        {"role": "user", "content": "😀 �"},
        {"role": "assistant", "content": "b�"},
        {"role": "tool", "tool_call_id": "x", "content": "a�"},
    ]
