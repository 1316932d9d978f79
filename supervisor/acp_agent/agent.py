"""The agent that a client speaks with: takes its messages in order, answers each request once.

What needs no waiting is done at once, in the order in which it came: so a cancel that is sent right behind a prompt
finds it. What waits (for the disk, for a model server) does so in a task of its own.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec
import trio

from protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    ErrorObject,
    Incoming,
    Malformed,
    Notification,
    Request,
    RequestId,
    Response,
    decode,
)
from protocol.version import installed_version
from supervisor.acp_agent.connection import Connection
from supervisor.acp_agent.core import messages
from supervisor.acp_agent.core.prompt_text import PromptRefused, prompt_text
from supervisor.acp_agent.core.translation import Features
from supervisor.acp_agent.core.updates import Message
from supervisor.acp_agent.modes import MODE_OPTION
from supervisor.acp_agent.refusal import Refusal, error_of
from supervisor.acp_agent.session import ClientSession
from supervisor.acp_agent.sessions import Sessions
from supervisor.errors import SupervisorError

Params = TypeVar("Params", bound=Message)


class AcpAgent:
    """Serves one client. ``tasks`` is where turns and slow requests run."""

    def __init__(self, connection: Connection, sessions: Sessions, tasks: trio.Nursery) -> None:
        self._connection = connection
        self._sessions = sessions
        self._tasks = tasks
        self._is_initialized = False
        self._at_once: dict[str, Callable[[Request], Message]] = {
            "initialize": self._initialize,
            "authenticate": self._authenticate,
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_config_option,
        }
        self._slow: dict[str, Callable[[Request], Awaitable[Message]]] = {
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/list": self._list,
            "session/close": self._close,
        }

    def take(self, message: Incoming) -> None:
        """Take one message of the client; never blocks, never raises for what it holds."""
        match message:
            case Request():
                self._take_request(message)
            case Notification():
                self._take_notification(message)
            case Response():
                self._connection.take(message)
            case Malformed(id=request, error=error):
                self._connection.answer(request, error)

    def cancel_all(self) -> None:
        """End every turn."""
        for session in self._sessions.all():
            session.cancel()

    def kill_all(self) -> None:
        """End every turn the hard way."""
        for session in self._sessions.all():
            session.kill()

    # -- dispatch -----------------------------------------------------------------------------------------------------

    def _take_request(self, request: Request) -> None:
        try:
            self._dispatch(request)
        except Refusal as refusal:
            self._connection.answer(request.id, error_of(refusal))

    def _dispatch(self, request: Request) -> None:
        if not self._is_initialized and request.method != "initialize":
            raise Refusal(INVALID_REQUEST, "the first request must be initialize")
        if request.method == "session/prompt":
            self._prompt(request)
        elif (at_once := self._at_once.get(request.method)) is not None:
            self._connection.answer(request.id, at_once(request))
        elif (slow := self._slow.get(request.method)) is not None:
            self._tasks.start_soon(self._answer_later, request.id, partial(slow, request))
        else:
            raise Refusal(METHOD_NOT_FOUND, f"there is no method {request.method!r}")

    def _take_notification(self, notification: Notification) -> None:
        """A notification is never answered: what is wrong with it, or unknown, is ignored."""
        try:
            if notification.method == "session/cancel":
                self._sessions.get(decode(notification.params, messages.SessionRequest).session_id).cancel()
            elif notification.method == "$/cancel_request":
                request = decode(notification.params, messages.CancelRequest).request_id
                for session in self._sessions.all():
                    if session.turns.is_of(request):
                        session.cancel()
        except (Refusal, msgspec.DecodeError):
            pass

    async def _answer_later(self, request: RequestId, work: Callable[[], Awaitable[Message]]) -> None:
        answer: Message | ErrorObject
        try:
            answer = await work()
        except (Refusal, SupervisorError) as error:
            answer = error_of(error)
        except Exception:
            answer = _defect()
        self._connection.answer(request, answer)

    # -- the connection -----------------------------------------------------------------------------------------------

    def _initialize(self, request: Request) -> Message:
        asked = _params(request, messages.InitializeRequest)
        self._sessions.features = _features(asked.client_capabilities)
        self._is_initialized = True
        there = messages.Nothing()
        return messages.InitializeResponse(
            protocol_version=messages.PROTOCOL_VERSION,
            agent_capabilities=messages.AgentCapabilities(
                load_session=True,
                prompt_capabilities=messages.PromptCapabilities(embedded_context=True),
                session_capabilities=messages.SessionCapabilities(list=there, resume=there, close=there),
            ),
            agent_info=messages.Implementation(name="corral", title="corral", version=installed_version()),
            auth_methods=(),
        )

    def _authenticate(self, _request: Request) -> Message:
        raise Refusal(INVALID_PARAMS, "there is nothing to log in to: the model's key comes from corral's environment")

    # -- sessions -----------------------------------------------------------------------------------------------------

    async def _new(self, request: Request) -> Message:
        session = await self._sessions.new(_params(request, messages.SessionPlace))
        return messages.NewSession(session_id=session.session_id, modes=session.modes, config_options=session.options)

    async def _load(self, request: Request) -> Message:
        session = await self._sessions.reopen(_params(request, messages.SessionReopen))
        await session.replay()
        return _opened(session)

    async def _resume(self, request: Request) -> Message:
        return _opened(await self._sessions.reopen(_params(request, messages.SessionReopen)))

    async def _list(self, request: Request) -> Message:
        return await self._sessions.list(_params(request, messages.ListRequest))

    async def _close(self, request: Request) -> Message:
        await self._sessions.close(_params(request, messages.SessionRequest).session_id)
        return messages.Nothing()

    def _set_mode(self, request: Request) -> Message:
        asked = _params(request, messages.SetModeRequest)
        if not self._sessions.get(asked.session_id).set_mode(asked.mode_id):
            raise Refusal(INVALID_PARAMS, f"this session has no mode {asked.mode_id!r}")
        return messages.Nothing()

    def _set_config_option(self, request: Request) -> Message:
        asked = _params(request, messages.SetConfigOptionRequest)
        session = self._sessions.get(asked.session_id)
        if asked.config_id != MODE_OPTION:
            raise Refusal(INVALID_PARAMS, f"there is no option {asked.config_id!r}")
        if not session.set_mode(asked.value):
            raise Refusal(INVALID_PARAMS, f"the option {asked.config_id} has no value {asked.value!r}")
        return messages.ConfigOptions(config_options=session.options)

    # -- prompts ------------------------------------------------------------------------------------------------------

    def _prompt(self, request: Request) -> None:
        asked = _params(request, messages.PromptRequest)
        session = self._sessions.get(asked.session_id)
        try:
            text = prompt_text(asked.prompt)
        except PromptRefused as error:
            raise Refusal(INVALID_PARAMS, str(error)) from None
        if not session.begin_prompt(request.id):
            raise Refusal(INVALID_REQUEST, "a prompt runs in this session already: wait for its end, or cancel it")
        self._tasks.start_soon(self._run_prompt, session, text)

    async def _run_prompt(self, session: ClientSession, text: str) -> None:
        ending = None
        try:
            ending = await session.run_turn(text)
        except Exception:
            _defect()
        request, answer = session.turns.end(ending)
        if not isinstance(answer, ErrorObject):
            self._connection.answer(request, messages.PromptResponse(stop_reason=answer))
        else:
            self._connection.answer(request, answer)


def _params(request: Request, kind: type[Params]) -> Params:
    try:
        return decode(request.params, kind)
    except msgspec.DecodeError as error:
        raise Refusal(INVALID_PARAMS, f"the parameters of {request.method} are wrong: {error}") from None


def _features(capabilities: msgspec.Raw) -> Features:
    try:
        session = decode(capabilities, messages.ClientCapabilities).session
    except msgspec.DecodeError:
        return Features()
    if session is None:
        return Features()
    return Features(notices=session.notices is not None, compaction=session.compaction is not None)


def _opened(session: ClientSession) -> Message:
    return messages.OpenedSession(modes=session.modes, config_options=session.options)


def _defect() -> ErrorObject:
    """One session's defect must not end the others: it is written on standard error, and told to the client."""
    traceback.print_exc(file=sys.stderr)
    return ErrorObject(code=INTERNAL_ERROR, message="corral failed; its standard error says how")
