"""What goes out to the client: the one writer of its stream, and our own requests with their answers."""

from __future__ import annotations

import msgspec
import trio

from protocol.jsonrpc import (
    ErrorObject,
    RequestId,
    Response,
    error_line,
    notification_line,
    request_line,
    result_line,
)
from supervisor.acp_agent.core.updates import SessionNotification, Update
from supervisor.sinks.stdout_writer import StdoutWriter


class Connection:
    """Sends whole lines in the order of the calls; nothing but `request` waits."""

    def __init__(self, output: StdoutWriter) -> None:
        self.output = output
        self._numbers = 0
        self._waiting: dict[int, _Waiting] = {}

    def update(self, session_id: str, update: Update) -> None:
        """Tell the client of something in a session."""
        params = SessionNotification(session_id=session_id, update=update)
        self.output.write(notification_line("session/update", params))

    def answer(self, request: RequestId, result: msgspec.Struct | ErrorObject) -> None:
        """Answer a request of the client."""
        if isinstance(result, ErrorObject):
            self.output.write(error_line(request, result))
        else:
            self.output.write(result_line(request, result))

    async def request(self, method: str, params: msgspec.Struct) -> Response:
        """Ask the client; an answer that comes after a cancellation is dropped."""
        self._numbers += 1
        number = self._numbers
        self._waiting[number] = waiting = _Waiting()
        try:
            self.output.write(request_line(number, method, params))
            await waiting.arrived.wait()
        finally:
            del self._waiting[number]
        assert waiting.response is not None
        return waiting.response

    def take(self, response: Response) -> None:
        """An answer of the client came; one that nobody waits for is dropped."""
        waiting = self._waiting.get(response.id) if isinstance(response.id, int) else None
        if waiting is not None:
            waiting.response = response
            waiting.arrived.set()


class _Waiting:
    def __init__(self) -> None:
        self.response: Response | None = None
        self.arrived = trio.Event()
