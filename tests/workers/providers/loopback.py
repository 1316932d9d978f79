"""A loopback server that says exactly the bytes a test wants said, when it wants them said."""

from __future__ import annotations

import json
import socket
import struct
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import trio

EVENT_STREAM = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}

Answer: TypeAlias = Callable[[trio.abc.Stream], Awaitable[None]]
"""Says one answer; what it leaves open serves the next request."""


@dataclass(frozen=True, kw_only=True)
class Received:
    """One request as it came, header names in lower case."""

    target: str
    headers: Mapping[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body)
        return value


class LoopbackServer:
    """Gives ``answers`` in order, one for each request; closes the connection when it has none left."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self.requests: list[Received] = []
        self.gone = trio.Event()
        self.port = 0
        self._answers = deque(answers)
        self._connections = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def handle(self, stream: trio.abc.Stream) -> None:
        """Serve one connection to its end; ``gone`` says that a client left."""
        self._connections += 1
        number = self._connections
        try:
            async with stream:
                while (received := await _receive(stream, number)) is not None:
                    self.requests.append(received)
                    if not self._answers:
                        return
                    await self._answers.popleft()(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.gone.set()


@asynccontextmanager
async def serving(*answers: Answer) -> AsyncGenerator[LoopbackServer, None]:
    """A server on a port of its own, gone with the context."""
    server = LoopbackServer(answers)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server.port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, server.handle, listeners)
        yield server
        nursery.cancel_scope.cancel()


async def _receive(stream: trio.abc.Stream, connection: int) -> Received | None:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = await stream.receive_some()
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        piece = await stream.receive_some()
        if not piece:
            return None
        body += piece
    return Received(target=first.split()[1], headers=headers, body=body, connection=connection)


def head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def whole(body: bytes, status: int = 200, headers: Mapping[str, str] = JSON) -> Answer:
    """An answer of known length."""

    async def answer(stream: trio.abc.Stream) -> None:
        await stream.send_all(head(status, {**headers, "content-length": str(len(body))}) + body)

    return answer


def chunked(*pieces: bytes, headers: Mapping[str, str] = EVENT_STREAM, then: Answer | None = None) -> Answer:
    """A chunked answer, each piece a chunk; ``then`` stands for its proper end."""

    async def answer(stream: trio.abc.Stream) -> None:
        await stream.send_all(head(200, {**headers, "transfer-encoding": "chunked"}))
        for piece in pieces:
            await stream.send_all(chunk_of(piece))
        if then is None:
            await stream.send_all(b"0\r\n\r\n")
        else:
            await then(stream)

    return answer


def until_close(*pieces: bytes, headers: Mapping[str, str] = EVENT_STREAM) -> Answer:
    """An answer without a length, that the end of the connection ends."""

    async def answer(stream: trio.abc.Stream) -> None:
        await stream.send_all(head(200, {**headers, "connection": "close"}) + b"".join(pieces))
        await close(stream)

    return answer


def bare(data: bytes) -> Answer:
    """Just these bytes, then the end of the connection."""

    async def answer(stream: trio.abc.Stream) -> None:
        await stream.send_all(data)
        await close(stream)

    return answer


def chunk_of(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


async def close(stream: trio.abc.Stream) -> None:
    await stream.aclose()


async def reset(stream: trio.abc.Stream) -> None:
    """Leave with a reset instead of an orderly close."""
    assert isinstance(stream, trio.SocketStream)
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


async def silence(stream: trio.abc.Stream) -> None:
    """Say nothing until the client leaves."""
    while await stream.receive_some():
        pass


def drip(piece: bytes, every: float) -> Answer:
    """Say ``piece`` again and again, every so many seconds, until the client leaves."""

    async def answer(stream: trio.abc.Stream) -> None:
        while True:
            await stream.send_all(chunk_of(piece))
            with trio.move_on_after(every):
                if not await stream.receive_some():
                    return

    return answer
