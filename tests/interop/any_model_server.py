"""A model server that other people's agents can use: it speaks three APIs more than corral itself does.

Source: OpenAI, chat completions and responses; Anthropic, messages; Google, Gemini's ``streamGenerateContent``.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tests.stubs.model_server import Handler, ModelServer, ReceivedRequest
from tests.stubs.replies import Json, Reply, event, plain_calls, plain_text, stream, text, tool_call

HELLO = "Hello from the stub."
READ, WRITTEN = 11, 3
"""Tokens of each reply, in the APIs of which this module makes the replies."""


@dataclass(frozen=True)
class Call:
    """A call of one of the agent's own tools."""

    name: str
    arguments: Json


Said: TypeAlias = str | Call | Reply
Api: TypeAlias = Literal["chat", "responses", "messages", "candidates"]


class AnyModelServer(ModelServer):
    """Answers an agent's calls with ``script`` in order, then with `HELLO`, whichever API they come in.

    A call that offers no tools is one for a title or the like: it is answered besides. Where several agents call it,
    ``chat`` has the replies to chat completions, and ``by_api`` those to the first calls of the other APIs.
    """

    def __init__(
        self,
        script: Iterable[Said] = (),
        *,
        chat: Handler | None = None,
        by_api: Mapping[Api, Sequence[Said]] | None = None,
    ) -> None:
        super().__init__(chat or self._said_in_chat)
        self._script = deque(script)
        self._by_api = {api: deque(said) for api, said in (by_api or {}).items()}
        self._asked = {api: threading.Event() for api in ("chat", "responses", "messages", "candidates")}
        self.has_asked = threading.Event()
        """Set by the first call that is not answered besides."""

    def __enter__(self) -> AnyModelServer:
        super().__enter__()
        return self

    def asked(self, api: Api) -> threading.Event:
        """Set by the first call of that API that is not answered besides."""
        return self._asked[api]

    def _answer(self, request: ReceivedRequest) -> Reply:
        path = request.path.partition("?")[0]
        if path.endswith("/responses"):
            return said_as_response(self._next(request, "responses"))
        if path.endswith("/messages"):
            return said_as_message(self._next(request, "messages"))
        if path.endswith(":streamGenerateContent"):
            return said_as_candidate(self._next(request, "candidates"))
        return super()._answer(request)

    def _said_in_chat(self, request: ReceivedRequest) -> Reply:
        match self._next(request, "chat"):
            case Reply() as reply:
                return reply
            case Call(name=name, arguments=arguments):
                streamed, whole = tool_call("c1", name, arguments), plain_calls(("c1", name, arguments))
            case str() as said:
                streamed, whole = text(said), plain_text(said)
        return streamed if request.streaming else whole

    def _next(self, request: ReceivedRequest, api: Api) -> Said:
        if not request.body.get("tools"):
            return HELLO
        self.has_asked.set()
        self._asked[api].set()
        script = self._by_api.get(api, self._script)
        return script.popleft() if script else HELLO


def said_as_response(said: Said) -> Reply:
    """As OpenAI's responses API streams it."""
    item: Json
    match said:
        case Reply():
            return said
        case Call(name=name, arguments=arguments):
            item = {"type": "function_call", "call_id": "c1", "name": name, "arguments": json.dumps(arguments)}
        case str():
            block = {"type": "output_text", "text": said}
            item = {"type": "message", "role": "assistant", "content": [block]}
    usage = {"input_tokens": READ, "output_tokens": WRITTEN, "total_tokens": READ + WRITTEN}
    return _named_events(
        {"type": "response.created", "response": {"id": "r1"}},
        {"type": "response.output_item.done", "item": {**item, "id": "i1"}, "output_index": 0},
        {"type": "response.completed", "response": {"id": "r1", "usage": usage}},
    )


def said_as_message(said: Said) -> Reply:
    """As Anthropic's messages API streams it."""
    block: Json
    piece: Json
    match said:
        case Reply():
            return said
        case Call(name=name, arguments=arguments):
            block = {"type": "tool_use", "id": "c1", "name": name, "input": {}}
            piece = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
            reason = "tool_use"
        case str():
            block = {"type": "text", "text": ""}
            piece = {"type": "text_delta", "text": said}
            reason = "end_turn"
    usage = {"input_tokens": READ, "output_tokens": 1}
    message: Json = {"id": "m1", "type": "message", "role": "assistant", "model": "stub", "content": [], "usage": usage}
    ending = {"stop_reason": reason, "stop_sequence": None}
    return _named_events(
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": piece},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": WRITTEN}},
        {"type": "message_stop"},
    )


def said_as_candidate(said: Said) -> Reply:
    """As Gemini's API streams it."""
    part: Json
    match said:
        case Reply():
            return said
        case Call(name=name, arguments=arguments):
            part = {"functionCall": {"name": name, "args": arguments}}
        case str():
            part = {"text": said}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    counts = {"promptTokenCount": READ, "candidatesTokenCount": WRITTEN, "totalTokenCount": READ + WRITTEN}
    return stream(event({"candidates": [candidate], "usageMetadata": counts}))


def _named_events(*payloads: Mapping[str, object]) -> Reply:
    return stream(*(f"event: {payload['type']}\n".encode() + event(payload) for payload in payloads))
