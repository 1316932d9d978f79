"""Several small HTTP requests at once, with a deadline, before anything heavy is imported.

For asking a model server on this machine what it serves. It speaks plain HTTP/1.0 to numbers, never to names, uses no
proxy and follows no redirect; whatever goes wrong is no answer. Source: RFC 9112.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

MAX_ANSWER_BYTES = 4 * 1024 * 1024


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request to ``host`` (a number, IPv4 or IPv6); a ``body`` makes it a POST of JSON. ``key`` is sent if set."""

    host: str
    port: int
    path: str
    body: bytes = b""
    key: str = ""

    def encoded(self) -> bytes:
        """What goes over the connection."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{'POST' if self.body else 'GET'} {self.path} HTTP/1.0",
            f"Host: {host}:{self.port}",
            "Accept: application/json",
            "User-Agent: corral",
        ]
        if self.body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(self.body)}"]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        return "\r\n".join([*lines, "", ""]).encode("ascii", "replace") + self.body


def ask_all(questions: Sequence[Question], seconds: float) -> list[bytes | None]:
    """The bodies of the answers with status 200, in the order of the questions; None where there is none in time.

    Blocks for ``seconds`` at most, and no longer than the slowest answer takes.
    """
    deadline = time.monotonic() + seconds
    exchanges = [_Exchange(question) for question in questions]
    with selectors.DefaultSelector() as selector:
        for exchange in exchanges:
            exchange.begin(selector)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for selected, _ in selector.select(left):
                chosen: _Exchange = selected.data
                chosen.go_on(selector)
        for exchange in exchanges:
            exchange.end(selector)
    return [exchange.answer() for exchange in exchanges]


class _Exchange:
    """One connection: it is written to until the question is out, then read until the answer is whole."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._unsent = question.encoded()
        self._received = bytearray()
        self._socket: socket.socket | None = None

    def begin(self, selector: selectors.BaseSelector) -> None:
        family = socket.AF_INET6 if ":" in self._question.host else socket.AF_INET
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            self._socket.connect_ex((self._question.host, self._question.port))
            selector.register(self._socket, selectors.EVENT_WRITE, self)
        except (OSError, OverflowError):
            self.end(selector)

    def go_on(self, selector: selectors.BaseSelector) -> None:
        if self._socket is None:
            return
        try:
            if self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
                if not self._unsent:
                    selector.modify(self._socket, selectors.EVENT_READ, self)
                return
            piece = self._socket.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self._received += piece
        if not piece or len(self._received) > MAX_ANSWER_BYTES or _is_whole(self._received):
            self.end(selector)

    def end(self, selector: selectors.BaseSelector) -> None:
        if self._socket is not None:
            with suppress(KeyError, ValueError):  # it was never registered
                selector.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def answer(self) -> bytes | None:
        head, body = _parted(self._received)
        if not _is_success(head):
            return None
        if b"chunked" in _header(head, b"transfer-encoding"):
            return _joined(body)
        size = _size(head)
        return body[:size] if size is None or len(body) >= size else None


def _parted(received: bytes | bytearray) -> tuple[bytes, bytes]:
    head, blank, body = bytes(received).partition(b"\r\n\r\n")
    return (head, body) if blank else (b"", b"")


def _is_success(head: bytes) -> bool:
    version, _, rest = head.partition(b" ")
    return version.startswith(b"HTTP/1.") and rest[:3] == b"200"


def _header(head: bytes, name: bytes) -> bytes:
    """The value of a header in small letters; empty if there is none."""
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.strip().lower() == name:
            return value.strip().lower()
    return b""


def _size(head: bytes) -> int | None:
    value = _header(head, b"content-length")
    return int(value) if value.isdigit() and len(value) < 12 else None


def _is_whole(received: bytearray) -> bool:
    """Whether an answer that tells its length, or comes in chunks, is whole: some servers keep the connection open."""
    if b"\r\n\r\n" not in received:
        return False
    head, body = _parted(received)
    if b"chunked" in _header(head, b"transfer-encoding"):
        return body.endswith(b"0\r\n\r\n")
    size = _size(head)
    return size is not None and len(body) >= size


def _joined(body: bytes) -> bytes | None:
    """The chunks of a body; None if they are cut."""
    joined = bytearray()
    while True:
        line, end, body = body.partition(b"\r\n")
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            return None
        if not end or size < 0 or len(body) < size:
            return None
        if size == 0:
            return bytes(joined)
        joined += body[:size]
        body = body[size:].removeprefix(b"\r\n")
