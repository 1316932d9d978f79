"""One turn of an external agent as a machine: what comes from its process in, what is to be done out.

    initialize -> session/new -> session/prompt -> (next follow-up: session/prompt)... -> ended
               -> session/resume ->
               -> session/load -> replaying ->

The machine does no input or output and reads no clock: ``now`` is a time in seconds that only grows. Every input
returns effects, to be carried out in their order; the last effect of all is `Ended`, after which inputs have none.
Source: Agent Client Protocol v1, "Prompt Turn"; the contract of external agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from protocol.codec import clean_text
from workers.acp.consent import Consent
from workers.acp.control import AcpControl
from workers.acp.deadlines import Deadlines, ProcessEnd
from workers.acp.effects import (
    Cancelled,
    Effect,
    Ended,
    Ending,
    Failed,
    PromptEnded,
    Send,
    SessionLost,
    SessionOpened,
    TimedOut,
    Updated,
)
from workers.acp.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    ErrorResponse,
    Message,
    Notification,
    Params,
    Request,
    Response,
    error_line,
    is_same_id,
    request_line,
)
from workers.acp.messages import (
    cancel_line,
    failure_of,
    initialize_params,
    judged,
    object_of,
    prompt_params,
    spoken_text,
)
from workers.acp.opening import Ask, EarlierSession, Opening, OpeningMethod, Replay

CANCEL_PATIENCE = 0.5
"""Seconds from a ``session/cancel`` to the end of its prompt; an absolute limit, whatever the agent says meanwhile."""
MAX_NOISE_LINES = 10_000
"""Lines of a turn that are no """

Method: TypeAlias = Literal[OpeningMethod, "session/prompt"]
Phase: TypeAlias = Literal["starting", Method, "replaying", "ended"]
"""Where it is a method, that request is open."""


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the turn is to be.

    ``deadline`` is a time as of ``now``, None for no limit. With ``relays_permission`` questions for consent go out as
    effects; otherwise they are answered by the headless rule. Where the agent can, it goes on with ``earlier``.
    """

    prompt: str
    cwd: str
    earlier: EarlierSession | None = None
    deadline: float | None = None
    client_version: str = "0"
    relays_permission: bool = False


class Session:
    """The state of one turn. Interrupts and follow-ups are taken from ``control``."""

    def __init__(self, settings: SessionSettings, control: AcpControl) -> None:
        self._settings = settings
        self._control = control
        self._phase: Phase = "starting"
        self._session_id = ""
        self._last_id = 0
        self._opening = Opening(settings.cwd, settings.prompt, settings.earlier)
        self._replay: Replay | None = None
        self._text: list[str] = []
        self._noise_lines = 0
        self._is_cancelled = False
        self._is_interrupted = False  # the open prompt, by a `session/cancel` that went out
        self._consent = Consent(relays=settings.relays_permission)
        self._deadlines = Deadlines()
        self._process = ProcessEnd(self._deadlines)
        if settings.deadline is not None:
            self._deadlines.set("turn", settings.deadline, TimedOut())

    @property
    def text(self) -> str:
        """What the agent has said so far, in all prompts of the turn."""
        return clean_text("".join(self._text))

    @property
    def has_ended(self) -> bool:
        """Whether there will be no further effect."""
        return self._phase == "ended"

    @property
    def next_deadline(self) -> float | None:
        """When to call `tick`, at the latest; None for never."""
        if self.has_ended:
            return None
        times = (self._deadlines.next, None if self._replay is None else self._replay.ends_at)
        return min((time for time in times if time is not None), default=None)

    # -- inputs from the agent ----------------------------------------------------------------------------------------

    def begin(self) -> list[Effect]:
        """The process was started."""
        if self._phase != "starting":
            return []
        return self._ask("initialize", initialize_params(self._settings.client_version))

    def is_activity(self, message: Message) -> bool:
        """Whether ``message`` is an update of the open prompt or the answer to it."""
        if isinstance(message, Notification):
            return self._is_update(message)
        return self._phase == "session/prompt" and self._is_awaited(message)

    def receive(self, message: Message, now: float) -> list[Effect]:
        """The agent sent ``message``."""
        if self._phase in ("starting", "ended"):
            return []
        effects: list[Effect] = []
        match message:
            case Request(method="session/request_permission"):
                effects = self._consent.asked(message, is_refused=self._is_interrupted)
            case Request(id=asked, method=method):
                effects = [Send(error_line(asked, METHOD_NOT_FOUND, f"Method not found: {method}"))]
            case Notification() if self._is_update(message):
                update = object_of(message.params["update"])
                self._text.append(spoken_text(update))
                effects = [Updated(update)]
            case Response() | ErrorResponse() if self._is_awaited(message):
                effects = self._answered(message, now)
            case Notification() if self._replay is not None:
                self._replay.heard(now)
            case ErrorResponse(id=None, code=code) if code in (PARSE_ERROR, INVALID_REQUEST):
                effects = self._end(Failed(f"the agent could not read a message: {message.message}", message.code))
            case _:
                pass  # something new, of another session, or a second answer
        return effects + self.interrupted(now)

    def noise(self) -> list[Effect]:
        """The agent wrote a line that is no message."""
        self._noise_lines += 1
        if self._noise_lines <= MAX_NOISE_LINES:
            return []
        return self._end(Failed(f"the agent wrote more than {MAX_NOISE_LINES} lines that are no messages"))

    def unreadable(self, reason: str) -> list[Effect]:
        """The agent wrote something after which nothing it writes can be trusted."""
        return self._end(Failed(reason))

    def output_ended(self, now: float) -> list[Effect]:
        """The agent's standard output is at its end, and so is this conversation."""
        return self._end(self._process.output_ended(now))

    def input_lost(self, now: float) -> list[Effect]:
        """A request did not reach the agent: it has closed its standard input."""
        return self._end(self._process.input_lost(now))

    def process_exited(self, exit_code: int, now: float) -> list[Effect]:
        """The process is gone."""
        return self._end(self._process.exited(exit_code, now))

    # -- inputs from our side -----------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""
        effects = self._end(self._deadlines.due(now))
        if self._replay is None or now < self._replay.ends_at or self.has_ended:
            return effects
        return [*self._prompt(self._opening.prompt), *self.interrupted(now)]

    def cancel(self, now: float) -> list[Effect]:
        """End the turn as cancelled: politely where a prompt is open, else at once. From now on nothing else counts."""
        if self.has_ended or self._is_cancelled:
            return []
        self._is_cancelled = True
        self._deadlines.drop("turn")
        return self._cancel_prompt(now) if self._phase == "session/prompt" else self._end(Cancelled())

    def interrupted(self, now: float) -> list[Effect]:
        """There may have been an interrupt; one that comes before the first prompt waits for it."""
        if self._phase != "session/prompt" or not self._control.take_interrupt():
            return []
        return self._cancel_prompt(now)

    def answer_permission(self, key: int, option_id: str | None) -> list[Effect]:
        """The answer to a `PermissionAsked`; None, and what was not offered, stand for ``cancelled``."""
        return [] if self.has_ended else self._consent.answer(key, option_id)

    # -- the conversation ---------------------------------------------------------------------------------------------

    def _ask(self, method: Method, params: Params) -> list[Effect]:
        self._phase = method
        self._replay = None
        self._last_id += 1
        return [Send(request_line(self._last_id, method, params), is_request=True)]

    def _is_awaited(self, message: Message) -> bool:
        is_answer = isinstance(message, Response | ErrorResponse) and is_same_id(message.id, self._last_id)
        return is_answer and self._phase != "replaying"

    def _is_update(self, message: Notification) -> bool:
        return (
            self._phase == "session/prompt"
            and message.method == "session/update"
            and message.params.get("sessionId") == self._session_id
            and isinstance(message.params.get("update"), dict)
        )

    def _answered(self, message: Response | ErrorResponse, now: float) -> list[Effect]:
        if self._phase == "session/prompt":
            return self._prompt_answered(message)
        match self._opening.answered(message):
            case Failed() as failure:
                return self._end(failure)
            case Ask(method, params):
                return self._ask(method, params)
            case SessionLost() as lost:
                begin = self._opening.new_session()
                return [lost, *self._ask(begin.method, begin.params)]
            case SessionOpened(session_id) as opened:
                self._session_id = session_id
                if self._phase != "session/load":
                    return [opened, *self._prompt(self._opening.prompt)]
                self._phase, self._replay = "replaying", Replay(now)
                return [opened]

    def _prompt(self, text: str) -> list[Effect]:
        return self._ask("session/prompt", prompt_params(self._session_id, text))

    def _prompt_answered(self, message: Response | ErrorResponse) -> list[Effect]:
        """An interrupted prompt is over however it ends; what a prompt ended as counts only where no other follows."""
        was_interrupted = self._control.take_interrupt() or self._is_interrupted
        self._is_interrupted = False
        self._deadlines.drop("cancel")
        effects = self._consent.withdraw_all()
        result: Mapping[str, object] = {}
        if isinstance(message, Response):
            result = object_of(message.result)
            effects.append(PromptEnded(result))
        elif not was_interrupted:
            return effects + self._end(failure_of(self._phase, message, self._opening.logins))
        if not self._is_cancelled and (follow_up := self._control.take_next()) is not None:
            return effects + self._prompt(follow_up.text)
        return effects + self._end(Cancelled() if was_interrupted else judged(result.get("stopReason")))

    def _cancel_prompt(self, now: float) -> list[Effect]:
        """Tell the agent once for each prompt; a second reason to stop gives it no more time."""
        if self._is_interrupted:
            return []
        self._is_interrupted = True
        self._deadlines.set("cancel", now + CANCEL_PATIENCE, Cancelled())
        return [Send(cancel_line(self._session_id)), *self._consent.withdraw_all()]

    def _end(self, ending: Ending | None) -> list[Effect]:
        if self.has_ended or ending is None:
            return []
        self._phase = "ended"
        return [Ended(Cancelled() if self._is_cancelled else ending)]
