"""Writes what model servers send: chunks, events, whole bodies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from protocol.agent_spec import ModelSettings
from protocol.content import Message, UserMessage
from workers.providers.provider import ModelRequest, ToolSchema

DONE = "[DONE]"


def chunk(delta: dict[str, object], finish: str | None = None, **more: object) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}, ensure_ascii=False)


def said(text: str) -> str:
    return chunk({"content": text})


def called(*parts: dict[str, object]) -> str:
    return chunk({"tool_calls": list(parts)})


def part(
    name: str | None = None, arguments: object = None, *, index: int | None = None, call_id: str | None = None
) -> dict[str, object]:
    """One piece of a tool call, with only the fields that are given."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fields: dict[str, object] = {"function": function}
    if index is not None:
        fields["index"] = index
    if call_id is not None:
        fields["id"] = call_id
    return fields


def finished(reason: str = "stop") -> str:
    return chunk({}, reason)


def used(prompt: int, completion: int) -> str:
    return json.dumps({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def events(payloads: Iterable[str], line_end: str = "\n") -> bytes:
    return "".join(f"data: {payload}{line_end}{line_end}" for payload in payloads).encode()


def body(message: Mapping[str, object], finish: str | None = "stop", **more: object) -> bytes:
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}], **more}).encode()


def settings(base_url: str = "http://127.0.0.1:9/v1", **changes: object) -> ModelSettings:
    fields: dict[str, object] = {"provider": "stub", "adapter": "openai_chat", "model": "m", "base_url": base_url}
    return ModelSettings(**(fields | changes))  # type: ignore[arg-type]  # each test names real fields


def request(*messages: Message, **changes: object) -> ModelRequest:
    fields: dict[str, object] = {
        "agent": "main",
        "system_prompt": "Be brief.",
        "messages": messages or (UserMessage(text="hi"),),
        "tools": (ToolSchema(name="Read", description="Reads.", parameters='{"type":"object"}'),),
        "streaming": True,
        "max_tokens": None,
    }
    return ModelRequest(**(fields | changes))  # type: ignore[arg-type]  # each test names real fields
