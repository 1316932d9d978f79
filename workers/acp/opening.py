"""From the answer to ``initialize`` to a session that takes prompts: a new one, or one of before that goes on.

Where the agent announces ``session/resume`` a session of before is taken up with that, else, or where that fails, with
``session/load`` where it announces that. Where both fail, as when it has forgotten the session, a new one is begun.

No input or output; ``now`` is a time in seconds that only grows. Source: Agent Client Protocol v1, "Session Setup".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from workers.acp.effects import Failed, SessionLost, SessionOpened
from workers.acp.jsonrpc import AUTHENTICATION_REQUIRED, ErrorResponse, Params, Response
from workers.acp.messages import (
    failure_of,
    login_methods,
    object_of,
    session_params,
    taken_up_params,
    version_fault,
)

QUIET_TIME = 0.25
"""Seconds without a message after which a loaded session has been replayed: some agents answer before they replay."""
LONGEST_REPLAY = 5.0
"""Seconds after the answer to a ``session/load`` after which its replay is waited for no longer."""

Opener: TypeAlias = Literal["session/new", "session/resume", "session/load"]
OpeningMethod: TypeAlias = Literal["initialize", Opener]


class EarlierSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that the agent had in an earlier process, and ``prompt``, the first one if it goes on with it."""

    session_id: str
    prompt: str


class Ask(msgspec.Struct, frozen=True):
    """The next request."""

    method: Opener
    params: Params


class Opening:
    """The requests before the first prompt. ``logins`` are the ways to log in that the agent offers."""

    def __init__(self, cwd: str, prompt: str, earlier: EarlierSession | None) -> None:
        """``prompt`` is the first one of a new session."""
        self._cwd = cwd
        self._prompt = prompt
        self._earlier = earlier
        self._ways_back: tuple[Opener, ...] = ()
        self._can_go_on = False
        self._method: OpeningMethod = "initialize"
        self.logins: tuple[str, ...] = ()

    @property
    def prompt(self) -> str:
        """The first prompt."""
        return self._prompt if self._earlier is None else self._earlier.prompt

    def new_session(self) -> Ask:
        """The request that begins a session of which the agent knows nothing yet."""
        self._earlier, self._method = None, "session/new"
        return Ask("session/new", session_params(self._cwd))

    def answered(self, message: Response | ErrorResponse) -> Ask | SessionOpened | SessionLost | Failed:
        """What the answer to the open request leads to, which is ``initialize`` or the last `Ask`.

        After `SessionLost` comes `new_session`.
        """
        if isinstance(message, ErrorResponse):
            failure = failure_of(self._method, message, self.logins)
            if self._method in ("initialize", "session/new") or message.code == AUTHENTICATION_REQUIRED:
                return failure
            return self._take_up() or SessionLost(failure.message)
        result = object_of(message.result)
        return self._greeted(result) if self._method == "initialize" else self._opened(result)

    def _greeted(self, result: Mapping[str, object]) -> Ask | Failed:
        if fault := version_fault(result):
            return fault
        self.logins = login_methods(result)
        self._ways_back = ways_back(result)
        self._can_go_on = bool(self._ways_back)
        return self._take_up() or self.new_session()

    def _take_up(self) -> Ask | None:
        """The next way to take the session of before up; None where there is none, or no such session."""
        if self._earlier is None or not self._ways_back:
            return None
        self._method, *rest = self._ways_back
        self._ways_back = tuple(rest)
        return Ask(self._method, taken_up_params(self._earlier.session_id, self._cwd))

    def _opened(self, result: Mapping[str, object]) -> SessionOpened | Failed:
        if self._earlier is not None:
            return SessionOpened(self._earlier.session_id, goes_on=True, can_go_on=self._can_go_on)
        session_id = result.get("sessionId")
        if not isinstance(session_id, str):
            return Failed("the agent opened a session without a sessionId")
        return SessionOpened(session_id, goes_on=False, can_go_on=self._can_go_on)


class Replay:
    """When the replay of a loaded session is over, which nobody says: at ``ends_at``."""

    def __init__(self, now: float) -> None:
        """The session was loaded at ``now``."""
        self._latest = now + LONGEST_REPLAY
        self.ends_at = now + QUIET_TIME

    def heard(self, now: float) -> None:
        """Something came that may be a part of it."""
        self.ends_at = min(now + QUIET_TIME, self._latest)


def ways_back(result: Mapping[str, object]) -> tuple[Opener, ...]:
    """How the agent takes up a session of before, by its answer to ``initialize``, the best way first."""
    capabilities = object_of(result.get("agentCapabilities"))
    ways: list[Opener] = []
    if isinstance(object_of(capabilities.get("sessionCapabilities")).get("resume"), dict):
        ways.append("session/resume")
    if capabilities.get("loadSession") is True:
        ways.append("session/load")
    return tuple(ways)
