"""What the scripted model answers once a rule was found: whole replies and errors, made without state or chance."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import cast

import msgspec

from protocol.content import AssistantMessage, Message, Summary, ToolCall, UserMessage
from protocol.scenario import ErrorKind, Rule, ScriptedCall, ScriptedError, ScriptedReply, ScriptedUsage, fill_template
from protocol.usage import Usage
from workers.providers.provider import (
    BadResponse,
    ContextOverflow,
    FinishReason,
    ModelReply,
    ModelRequest,
    NetworkFailed,
    ProviderError,
    RateLimited,
    ServerFailed,
    StreamFailed,
    refused,
)
from workers.providers.scenario_match import Match, Situation

CHARACTERS_PER_TOKEN = 4
"""How the scripted model counts: a text of n characters has n / 4 tokens, rounded up."""

_PIECE = re.compile(r"\s*\S+\s*")

_ERRORS: Mapping[ErrorKind, tuple[str, Callable[[str, ScriptedError], ProviderError]]] = {
    "rate_limit": ("too many requests", lambda text, script: RateLimited(text, script.retry_after)),
    "server_error": ("the server failed", lambda text, script: ServerFailed(text, script.retry_after)),
    "stream_failed": ("the reply broke off", lambda text, script: StreamFailed(text, script.retry_after)),
    "network": ("the connection was refused", lambda text, script: NetworkFailed(text, script.retry_after)),
    "context_overflow": ("the prompt is too long for the model", lambda text, _: ContextOverflow(text)),
    "refused": ("the request was refused", lambda text, script: refused(text, script.status)),
    "bad_response": ("the answer could not be read", lambda text, _: BadResponse(text)),
}


def count_tokens(text: str) -> int:
    """The tokens of ``text`` as the scripted model counts them."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def build_reply(script: ScriptedReply, values: Mapping[str, str], situation: Situation) -> ModelReply:
    """The reply that ``script`` describes, cut off at the request's ``max_tokens`` as a real model's would be."""
    request = situation.request
    calls = tuple(
        ToolCall(
            id=call.id or _made_up_id(request, situation.step, index),
            name=call.name,
            arguments=_filled_arguments(call, values),
        )
        for index, call in enumerate(script.tool_calls)
    )
    message = AssistantMessage(
        text=fill_template(script.text, values), reasoning=fill_template(script.thinking, values), tool_calls=calls
    )
    finish: FinishReason = script.finish or ("tool_calls" if calls else "stop")
    if request.max_tokens is not None and _completion_tokens(message) > request.max_tokens:
        message, finish = _cut(message, request.max_tokens), "length"
    return ModelReply(message=message, usage=_usage(script.usage, request, message), finish=finish)


def build_error(script: ScriptedError, values: Mapping[str, str]) -> ProviderError:
    """The error that ``script`` describes."""
    words, make = _ERRORS[script.kind]
    return make(f"the scripted model: {fill_template(script.message, values) or words}", script)


def last_resort(situation: Situation) -> Match:
    """The answer where the scenario has no rule: a summary for a summary call, else an error that names the place."""
    if situation.request.purpose == "summary":
        length = sum(len(text) for text in situation.texts)
        text = f"<summary>A scripted summary of {length} characters of history.</summary>"
        return Match(rule=Rule(reply=ScriptedReply(text=text)), values={})
    message = f"the scenario has no rule for {situation.describe()}"
    return Match(rule=Rule(error=ScriptedError(kind="refused", message=message, status=0)), values={})


def split_pieces(text: str, is_streaming: bool) -> list[str]:
    """``text`` as it is sent: word by word where the request asks for a stream, else in one piece."""
    if not text:
        return []
    return _PIECE.findall(text) if is_streaming and text.strip() else [text]


def _filled_arguments(call: ScriptedCall, values: Mapping[str, str]) -> str:
    return msgspec.json.encode(_filled(msgspec.json.decode(call.arguments), values)).decode()


def _filled(value: object, values: Mapping[str, str]) -> object:
    """A decoded JSON value with the placeholders in its strings, but not its keys, replaced."""
    if isinstance(value, str):
        return fill_template(value, values)
    if isinstance(value, list):
        return [_filled(item, values) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in cast("dict[str, object]", value).items()}
    return value


def _made_up_id(request: ModelRequest, step: int, index: int) -> str:
    """The same for the same request; agents that were told different things get different ones."""
    said = [message.text for message in request.messages if isinstance(message, UserMessage | Summary)]
    digest = hashlib.blake2s("\0".join([request.agent, str(len(request.messages)), *said]).encode(), digest_size=4)
    return f"call_{digest.hexdigest()}_{step}_{index + 1}"


def _cut(message: AssistantMessage, max_tokens: int) -> AssistantMessage:
    """The beginning of ``message`` that fits: reasoning first, then text; calls are whole or not there."""
    room = max_tokens * CHARACTERS_PER_TOKEN
    reasoning = message.reasoning[:room]
    text = message.text[: room - len(reasoning)]
    cut = AssistantMessage(text=text, reasoning=reasoning)
    for call in message.tool_calls:
        longer = msgspec.structs.replace(cut, tool_calls=(*cut.tool_calls, call))
        if text != message.text or _completion_tokens(longer) > max_tokens:
            break
        cut = longer
    return cut


def _completion_tokens(message: AssistantMessage) -> int:
    calls = "".join(call.name + call.arguments for call in message.tool_calls)
    return count_tokens(message.reasoning + message.text + calls)


def _usage(script: ScriptedUsage, request: ModelRequest, message: AssistantMessage) -> Usage:
    prompt = script.prompt_tokens
    completion = script.completion_tokens
    thinking = script.thinking_tokens
    return Usage(
        prompt_tokens=_prompt_tokens(request) if prompt is None else prompt,
        completion_tokens=_completion_tokens(message) if completion is None else completion,
        cache_read_tokens=script.cache_read_tokens,
        cache_creation_tokens=script.cache_creation_tokens,
        thinking_tokens=count_tokens(message.reasoning) if thinking is None else thinking,
        api_calls=1,
    )


def _prompt_tokens(request: ModelRequest) -> int:
    tools = sum(count_tokens(tool.name + tool.description + tool.parameters) for tool in request.tools)
    return count_tokens(request.system_prompt) + tools + sum(_message_tokens(each) for each in request.messages)


def _message_tokens(message: Message) -> int:
    if isinstance(message, AssistantMessage):
        return _completion_tokens(message)
    return count_tokens(message.text if isinstance(message, UserMessage | Summary) else message.output)
