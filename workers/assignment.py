"""What a worker is told before it begins."""

from __future__ import annotations

import msgspec

from protocol.content import Message
from protocol.errors import ProtocolError
from protocol.frame_stream import FrameStream
from protocol.frames import DownwardFrame, History, Prompt, Resume, Start


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A new turn with its ``prompt``, or one to ``resume``."""

    start: Start
    history: tuple[Message, ...]
    prompt: str
    resume: Resume | None


async def receive_assignment(channel: FrameStream[DownwardFrame]) -> tuple[Assignment, list[DownwardFrame]]:
    """The assignment, and the frames that came with its last one.

    Raises `ProtocolError` for frames in the wrong order, and where the stream ends before the assignment is complete.
    """
    start: Start | None = None
    history: list[Message] = []
    while frames := await channel.receive():
        for index, frame in enumerate(frames):
            match frame:
                case Start():
                    start = frame
                case History(message=message):
                    history.append(message)
                case Prompt() | Resume() if start is not None:
                    prompt = frame.text if isinstance(frame, Prompt) else ""
                    resume = frame if isinstance(frame, Resume) else None
                    assignment = Assignment(start=start, history=tuple(history), prompt=prompt, resume=resume)
                    return assignment, frames[index + 1 :]
                case _:
                    raise ProtocolError(f"{type(frame).__name__} came before the assignment was complete")
    raise ProtocolError("the stream ended before the assignment was complete")
