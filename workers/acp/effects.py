"""What comes of an input to `workers.acp.session.Session`: how a turn can end, and what is to be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from workers.acp.permission import PermissionOption

# -- endings ----------------------------------------------------------------------------------------------------------


class Answered(msgspec.Struct, frozen=True):
    """The last prompt ended as ``end_turn`` or ``refusal``."""

    stop_reason: str


class Stopped(msgspec.Struct, frozen=True):
    """The last prompt ended at a limit of the agent's."""

    stop_reason: str


class Cancelled(msgspec.Struct, frozen=True):
    """The turn was cancelled or interrupted."""


class TimedOut(msgspec.Struct, frozen=True):
    """The deadline came first."""


class Failed(msgspec.Struct, frozen=True):
    """The agent broke the protocol, or answered with the JSON-RPC error ``code``."""

    message: str
    code: int | None = None


class Exited(msgspec.Struct, frozen=True):
    """The process was gone before it had answered."""

    exit_code: int


Ending: TypeAlias = Answered | Stopped | Cancelled | TimedOut | Failed | Exited


# -- effects ----------------------------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True):
    """Write ``line`` to the agent. ``is_request`` is true where the turn can't go on unless it arrives."""

    line: bytes
    is_request: bool = False


class SessionOpened(msgspec.Struct, frozen=True):
    """The agent has a session open; prompts follow.

    ``goes_on`` says that it is one of before, ``can_go_on`` that the agent takes up this one in a later process too.
    """

    session_id: str
    goes_on: bool
    can_go_on: bool


class SessionLost(msgspec.Struct, frozen=True):
    """The agent did not take up its session of before, and ``reason`` says why; a new one follows."""

    reason: str


class Updated(msgspec.Struct, frozen=True):
    """The agent reported something within the open prompt; ``update`` is the object under that name."""

    update: Mapping[str, object]


class PermissionAsked(msgspec.Struct, frozen=True):
    """The agent wants consent: answer with `Session.answer_permission`, under ``key``."""

    key: int
    options: tuple[PermissionOption, ...]
    tool_call: Mapping[str, object]


class PermissionWithdrawn(msgspec.Struct, frozen=True):
    """The question ``key`` needs no answer any more."""

    key: int


class PromptEnded(msgspec.Struct, frozen=True):
    """A prompt was answered; ``result`` may hold its usage."""

    result: Mapping[str, object]


class Ended(msgspec.Struct, frozen=True):
    """The turn is over."""

    ending: Ending


Effect: TypeAlias = (
    Send | SessionOpened | SessionLost | Updated | PermissionAsked | PermissionWithdrawn | PromptEnded | Ended
)
