"""A real model server on the loopback: threads and plain sockets, so that it can send any bytes at any time.

``with ModelServer(handler) as server:`` serves ``server.url`` until the block ends. The handler gets each request for
a chat completion and returns a `Reply`; calls of the handler never overlap, so it may be a simple closure. What the
handler raises, and every request that a strict server would refuse (`transcript_faults`), fails the test when the
block ends.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, TypeAlias

from protocol.usage import Usage
from tests.stubs.replies import Close, Drip, Flush, Pause, Reply, Reset, Step, json_reply, status, text
from tests.stubs.transcript_rules import message_text, transcript_faults

SEGMENT_GAP = 0.005
"""Seconds between two segments: pacing, so that the client's kernel sees two arrivals. No test depends on it."""


@dataclass(frozen=True, kw_only=True)
class ReceivedRequest:
    """One request as it came in. ``arrived`` is the monotonic time at which its body was whole, in seconds."""

    method: str
    path: str
    headers: dict[str, str]
    raw_body: bytes
    arrived: float

    @property
    def is_chat(self) -> bool:
        """Whether it asks for a chat completion: such a request is a model call."""
        return self.method == "POST" and self.path.endswith("/chat/completions")

    @cached_property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        parsed: dict[str, Any] = json.loads(self.raw_body)
        return parsed

    @property
    def streaming(self) -> bool:
        """Whether a stream is asked for."""
        return self.body.get("stream") is True

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages, the system prompt among them."""
        found: list[dict[str, Any]] = self.body["messages"]
        return found

    @property
    def prompt(self) -> str:
        """The text of the first user message: what a sub-agent was asked to do."""
        return next(message_text(message) for message in self.messages if message["role"] == "user")

    @property
    def results(self) -> list[str]:
        """The text of each tool result since the last user message."""
        found: list[str] = []
        for message in self.messages:
            if message["role"] == "user":
                found.clear()
            elif message["role"] == "tool":
                found.append(message_text(message))
        return found

    @property
    def tool_names(self) -> list[str]:
        """The tools on offer."""
        return [tool["function"]["name"] for tool in self.body.get("tools", [])]


Handler: TypeAlias = Callable[[ReceivedRequest], Reply]


def no_other_calls(request: ReceivedRequest) -> Reply:
    """For `scripted`: the run must make no call that is not streamed."""
    raise AssertionError(f"unexpected call that is not streamed: {request.body}")


def scripted(replies: Iterable[Reply], other: Handler = no_other_calls) -> Handler:
    """Answer streamed calls with ``replies`` in order, then with "Done."; the rest goes to ``other``."""
    waiting = deque(replies)

    def answer(request: ReceivedRequest) -> Reply:
        if not request.streaming:
            return other(request)
        return waiting.popleft() if waiting else text("Done.")

    return answer


def per_prompt(scripts: Mapping[str, Iterable[Reply]]) -> Handler:
    """For sub-agents: each gets the replies listed under its prompt, in order; one more call is a failure."""
    waiting = {prompt: deque(replies) for prompt, replies in scripts.items()}

    def answer(request: ReceivedRequest) -> Reply:
        replies = waiting.get(request.prompt)
        assert replies, f"no reply left for a call of the agent with the prompt {request.prompt!r}"
        return replies.popleft()

    return answer


class _ClientGone(Exception):
    """The connection ended, by either side."""


class ModelServer:
    """The server; see the module. ``api_path`` is the path of the base URL."""

    def __init__(self, handler: Handler, api_path: str = "/v1") -> None:
        self._handler = handler
        self._changed = threading.Condition()
        self._handling = threading.Lock()
        self._requests: list[ReceivedRequest] = []
        self._billed = Usage()
        self._faults: list[str] = []
        self._open: set[socket.socket] = set()
        self._pauses: set[threading.Event] = set()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}{api_path}"

    # -- what a test reads

    @property
    def requests(self) -> list[ReceivedRequest]:
        """All requests so far, in the order of their arrival."""
        with self._changed:
            return list(self._requests)

    @property
    def chats(self) -> list[ReceivedRequest]:
        """The model calls among the requests."""
        return [request for request in self.requests if request.is_chat]

    @property
    def billed(self) -> Usage:
        """What the completed replies cost."""
        with self._changed:
            return self._billed

    def wait_for_requests(self, count: int, timeout: float = 20.0) -> list[ReceivedRequest]:
        """The model calls, as soon as there are ``count``; fails after ``timeout`` seconds."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: sum(r.is_chat for r in self._requests) >= count, timeout)
        chats = self.chats
        assert arrived, f"{len(chats)} of {count} model calls came within {timeout} s"
        return chats

    # -- its life

    def __enter__(self) -> ModelServer:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._changed:
            for pause in self._pauses:
                pause.set()
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            threads = list(self._threads)
        for thread in threads:
            thread.join(timeout=5)
        if error is None:
            assert not self._faults, "\n".join(self._faults)
        elif self._faults:
            error.add_note("the stub server says: " + "\n".join(self._faults))

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        with self._changed:
            self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _address = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._changed:
                if self._closing.is_set():
                    connection.close()
                    return
                self._open.add(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as reader:
                while (request := read_request(reader.readline, reader.read)) is not None:
                    reply = self._answer(request)
                    self._send(connection, reply)
                    if not reply.keep_alive:
                        return
        except (_ClientGone, OSError, ValueError):
            pass
        finally:
            with self._changed:
                self._open.discard(connection)

    # -- one request

    def _answer(self, request: ReceivedRequest) -> Reply:
        with self._handling:
            with self._changed:
                self._requests.append(request)
                self._changed.notify_all()
            if request.path.endswith("/models"):
                return json_reply({"object": "list", "data": [{"id": "stub", "object": "model"}]})
            if not request.is_chat:
                return status(404, "no such path")
            try:
                faults = transcript_faults(request.body)
                reply = self._handler(request)
            except Exception as error:  # it is reported when the block ends
                self._faults.append(f"the handler raised {error!r}")
                return status(400, "the stub's handler failed")
            if faults:
                self._faults.extend(faults)
                return status(400, "; ".join(faults))
            return reply

    def _send(self, connection: socket.socket, reply: Reply) -> None:
        for step in reply.steps:
            self._carry_out(connection, step)
        if reply.usage is not None:
            with self._changed:
                self._billed += reply.usage

    def _carry_out(self, connection: socket.socket, step: Step) -> None:
        match step:
            case bytes():
                connection.sendall(step)
            case Flush():
                self._closing.wait(SEGMENT_GAP)
            case Pause():
                self._pause(step.event)
            case Drip():
                sent = 0
                while sent != step.times and not self._closing.wait(step.interval):
                    connection.sendall(step.data)
                    sent += 1
            case Close():
                raise _ClientGone
            case Reset():
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raise _ClientGone

    def _pause(self, event: threading.Event) -> None:
        with self._changed:
            if self._closing.is_set():
                raise _ClientGone
            self._pauses.add(event)
        event.wait()


def read_request(read_line: Callable[[int], bytes], read: Callable[[int], bytes]) -> ReceivedRequest | None:
    """The next request of a connection, or None at its end. Understands bodies with a Content-Length only.

    A request that breaks off, because its client was ended while it sent it, is an end too and not a request.
    """
    request_line = read_line(65_536)
    if not request_line.strip():
        return None
    method, path, _version = request_line.decode("latin-1").split()
    headers: dict[str, str] = {}
    while (line := read_line(65_536).decode("latin-1")) != "\r\n":
        if not line:
            return None
        name, _colon, value = line.partition(":")
        headers[name.lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    body = read(length)
    if len(body) < length:
        return None
    return ReceivedRequest(method=method, path=path, headers=headers, raw_body=body, arrived=time.monotonic())


def unused_address() -> str:
    """A base URL on the loopback where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return f"http://127.0.0.1:{port}/v1"
