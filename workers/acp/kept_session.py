"""What is stored of the session that an agent keeps on its own side, so that a later process can go on with it."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.codec import clean_text
from protocol.content import Message
from protocol.frames import ExternalSession
from workers.acp.effects import SessionOpened
from workers.acp.opening import EarlierSession
from workers.acp.spoken import later_prompt

LONGEST_ID = 4_096
"""Characters of a session's id; a longer one is not kept."""


class KeptSession:
    """Follows one turn. ``history`` is the transcript before it, ``earlier`` the session that was stored with it.

    A session counts from when it is open. What was prompted counts as known to it once the agent has shown, by anything
    that it does, that the prompt has arrived: what it may know is told again rather than left out.
    """

    def __init__(self, cwd: str, history: Sequence[Message], earlier: ExternalSession | None) -> None:
        self._cwd = cwd
        self._history = history
        self._earlier = earlier if earlier is not None and earlier.cwd == cwd else None
        self._session_id: str | None = None
        self._known = 0
        self._items = len(history)
        self._knows_prompt = False
        self._stored = self._earlier

    def way_on(self, prompt: str) -> EarlierSession | None:
        """The session to go on with, and ``prompt`` behind what was said without it; None where there is none."""
        if self._earlier is None:
            return None
        missed = self._history[self._earlier.known :]
        return EarlierSession(session_id=self._earlier.session_id, prompt=later_prompt(missed, prompt))

    def opened(self, session: SessionOpened) -> None:
        """The agent has a session open."""
        is_kept = session.can_go_on and len(session.session_id) <= LONGEST_ID
        # An id that frames can't hold would come back as another one.
        is_kept = is_kept and clean_text(session.session_id) == session.session_id
        self._session_id = session.session_id if is_kept else None
        self._known = self._earlier.known if session.goes_on and self._earlier is not None else 0

    def took_prompt(self) -> None:
        """The agent has answered the prompt, or works on it."""
        self._knows_prompt = True

    def committed(self, items: int) -> None:
        """So many items more are in the transcript."""
        self._items += items

    def news(self) -> ExternalSession | None:
        """What is to be stored with the commit that `committed` told of last; None where all of it is."""
        if self._session_id is None:
            return None
        known = self._items if self._knows_prompt else self._known
        state = ExternalSession(session_id=self._session_id, cwd=self._cwd, known=known)
        if state == self._stored:
            return None
        self._stored = state
        return state
