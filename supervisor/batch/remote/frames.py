"""What the batch and the process that makes an attempt elsewhere say to each other.

Msgpack with its length before it, as between supervisor and worker. Order holds in each direction. A key of a model's
server is in `Begin`, and in no other frame, line or argument.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from protocol.frames import Finished
from protocol.usage import Usage

BEAT_SECONDS = 10.0
SILENCE_SECONDS = 60.0
"""A process that says nothing for so long, not even that it lives, is given up."""
PIECE_BYTES = 64 * 1024
"""The most that is put into one message of the carrier: what is larger may be written to a disk on its way."""


# -- from the batch ---------------------------------------------------------------------------------------------------


class Down(msgspec.Struct, frozen=True, kw_only=True, tag_field="frame"):
    """Base of the frames from the batch."""


class Begin(Down, frozen=True, kw_only=True, tag="begin"):
    """Make an attempt; the first frame, once. ``order`` is an encoded `supervisor.batch.remote.order.Order`."""

    order: bytes


class CallGo(Down, frozen=True, kw_only=True, tag="call_go"):
    """The model call may be made."""

    call: int


class Halt(Down, frozen=True, kw_only=True, tag="halt"):
    """End the attempt as ``ending`` says; ``kill``: at once."""

    ending: Finished
    kill: bool


DownFrame: TypeAlias = Begin | CallGo | Halt

# -- from the process that makes the attempt --------------------------------------------------------------------------


class Up(msgspec.Struct, frozen=True, kw_only=True, tag_field="frame"):
    """Base of the frames to the batch."""


class Here(Up, frozen=True, kw_only=True, tag="here"):
    """The process has started on ``host``; ``token`` says for which attempt. The first frame."""

    token: str
    version: str
    host: str


class Beat(Up, frozen=True, kw_only=True, tag="beat"):
    """The process lives; every `BEAT_SECONDS`."""


class SessionKnown(Up, frozen=True, kw_only=True, tag="session"):
    """The session's id. It stays on that machine and ends with the attempt."""

    session_id: str


class RootProcess(Up, frozen=True, kw_only=True, tag="root_process"):
    """The root agent has its process."""

    pid: int


class Used(Up, frozen=True, kw_only=True, tag="used"):
    """What the attempt has used so far; all calls that were told as answered before are in it."""

    usage: Usage
    by_agent: dict[str, Usage]
    uncertain_calls: int


class CallAsked(Up, frozen=True, kw_only=True, tag="call_asked"):
    """A model call wants to go to ``endpoint``. `CallGo` is the answer, now or later. ``call`` rises."""

    call: int
    endpoint: str


class CallAnswered(Up, frozen=True, kw_only=True, tag="call_answered"):
    """The call was answered."""

    call: int


class CallFailed(Up, frozen=True, kw_only=True, tag="call_failed"):
    """The call failed; ``limited``: it was one too many for its endpoint."""

    call: int
    limited: bool


class CallDropped(Up, frozen=True, kw_only=True, tag="call_dropped"):
    """Nobody waits for the call any more."""

    call: int


class LogLine(Up, frozen=True, kw_only=True, tag="line"):
    """A line for ``wire.ndjson``."""

    line: bytes


class LogNote(Up, frozen=True, kw_only=True, tag="note"):
    """A line for ``stderr.log``."""

    text: str


class Told(Up, frozen=True, kw_only=True, tag="told"):
    """A sentence for whoever watches the batch."""

    text: str


class PatchPiece(Up, frozen=True, kw_only=True, tag="patch"):
    """The next bytes of ``patch.diff``."""

    data: bytes


class Over(Up, frozen=True, kw_only=True, tag="over"):
    """The attempt has ended; the last frame. ``report`` is an encoded `supervisor.batch.report.AttemptReport`."""

    report: bytes


UpFrame: TypeAlias = (
    Here
    | Beat
    | SessionKnown
    | RootProcess
    | Used
    | CallAsked
    | CallAnswered
    | CallFailed
    | CallDropped
    | LogLine
    | LogNote
    | Told
    | PatchPiece
    | Over
)

down_decoder: msgspec.msgpack.Decoder[DownFrame] = msgspec.msgpack.Decoder(DownFrame)
up_decoder: msgspec.msgpack.Decoder[UpFrame] = msgspec.msgpack.Decoder(UpFrame)
