"""Between the machine of a turn and the process that it talks to: every input becomes a step, every effect a deed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import trio

from workers.acp.agent_process import AgentProcess
from workers.acp.effects import (
    Effect,
    Ended,
    Ending,
    PermissionAsked,
    PermissionWithdrawn,
    PromptEnded,
    Send,
    SessionLost,
    SessionOpened,
    Updated,
)
from workers.acp.jsonrpc import NotJson, parse
from workers.acp.session import Session

Report: TypeAlias = SessionOpened | SessionLost | Updated | PermissionAsked | PermissionWithdrawn | PromptEnded
"""What whoever shows a turn may want to know."""


class SessionDriver:
    """Takes inputs from all tasks of a turn, one at a time; an `AgentListener`. No method raises.

    ``is_over`` is set at the end of the turn. Then ``ending`` says how it ended, or ``failure`` what was raised by code
    that is not ours. ``new_deadline`` is set when the machine wants its next tick at another time.
    """

    def __init__(
        self,
        session: Session,
        *,
        cancel: trio.Event | None,
        on_activity: Callable[[], None] | None,
        on_report: Callable[[Report], None] | None,
    ) -> None:
        self._session = session
        self._cancel = cancel
        self._on_activity = on_activity
        self._on_report = on_report
        self._is_calling_out = False
        self._known_deadline = session.next_deadline
        self.agent: AgentProcess | None = None
        self.ending: Ending | None = None
        self.failure: BaseException | None = None
        self.is_over = trio.Event()
        self.new_deadline = trio.Event()

    def step(self, take_input: Callable[[float], list[Effect]]) -> None:
        """Hand the machine an input, with the time, and carry out what it asks for; nothing once the turn is over."""
        if self.is_over.is_set():
            return
        now = trio.current_time()
        # An event that is set counts from that moment on, not from when its waiter wakes up.
        if self._cancel is not None and self._cancel.is_set():
            self._carry_out(self._session.cancel(now))
        self._carry_out(take_input(now))
        self._carry_out(self._session.interrupted(now))
        if self._session.next_deadline != self._known_deadline:
            self._known_deadline = self._session.next_deadline
            self.new_deadline.set()

    def fail(self, error: BaseException) -> None:
        """End the turn because of ``error``; the first one counts."""
        if self.failure is None:
            self.failure = error
        self._finish()

    def interrupted(self) -> None:
        """The control was used. Where the turn itself had called out, its current step sees to it."""
        if not self._is_calling_out:
            self.step(self._session.interrupted)

    # -- what the process says ----------------------------------------------------------------------------------------

    def line_came(self, line: bytes) -> None:
        """The agent wrote a line."""
        if self.is_over.is_set():
            return
        try:
            message = parse(line)
        except NotJson as error:
            self.output_is_unusable(str(error))
            return
        if message is None:
            self.step(lambda _: self._session.noise())
            return
        if self._on_activity is not None and self._session.is_activity(message):
            self._call_out(self._on_activity)
        self.step(lambda now: self._session.receive(message, now))

    def output_is_unusable(self, reason: str) -> None:
        """The agent wrote something that it must not."""
        self.step(lambda _: self._session.unreadable(reason))

    def output_ended(self) -> None:
        """The agent's standard output is closed."""
        self.step(self._session.output_ended)

    def input_lost(self) -> None:
        """A request could not be written."""
        self.step(self._session.input_lost)

    def process_exited(self, exit_code: int) -> None:
        """The process is gone."""
        self.step(lambda now: self._session.process_exited(exit_code, now))

    # -- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self.is_over.is_set():
                return
            match effect:
                case Send(line, is_request):
                    if self.agent is not None:
                        self.agent.send(line, is_request=is_request)
                case Ended(ending):
                    self.ending = ending
                    self._finish()
                case _:
                    self._report(effect)

    def _report(self, report: Report) -> None:
        on_report = self._on_report
        if on_report is not None:
            self._call_out(lambda: on_report(report))

    def _call_out(self, function: Callable[[], object]) -> None:
        """Call code of others, which may use the control and may raise anything."""
        self._is_calling_out = True
        try:
            function()
        except BaseException as error:
            self.fail(error)
        finally:
            self._is_calling_out = False

    def _finish(self) -> None:
        self.is_over.set()
        self.new_deadline.set()
