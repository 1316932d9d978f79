"""One agent's life: from its worker's start to the agent's one terminal event.

Whatever happens to the worker, the agent ends exactly once, its children have ended before it, and every call it had
open has a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import trio

from protocol.codec import encode_json, upward_decoder
from protocol.content import AssistantMessage, Message, Outcome, ToolCall, ToolResult
from protocol.errors import ProtocolError
from protocol.frame_stream import FrameStream
from protocol.frames import (
    AskGrant,
    CallFailed,
    Cancel,
    Commit,
    Committed,
    DownwardFrame,
    Finished,
    History,
    Prompt,
    Ready,
    SpawnRequest,
    Start,
    ToolCallOpened,
    UpwardFrame,
)
from protocol.handshake import check_ready
from protocol.records import AgentCrashed, CrashCause, ToolCallResult, ToolCallStart
from supervisor.errors import StorageFailed
from supervisor.spawn import ExitStatus, WorkerProcess, spawn_worker

if TYPE_CHECKING:
    from supervisor.run import Run
    from supervisor.store.session_store import Ticket


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is to do: the worker's ``start``, the ``history`` it goes on from, and its ``prompt``."""

    start: Start
    history: Sequence[Message]
    prompt: str


class WorkerLife:
    """Drives one worker. ``ended`` is set once the agent is over, after ``ending`` says how."""

    def __init__(self, run: Run, assignment: Assignment) -> None:
        self._run = run
        self._assignment = assignment
        self.agent_id = assignment.start.agent_id
        self.agent_name = assignment.start.spec.name
        self.started_at = trio.current_time()
        self.admitted = trio.Event()
        self.ended = trio.Event()
        self.ending = Finished(outcome="error")
        self._finished: Finished | None = None
        self._cancelled = trio.Event()
        self._cancel_ending = Finished(outcome="cancelled")
        self._worker: WorkerProcess | None = None
        self._channel: FrameStream[UpwardFrame] | None = None
        self._last_commit: Ticket | None = None
        self._last_text = ""
        self._violation: ProtocolError | None = None
        self._closed_but_lived = False

    # -- what others may ask of it ------------------------------------------------------------------------------------

    def tell(self, message: DownwardFrame) -> None:
        """Send ``message`` to the worker, if there still is one."""
        if self._channel is not None:
            self._channel.put(message)

    def cancel(self, ending: Finished) -> None:
        """End the agent as ``ending`` says, unless it is over already. Its children are ended with it."""
        if not self._cancelled.is_set() and self._finished is None:
            self._cancel_ending = ending
            self._cancelled.set()
            self.admitted.set()

    def kill(self) -> None:
        """Kill the worker at once; the life goes on to its end as ever."""
        if self._worker is not None:
            self._worker.kill()

    # -- the life -----------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Wait for a place, run the worker, see the agent to its end. Never raises for what the worker does."""
        self._run.admit(self.agent_id)
        await self.admitted.wait()
        status: ExitStatus | None = None
        if not self._cancelled.is_set():
            try:
                self._worker = spawn_worker("agent")
            except OSError as error:
                self._crash("spawn_failed", None, f"the process could not be started: {error.strerror}")
            else:
                status = await self._run_worker(self._worker)
        await self._conclude(status)

    async def _run_worker(self, worker: WorkerProcess) -> ExitStatus:
        self._channel = channel = FrameStream(worker.stream, upward_decoder)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.collect_stderr)
            nursery.start_soon(channel.run_writer)
            nursery.start_soon(self._obey_cancel, worker)
            try:
                await self._converse(channel, nursery)
            except ProtocolError as error:
                # Nothing after a bad frame can be trusted.
                self._violation = error
                worker.kill()
            with trio.move_on_after(self._run.settings.cancel_grace) as grace:
                await worker.wait()
            self._closed_but_lived = grace.cancelled_caught
            worker.kill()
            status = await worker.wait()
            nursery.cancel_scope.cancel()
        await channel.aclose()
        return status

    async def _obey_cancel(self, worker: WorkerProcess) -> None:
        await self._cancelled.wait()
        self.tell(Cancel(reason=self._cancel_ending.message))
        await trio.sleep(self._run.settings.cancel_grace)
        worker.kill()

    async def _converse(self, channel: FrameStream[UpwardFrame], nursery: trio.Nursery) -> None:
        """Handle what the worker says until it closes its end or has finished."""
        is_greeted = False
        while self._finished is None and (frames := await channel.receive()):
            for frame in frames:
                if is_greeted:
                    self._handle(frame, nursery)
                else:
                    check_ready(frame)
                    is_greeted = True
                    self._assign()
            await self._run.hub.room()

    def _assign(self) -> None:
        self.tell(self._assignment.start)
        for message in self._assignment.history:
            self.tell(History(message=message))
        self.tell(Prompt(text=self._assignment.prompt))

    # -- frames -------------------------------------------------------------------------------------------------------

    def _handle(self, frame: UpwardFrame, nursery: trio.Nursery) -> None:
        run = self._run
        match frame:
            case ToolCallOpened(call=call):
                run.tree.open_call(self.agent_id, call)
                run.hub.publish(ToolCallStart(id=call.id, name=call.name, args=_checked(call)), self.agent_id)
            case ToolCallResult():
                run.tree.close_call(self.agent_id, frame.id, frame.name)
                run.hub.publish(frame, self.agent_id)
            case AskGrant():
                self._ask(frame, nursery)
            case CallFailed(grant=grant, rate_limited_ms=held):
                run.call_failed(self.agent_id, grant, None if held is None else held / 1000)
            case Commit():
                self._commit(frame, nursery)
            case SpawnRequest():
                run.start_child(self, frame)
            case Finished():
                self._finished = frame
            case Ready():
                raise ProtocolError("a worker greeted twice")
            case _:
                run.hub.publish(frame, self.agent_id)

    def _ask(self, frame: AskGrant, nursery: trio.Nursery) -> None:
        """Results are stored before the next model call; only the first call waits for no commit."""
        endpoint = self._assignment.start.model
        if frame.grant == 1 or self._last_commit is None or self._last_commit.done:
            self._run.ask(self.agent_id, frame, endpoint)
        else:
            nursery.start_soon(self._ask_when_stored, frame, self._last_commit)

    async def _ask_when_stored(self, frame: AskGrant, ticket: Ticket) -> None:
        if await self._is_stored(ticket):
            self._run.ask(self.agent_id, frame, self._assignment.start.model)

    def _commit(self, frame: Commit, nursery: trio.Nursery) -> None:
        for message in frame.messages:
            if isinstance(message, AssistantMessage) and message.text:
                self._last_text = message.text
        if frame.usage is not None and frame.grant is not None:
            self._run.count(self.agent_id, frame.grant, frame.usage)
        self._last_commit = self._run.store.append(self.agent_id, frame.messages, frame.usage, frame.iterations)
        nursery.start_soon(self._acknowledge, frame.number, self._last_commit)

    async def _acknowledge(self, number: int, ticket: Ticket) -> None:
        if await self._is_stored(ticket):
            self.tell(Committed(number=number))

    async def _is_stored(self, ticket: Ticket) -> bool:
        try:
            await ticket.wait()
        except StorageFailed as error:
            self._run.storage_failed(error)
            return False
        return True

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _conclude(self, status: ExitStatus | None) -> None:
        """End the children, answer the open calls, write the terminal event."""
        if self._finished is not None and not (self._cancelled.is_set() and self._finished.outcome != "complete"):
            self.ending = self._finished
        elif self._cancelled.is_set():
            self.ending = self._cancel_ending
        elif status is not None:
            self._crash(*self._cause_of_death(status))
        await self._run.end_children(self.agent_id)
        outcome: Outcome = "interrupted" if self.ending.outcome == "crashed" else "cancelled"
        self._answer_open_calls(outcome)
        self._run.agent_over(self, is_dead=self._finished is None and not self._cancelled.is_set())
        self.ended.set()

    def _answer_open_calls(self, outcome: Outcome) -> None:
        """The worker can't say any more how its calls ended; what it had already stored stays as it is."""
        results: list[Message] = []
        for call in self._run.tree[self.agent_id].open_calls:
            output = f"{outcome}: the agent ended before this call did"
            results.append(ToolResult(call_id=call.id, name=call.name, outcome=outcome, output=output))
            record = ToolCallResult(id=call.id, name=call.name, outcome=outcome, output=output, elapsed_ms=0)
            self._run.tree.close_call(self.agent_id, call.id, call.name)
            self._run.hub.publish(record, self.agent_id)
        if results:
            self._run.store.append(self.agent_id, tuple(results), None, 0)

    def _crash(self, cause: CrashCause, status: ExitStatus | None, detail: str) -> None:
        record = AgentCrashed(
            agent_name=self._run.tree[self.agent_id].agent_name,
            agent_id=self.agent_id,
            cause=cause,
            restart=None,
            signal=status.signal if status else None,
            exit_code=status.code if status else None,
            detail=detail,
        )
        self.ending = Finished(outcome="crashed", code="agent_crashed", message=_in_words(record))
        self._run.hub.publish(record, self.agent_id)

    def _cause_of_death(self, status: ExitStatus) -> tuple[CrashCause, ExitStatus, str]:
        if self._violation is not None:
            return "protocol_error", status, str(self._violation)
        if self._closed_but_lived:
            return "channel_closed", status, "it closed its channel and had to be killed"
        if status.signal is not None:
            return "signal", status, ""
        last_line = self._worker.stderr_tail.strip().rpartition("\n")[2] if self._worker else ""
        return "exited_early", status, last_line

    @property
    def last_text(self) -> str:
        """What the agent said last in a whole reply."""
        return self._last_text

    @property
    def elapsed_ms(self) -> int:
        """Time since the agent was asked for."""
        return round((trio.current_time() - self.started_at) * 1000)


def _checked(call: ToolCall) -> msgspec.Raw:
    """The call's arguments, decoded and encoded anew: no bytes of a worker reach the wire unread."""
    try:
        return msgspec.Raw(encode_json(msgspec.json.decode(call.arguments, type=dict[str, object])))
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the arguments of call {call.id!r} are no JSON object: {error}") from None


def _in_words(record: AgentCrashed) -> str:
    if record.signal is not None:
        how = f"its process was ended by signal {record.signal}"
    elif record.exit_code is not None:
        how = f"its process exited early with code {record.exit_code}"
    else:
        return record.detail
    return f"{how} ({record.detail})" if record.detail else how
