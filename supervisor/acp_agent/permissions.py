"""Questions for the person at the client: may this call run?"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import trio

from protocol.content import ToolCall
from protocol.jsonrpc import Response, decode
from protocol.tool_names import SHELL_TOOL
from supervisor.acp_agent.connection import Connection
from supervisor.acp_agent.core.messages import PermissionKind, PermissionOption, PermissionRequest, PermissionResponse
from supervisor.acp_agent.core.translation import Translator
from supervisor.acp_agent.core.updates import ToolCallUpdate
from supervisor.approval import Question

_REFUSED = "denied: the person was asked and said no; ask what to do instead, or go another way"
_CANCELLED = "denied: the person is ending the turn"


class Permissions:
    """What the person allowed for the rest of a session: a tool by its name, of commands only the very same one."""

    def __init__(self) -> None:
        self._allowed: set[tuple[str, str]] = set()

    def allows(self, call: ToolCall) -> bool:
        """Whether the call needs no question any more."""
        return self._key(call) in self._allowed

    def allow(self, call: ToolCall) -> None:
        """Never ask again for what is like ``call``."""
        self._allowed.add(self._key(call))

    @staticmethod
    def _key(call: ToolCall) -> tuple[str, str]:
        return call.name, call.arguments if call.name == SHELL_TOOL else ""


class ClientApprover:
    """Implements `supervisor.approval.Approver` for one turn; questions end with ``nursery``."""

    def __init__(
        self,
        session_id: str,
        connection: Connection,
        translator: Translator,
        permissions: Permissions,
        nursery: trio.Nursery,
    ) -> None:
        self._session_id = session_id
        self._connection = connection
        self._translator = translator
        self._permissions = permissions
        self._nursery = nursery

    def ask(self, question: Question, answer: Callable[[str | None], None]) -> None:
        """See `Approver.ask`."""
        if self._permissions.allows(question.call):
            answer(None)
        else:
            self._nursery.start_soon(self._ask, question, answer)

    async def _ask(self, question: Question, answer: Callable[[str | None], None]) -> None:
        call = question.call
        fields = self._translator.question(question.agent_id, call.id)
        if fields is None:  # it has ended meanwhile
            return
        request = PermissionRequest(session_id=self._session_id, tool_call=fields, options=_options(call))
        denial = self._read(await self._connection.request("session/request_permission", request), question)
        if self._translator.question(question.agent_id, call.id) != fields:  # its worker died while the person thought
            return
        if denial is None:
            update = ToolCallUpdate(tool_call_id=fields.tool_call_id, status="in_progress")
            self._connection.update(self._session_id, update)
        answer(denial)

    def _read(self, response: Response, question: Question) -> str | None:
        """None for yes, else what the model is told. Only an option that was offered is taken for a yes."""
        if response.error is not None:
            return question.denial
        try:
            outcome = decode(response.result, PermissionResponse).outcome
        except msgspec.DecodeError:
            return question.denial
        if outcome.outcome == "cancelled":
            return _CANCELLED
        if outcome.option_id == "allow_always":
            self._permissions.allow(question.call)
        return None if outcome.option_id in ("allow_once", "allow_always") else _REFUSED


def _options(call: ToolCall) -> tuple[PermissionOption, ...]:
    always = "Allow this command from now on" if call.name == SHELL_TOOL else f"Allow {call.name} from now on"
    return (_option("allow_once", "Allow"), _option("allow_always", always), _option("reject_once", "Reject"))


def _option(kind: PermissionKind, name: str) -> PermissionOption:
    return PermissionOption(option_id=kind, name=name, kind=kind)
