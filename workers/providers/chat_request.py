"""Builds the body of a chat-completions request; without IO.

Source: the OpenAI API reference, "Create chat completion". Nothing empty is ever sent: servers refuse empty texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from protocol.agent_spec import ModelSettings
from protocol.codec import clean_text, encode_json
from protocol.content import AssistantMessage, Message, Summary, ToolCall, ToolResult, UserMessage
from workers.providers.provider import ModelRequest, ToolSchema

SUMMARY_HEADING = "Summary of the conversation so far:"
NO_OUTPUT = "(no output)"

_OPENAI_HOST = "://api.openai.com/"  # its reasoning models refuse ``max_tokens``; elsewhere few know the newer name
_not_in_names = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64


class _Function(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str


class _Call(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    function: _Function
    type: Literal["function"] = "function"


class _System(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="system"):
    content: str


class _User(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="user"):
    content: str


class _Assistant(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[_Call] | UnsetType = UNSET


class _Tool(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str


_Item: TypeAlias = _System | _User | _Assistant | _Tool


class _Declaration(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    parameters: msgspec.Raw


class _ToolDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    function: _Declaration
    type: Literal["function"] = "function"


class _StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_usage: bool = True


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    messages: list[_Item]
    stream: bool
    tools: list[_ToolDeclaration] | UnsetType = UNSET
    stream_options: _StreamOptions | UnsetType = UNSET
    max_tokens: int | UnsetType = UNSET
    max_completion_tokens: int | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    reasoning_effort: str | UnsetType = UNSET


def request_body(settings: ModelSettings, request: ModelRequest, *, include_usage: bool) -> bytes:
    """The request as JSON bytes. ``include_usage`` asks for token counts at the end of a stream.

    The narrower of the request's and the settings' ``max_tokens`` counts. Lone surrogates become U+FFFD.
    """
    limits = [limit for limit in (request.max_tokens, settings.max_tokens) if limit is not None]
    limit = min(limits) if limits else UNSET
    is_openai = _OPENAI_HOST in f"{settings.base_url}/"
    body = _Body(
        model=settings.model,
        messages=list(_items(request)),
        stream=request.streaming,
        tools=[_declaration(tool) for tool in request.tools] or UNSET,
        stream_options=_StreamOptions() if request.streaming and include_usage else UNSET,
        max_tokens=UNSET if is_openai else limit,
        max_completion_tokens=limit if is_openai else UNSET,
        temperature=UNSET if settings.temperature is None else settings.temperature,
        reasoning_effort=settings.reasoning_effort or UNSET,
    )
    return encode_json(body)


def _items(request: ModelRequest) -> Iterator[_Item]:
    if request.system_prompt.strip():
        yield _System(content=clean_text(request.system_prompt))
    offered = frozenset(tool.name for tool in request.tools)
    for message in request.messages:
        item = _item(message, offered)
        if item is not None:
            yield item


def _item(message: Message, offered: frozenset[str]) -> _Item | None:
    """``message`` as the server reads it, None for one that says nothing."""
    match message:
        case UserMessage(text=text):
            return _User(content=clean_text(text)) if text.strip() else None
        case Summary(text=text):
            return _User(content=f"{SUMMARY_HEADING}\n\n{clean_text(text)}")
        case ToolResult(call_id=call_id, output=output):
            return _Tool(tool_call_id=clean_text(call_id), content=clean_text(output) if output.strip() else NO_OUTPUT)
        case AssistantMessage():
            return _assistant(message, offered)


def _assistant(message: AssistantMessage, offered: frozenset[str]) -> _Assistant | None:
    text = clean_text(message.text) if message.text.strip() else None
    if not message.tool_calls:
        return None if text is None else _Assistant(content=text)
    # Servers of reasoning models answer 400 when the reasoning before a tool call does not come back with its result.
    reasoning = clean_text(message.reasoning) or UNSET
    return _Assistant(
        content=text,
        reasoning_content=reasoning if message.reasoning_field == "reasoning_content" else UNSET,
        reasoning=reasoning if message.reasoning_field == "reasoning" else UNSET,
        tool_calls=[_call(call, offered) for call in message.tool_calls],
    )


def _call(call: ToolCall, offered: frozenset[str]) -> _Call:
    name = call.name
    if name not in offered:  # invented by the model: some servers refuse the odd ones when they come back
        name = _not_in_names.sub("_", name)[:_LONGEST_NAME] or "unnamed"
    arguments = "{}" if call.fault else call.arguments
    return _Call(id=clean_text(call.id), function=_Function(name=name, arguments=arguments))


def _declaration(tool: ToolSchema) -> _ToolDeclaration:
    parameters = msgspec.Raw(tool.parameters.encode())
    return _ToolDeclaration(
        function=_Declaration(name=tool.name, description=clean_text(tool.description), parameters=parameters)
    )
