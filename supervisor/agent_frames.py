"""What an agent's worker says, carried out.

Identity comes from here, never from a frame: one `AgentFrames` belongs to one agent, over all its workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from protocol.agent_spec import ModelSettings
from protocol.codec import encode_json
from protocol.content import AssistantMessage, ToolCall, ToolResult
from protocol.errors import ProtocolError
from protocol.frames import (
    ApprovalAnswer,
    ApprovalRequest,
    AskGrant,
    CallFailed,
    Commit,
    Committed,
    Finished,
    Heartbeat,
    Ready,
    SpawnRequest,
    ToolCallOpened,
    UpwardFrame,
)
from protocol.records import TextDelta, ThinkingDelta, ToolCallResult, ToolCallStart, ToolOutputLine
from supervisor.approval import Question
from supervisor.errors import StorageFailed
from supervisor.store.session_store import Ticket

if TYPE_CHECKING:
    from supervisor.agent_life import AgentLife
    from supervisor.run import Run
    from supervisor.worker_life import WorkerLife


_STREAMED = (TextDelta, ThinkingDelta, ToolOutputLine)
"""Lines that come by the thousand."""


class AgentFrames:
    """Handles the frames of one agent and keeps what a restart needs of them.

    ``results`` are the results that came since the last commit of results, by call id; ``last_text`` is what the agent
    said last in a whole reply; ``commits`` counts the commits of its life; ``external`` is the session that an external
    agent can go on with.
    """

    def __init__(self, run: Run, life: AgentLife, model: ModelSettings) -> None:
        self._run = run
        self._life = life
        self._agent_id = life.agent_id
        self._model = model
        self._last_commit: Ticket | None = None
        self._has_asked = False
        self.results: dict[str, ToolResult] = {}
        self.files: dict[str, str] = {}
        self.external = life.start.external
        self.iterations = 0
        self.commits = 0
        self.last_text = ""
        self.memory_bytes = 0

    def handle(self, frame: UpwardFrame) -> None:
        """Carry out ``frame``; never blocks. Raises `ProtocolError` for what no worker of ours sends."""
        run, agent_id = self._run, self._agent_id
        if isinstance(frame, _STREAMED):  # by far the most: not one look more than needed
            run.hub.publish(frame, agent_id)
            return
        match frame:
            case ToolCallOpened(call=call):
                run.tree.open_call(agent_id, call)
                run.hub.publish(ToolCallStart(id=call.id, name=call.name, args=checked_arguments(call)), agent_id)
            case ToolCallResult():
                self._close_call(frame)
            case AskGrant():
                self._ask(frame)
            case ApprovalRequest():
                self._ask_approval(frame)
            case CallFailed(grant=grant, rate_limited_ms=held):
                run.grants.fail(agent_id, grant, None if held is None else held / 1000)
            case Commit():
                self._commit(frame)
            case SpawnRequest():
                self._life.delegate(frame)
            case Heartbeat(memory_bytes=memory_bytes):
                self.memory_bytes = memory_bytes
            case Ready() | Finished():
                raise ProtocolError(f"{type(frame).__name__} came in the middle of a turn")
            case _:
                run.hub.publish(frame, agent_id)

    def _close_call(self, frame: ToolCallResult) -> None:
        if not self._run.tree.close_call(self._agent_id, frame.id, frame.name):
            raise ProtocolError(f"the call {frame.id!r} of {frame.name} ended without having begun")
        self.results[frame.id] = ToolResult(
            call_id=frame.id, name=frame.name, outcome=frame.outcome, output=frame.output
        )
        self._run.hub.publish(frame, self._agent_id)

    def _ask(self, frame: AskGrant) -> None:
        """Results are stored before the next model call; only the first call waits for no commit."""
        worker, ticket = self._life.worker, self._last_commit
        if ticket is None or ticket.done or not self._has_asked:
            self._has_asked = True
            self._run.grants.ask(self._agent_id, frame, self._model)
        else:
            self._life.start_soon(self._ask_when_stored, worker, frame, ticket)

    def _ask_approval(self, frame: ApprovalRequest) -> None:
        worker = self._life.worker
        call = next((call for call in self._run.tree[self._agent_id].open_calls if call.id == frame.call_id), None)
        if call is None:
            raise ProtocolError(f"approval was asked for the call {frame.call_id!r}, which is not open")

        def answer(denial: str | None) -> None:
            # A call of a worker that has died since is answered as interrupted.
            if worker is not None and worker is self._life.worker:
                worker.tell(ApprovalAnswer(call_id=call.id, denial=denial))

        self._run.approver.ask(Question(agent_id=self._agent_id, call=call, denial=frame.denial), answer)

    async def _ask_when_stored(self, worker: WorkerLife | None, frame: AskGrant, ticket: Ticket) -> None:
        # The worker that asked may be dead by now, and another one in its place.
        if await self._is_stored(ticket) and worker is self._life.worker:
            self._run.grants.ask(self._agent_id, frame, self._model)

    def _commit(self, frame: Commit) -> None:
        if frame.usage is not None:
            if frame.grant is None:
                raise ProtocolError("usage came without the grant it belongs to")
            self._run.grants.settle(self._agent_id, frame.grant, frame.usage)
            self._run.usage.add(self._agent_id, frame.usage)
        for message in frame.messages:
            if isinstance(message, AssistantMessage) and message.text:
                self.last_text = message.text
            if isinstance(message, ToolResult):
                self.results.clear()
                self._life.delegations.forget()
        self.commits += 1
        self.iterations = max(self.iterations, frame.iterations)
        self.files.update(frame.files)
        self.external = frame.external or self.external
        external = None if frame.external is None else (self._life.agent_name, frame.external)
        self._last_commit = self._run.store.append(
            self._agent_id, frame.messages, frame.usage, frame.iterations, external
        )
        self._life.start_soon(self._acknowledge, self._life.worker, frame.number, self._last_commit)

    async def _acknowledge(self, worker: WorkerLife | None, number: int, ticket: Ticket) -> None:
        if await self._is_stored(ticket) and worker is not None:
            worker.tell(Committed(number=number))

    async def _is_stored(self, ticket: Ticket) -> bool:
        try:
            await ticket.wait()
        except StorageFailed as error:
            self._run.storage_failed(error)
            return False
        return True


def checked_arguments(call: ToolCall) -> msgspec.Raw:
    """The call's arguments, decoded and encoded anew: no bytes of a worker reach the wire unread."""
    try:
        return msgspec.Raw(encode_json(msgspec.json.decode(call.arguments, type=dict[str, object])))
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the arguments of call {call.id!r} are no JSON object: {error}") from None
