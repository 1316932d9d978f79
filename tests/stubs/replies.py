"""What a stub model server answers, as values.

A `Reply` is the bytes of one HTTP response, cut into segments, with steps between them: a pause until an event is
set, a drip of bytes without end, a close or a reset in the middle. The builders below make the usual ones of an
OpenAI-compatible server; `stream` and `raw` take any bytes at all.

Source: the shape of the chunks is that of OpenAI's chat completions, the framing of RFC 9112, section 7.1.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias

from protocol.usage import Usage

Json: TypeAlias = Mapping[str, object]
CallTuple: TypeAlias = tuple[str, str, Json]
"""A tool call: id, name, arguments."""


@dataclass(frozen=True)
class Pause:
    """Send nothing until ``event`` is set (the server sets it when it closes)."""

    event: threading.Event


@dataclass(frozen=True)
class Drip:
    """Send ``data`` every ``interval`` seconds, ``times`` times; None: until the client goes away."""

    data: bytes
    interval: float
    times: int | None = None


@dataclass(frozen=True)
class Flush:
    """What follows travels in a segment of its own."""


@dataclass(frozen=True)
class Close:
    """Close the connection in an orderly way; what follows is not sent."""


@dataclass(frozen=True)
class Reset:
    """Close the connection with a TCP reset; what follows is not sent."""


Step: TypeAlias = bytes | Flush | Pause | Drip | Close | Reset


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One response: its ``steps`` in order.

    ``usage`` is what the server charges once all steps are done; None for what is never charged (an error, a reply
    that breaks off). ``keep_alive`` says that the bytes end by themselves, so that the connection can be used again.
    """

    steps: tuple[Step, ...]
    usage: Usage | None = None
    keep_alive: bool = False


# -- chunks of a stream -----------------------------------------------------------------------------------------------


def event(payload: Json | str) -> bytes:
    """One server-sent event."""
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


DONE = event("[DONE]")


def delta(fields: Json, finish: str | None = None) -> bytes:
    """A chunk with one delta."""
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def content(piece: str) -> bytes:
    """A chunk with a piece of text."""
    return delta({"content": piece})


def call_delta(arguments: str | None, *, index: int | None = 0, **fields: str) -> Json:
    """One tool call of a delta; ``fields`` may hold ``id`` and ``name``. None leaves a key out."""
    function = {
        key: value for key, value in (("name", fields.get("name")), ("arguments", arguments)) if value is not None
    }
    call: dict[str, object] = {"type": "function", "function": function}
    if index is not None:
        call["index"] = index
    if "id" in fields:
        call["id"] = fields["id"]
    return call


def calls(*call_deltas: Json) -> bytes:
    """A chunk whose delta holds these tool calls."""
    return delta({"tool_calls": list(call_deltas)})


def finish(reason: str) -> bytes:
    """The chunk with the finish reason."""
    return delta({}, reason)


def used(prompt: int, completion: int) -> bytes:
    """The chunk with the usage, which has no choices."""
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


# -- whole replies ----------------------------------------------------------------------------------------------------


def charge(prompt: int, completion: int) -> Usage:
    """The usage of one call."""
    return Usage(prompt_tokens=prompt, completion_tokens=completion, api_calls=1)


def head(code: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """A status line and headers."""
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"HTTP/1.1 {code} {HTTPStatus(code).phrase}\r\n{fields}\r\n".encode()


def chunked(data: bytes) -> bytes:
    """``data`` as one chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


def raw(steps: Iterable[Step], usage: Usage | None = None) -> Reply:
    """Exactly these bytes, the status line included, then the end of the connection."""
    return Reply(steps=tuple(steps), usage=usage)


def stream(*steps: Step, usage: Usage | None = None) -> Reply:
    """A 200 event stream whose chunked body are the bytes of ``steps``, ended properly unless a step ends it."""
    opening = head(200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
    framed: list[Step] = [opening]
    for step in steps:
        if isinstance(step, bytes):
            framed.append(chunked(step))
        elif isinstance(step, Drip):
            framed.append(Drip(chunked(step.data), step.interval, step.times))
        else:
            framed.append(step)
    framed.append(b"0\r\n\r\n")
    return Reply(steps=tuple(framed), usage=usage, keep_alive=True)


def sse(chunks: Iterable[bytes], usage: Usage | None = None) -> Reply:
    """A stream of these chunks, then `DONE`."""
    return stream(b"".join(chunks) + DONE, usage=usage)


def text(reply: str, prompt: int = 200, completion: int = 20) -> Reply:
    """A streamed reply of plain text."""
    return sse([content(reply), finish("stop"), used(prompt, completion)], charge(prompt, completion))


def tool_calls(wanted: Sequence[CallTuple], prompt: int = 100, completion: int = 10) -> Reply:
    """A streamed reply that calls several tools at once."""
    deltas = [
        call_delta(json.dumps(arguments), index=index, id=call_id, name=name)
        for index, (call_id, name, arguments) in enumerate(wanted)
    ]
    return sse([calls(*deltas), finish("tool_calls"), used(prompt, completion)], charge(prompt, completion))


def tool_call(call_id: str, name: str, arguments: Json) -> Reply:
    """A streamed reply that calls one tool."""
    return tool_calls([(call_id, name, arguments)])


def status(code: int, body: str | bytes = "", headers: Iterable[tuple[str, str]] = ()) -> Reply:
    """A response that is no reply: an error with any body."""
    data = body.encode() if isinstance(body, str) else body
    fields = [*headers, ("content-length", str(len(data)))]
    return Reply(steps=(head(code, fields) + data,), keep_alive=True)


def json_reply(body: Json, usage: Usage | None = None) -> Reply:
    """A 200 with a JSON body."""
    data = json.dumps(body).encode()
    fields = [("content-type", "application/json"), ("content-length", str(len(data)))]
    return Reply(steps=(head(200, fields) + data,), usage=usage, keep_alive=True)


def plain(message: Json, prompt: int = 30, completion: int = 3) -> Reply:
    """A reply that is not streamed: what sub-agents and summaries get."""
    body: Json = {
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion},
    }
    return json_reply(body, charge(prompt, completion))


def delegations(agent_name: str, *prompts: str) -> list[CallTuple]:
    """A call of InvokeAgent for each prompt; its id is ``to-PROMPT``."""
    return [(f"to-{prompt}", "InvokeAgent", {"agent_name": agent_name, "prompt": prompt}) for prompt in prompts]


def plain_text(reply: str) -> Reply:
    """A reply of plain text that is not streamed."""
    return plain({"content": reply})


def plain_calls(*wanted: CallTuple) -> Reply:
    """A reply with tool calls that is not streamed."""
    made = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for call_id, name, arguments in wanted
    ]
    return plain({"content": None, "tool_calls": made})


def hang(until: threading.Event | None = None) -> Reply:
    """Takes the request and never answers, not even with a status line."""
    return raw([Pause(until or threading.Event()), Close()])
