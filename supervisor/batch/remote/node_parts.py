"""What an attempt is given where it is made elsewhere: a journal, a log and a gate that are frames to the batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

from protocol.frame_stream import FrameStream
from protocol.usage import Usage
from supervisor.batch.remote.frames import (
    CallAnswered,
    CallAsked,
    CallDropped,
    CallFailed,
    DownFrame,
    LogLine,
    LogNote,
    RootProcess,
    SessionKnown,
    Used,
)
from supervisor.core.endpoint_gate import CallKey
from supervisor.store.session_store import Ticket


class NodeJournal:
    """Tells the batch, which had committed the attempt before it was begun here. See `Journal`."""

    def __init__(self, frames: FrameStream[DownFrame]) -> None:
        self._frames = frames

    def begin(self, _workdir: str | None, _now: float) -> Ticket:
        """See `Journal.begin`."""
        ticket = Ticket(threading.Lock())
        ticket.settle(None)
        return ticket

    def has_session(self, session_id: str) -> None:
        """See `Journal.has_session`."""
        self._frames.put(SessionKnown(session_id=session_id))

    def has_process(self, pid: int) -> None:
        """See `Journal.has_process`."""
        self._frames.put(RootProcess(pid=pid))

    def has_used(self, used: Usage, by_agent: Mapping[str, Usage], uncertain: int) -> None:
        """See `Journal.has_used`."""
        self._frames.put(Used(usage=used, by_agent=dict(by_agent), uncertain_calls=uncertain))


class NodeLog:
    """Sends the lines to the batch, which writes them down. See `AttemptLog`."""

    path: Path | None = None

    def __init__(self, frames: FrameStream[DownFrame]) -> None:
        self._frames = frames

    def line(self, line: bytes) -> None:
        """See `AttemptLog.line`."""
        self._frames.put(LogLine(line=line))

    def note(self, text: str) -> None:
        """See `AttemptLog.note`."""
        self._frames.put(LogNote(text=text))

    async def room(self) -> None:
        """See `AttemptLog.room`."""
        await self._frames.room()

    def close(self) -> None:
        """See `AttemptLog.close`."""


class NodeEndpoints:
    """Asks the batch before each model call. See `SharedEndpoints`.

    Calls have numbers of their own: what an agent's grants are called comes again when its process is started anew.
    """

    def __init__(self, frames: FrameStream[DownFrame]) -> None:
        self._frames = frames
        self._numbers = count(1)
        self._number_of: dict[CallKey, int] = {}
        self._go: dict[int, Callable[[], None]] = {}

    def join(self) -> int:
        """There is one run here."""
        return 1

    def ask(self, endpoint: str, key: CallKey, go: Callable[[], None]) -> None:
        """See `Endpoints.ask`."""
        number = next(self._numbers)
        self._number_of[key] = number
        self._go[number] = go
        self._frames.put(CallAsked(call=number, endpoint=endpoint))

    def let_go(self, number: int) -> None:
        """The batch says that the call may be made; one that nobody wants any more is none."""
        if (go := self._go.pop(number, None)) is not None:
            go()

    def clean(self, key: CallKey) -> None:
        """See `Endpoints.clean`."""
        if (number := self._number_of.pop(key, None)) is not None:
            self._frames.put(CallAnswered(call=number))

    def failed(self, key: CallKey) -> None:
        """See `Endpoints.failed`."""
        if (number := self._number_of.pop(key, None)) is not None:
            self._frames.put(CallFailed(call=number, limited=False))

    def limited(self, key: CallKey) -> None:
        """See `Endpoints.limited`."""
        if (number := self._number_of.pop(key, None)) is not None:
            self._frames.put(CallFailed(call=number, limited=True))

    def leave(self, member: int, agent_id: str) -> int:
        """See `Endpoints.leave`."""
        waiting = 0
        for key in [key for key in self._number_of if key[:2] == (member, agent_id)]:
            number = self._number_of.pop(key)
            waiting += self._go.pop(number, None) is not None
            self._frames.put(CallDropped(call=number))
        return waiting
