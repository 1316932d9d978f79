"""What strict model servers demand of a request, checked on every request that a stub gets.

Source: the 400s of OpenAI's chat completions and of the servers that imitate it.
"""

from __future__ import annotations

import json
from typing import Any, cast


def message_text(message: dict[str, Any]) -> str:
    """The text of a message, whether its content is a string or a list of parts."""
    content: Any = message.get("content")
    if isinstance(content, list):
        parts = cast("list[dict[str, Any]]", content)
        return "".join(part.get("text", "") for part in parts)
    return content or ""


def message_calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The tool calls of a message."""
    found: list[dict[str, Any]] | None = message.get("tool_calls")
    return found or []


def transcript_faults(body: dict[str, Any]) -> list[str]:
    """What is wrong with the request's messages; empty for a good one."""
    faults: list[str] = []
    unanswered: list[str] = []
    for place, message in enumerate(body["messages"]):
        role = message["role"]
        if role == "tool":
            call_id = message.get("tool_call_id")
            if not unanswered or unanswered.pop(0) != call_id:
                faults.append(f"message {place}: result for {call_id!r} is not the next one due")
            continue
        if unanswered:
            faults.append(f"message {place}: {role} comes before the results of {unanswered}")
            unanswered = []
        if role == "assistant":
            faults += assistant_faults(place, message)
            unanswered = [call["id"] for call in message_calls(message)]
        elif role not in ("system", "user"):
            faults.append(f"message {place}: unknown role {role!r}")
        elif not message_text(message).strip():
            faults.append(f"message {place}: empty {role} message")
    if unanswered:
        faults.append(f"no results for {unanswered}")
    return faults


def assistant_faults(place: int, message: dict[str, Any]) -> list[str]:
    """What is wrong with one assistant message."""
    faults: list[str] = []
    made = message_calls(message)
    if "tool_calls" in message and not made:
        faults.append(f"message {place}: empty list of tool calls")
    if not made and not message_text(message).strip():
        faults.append(f"message {place}: assistant message with nothing in it")
    ids = [call.get("id") for call in made]
    if len(set(ids)) != len(ids) or not all(ids):
        faults.append(f"message {place}: ids of tool calls are not unique: {ids}")
    for call in made:
        function = call["function"]
        if not function.get("name"):
            faults.append(f"message {place}: tool call without a name")
        try:
            arguments = json.loads(function["arguments"])
        except (KeyError, ValueError):
            faults.append(f"message {place}: arguments are not JSON: {function.get('arguments')!r}")
        else:
            if not isinstance(arguments, dict):
                faults.append(f"message {place}: arguments are no object: {arguments!r}")
    return faults
