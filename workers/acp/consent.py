"""The agent's questions for consent: answered by the headless rule, or handed on and answered later.

No input or output. Source: Agent Client Protocol v1, "Requesting Permission".
"""

from __future__ import annotations

from workers.acp.effects import Effect, PermissionAsked, PermissionWithdrawn, Send
from workers.acp.jsonrpc import Request, result_line
from workers.acp.messages import object_of
from workers.acp.permission import OpenQuestions, headless_choice, offered_options, outcome


class Consent:
    """The questions of one turn; with ``relays`` they go out as `PermissionAsked`."""

    def __init__(self, *, relays: bool) -> None:
        self._relays = relays
        self._questions = OpenQuestions()

    def asked(self, request: Request, *, is_refused: bool) -> list[Effect]:
        """The agent asks; ``is_refused`` says that its prompt is being cancelled, and so is all that it asks for."""
        options = offered_options(request.params)
        if self._relays and not is_refused:
            key = self._questions.add(request.id, options)
            return [PermissionAsked(key, options, object_of(request.params.get("toolCall")))]
        chosen = None if is_refused else headless_choice(options)
        return [Send(result_line(request.id, outcome(chosen)))]

    def answer(self, key: int, option_id: str | None) -> list[Effect]:
        """The answer to a `PermissionAsked`; None, and what was not offered, stand for ``cancelled``."""
        answer = self._questions.answer(key, option_id)
        return [] if answer is None else [Send(answer)]

    def withdraw_all(self) -> list[Effect]:
        """Answer what is open as cancelled."""
        effects: list[Effect] = []
        for key in self._questions.open_keys():
            effects += [*self.answer(key, None), PermissionWithdrawn(key)]
        return effects
