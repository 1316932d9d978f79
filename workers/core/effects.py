"""What the turn asks its shell to do. The shell carries an effect out and feeds what comes of it back."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from protocol.content import ToolCall
from protocol.frames import UpwardFrame
from workers.providers.provider import ModelRequest


class Send(msgspec.Struct, frozen=True):
    """Put ``message`` on the channel to the supervisor, behind all that was sent before."""

    message: UpwardFrame


class CallModel(msgspec.Struct, frozen=True):
    """Make the model call; then `Turn.replied` or `Turn.failed`."""

    request: ModelRequest


class Wait(msgspec.Struct, frozen=True):
    """Let ``seconds`` pass; then `Turn.waited`."""

    seconds: float


class RunTool(msgspec.Struct, frozen=True):
    """Run ``call``, at once with the others of its reply; then `Turn.tool_done` with ``index``."""

    index: int
    call: ToolCall


class TakeUp(msgspec.Struct, frozen=True):
    """Wait for the sub-agent of ``request``, which an earlier worker asked for; then as for `RunTool`."""

    index: int
    call: ToolCall
    request: int


Effect: TypeAlias = Send | CallModel | Wait | RunTool | TakeUp
