"""One agent's life: from the wait for a place to its one terminal event, over as many workers as it takes.

Whatever happens to its workers, the agent ends exactly once, its children have ended before it, and every call it had
open has a result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVarTuple, Unpack

import msgspec
import trio

from protocol.content import Message, Outcome
from protocol.frames import ChildResult, DownwardFrame, Finished, History, Prompt, Resume, SpawnRequest, Start
from protocol.records import CrashCause, ToolCallResult, ToolCallStart
from supervisor.agent_frames import AgentFrames, checked_arguments
from supervisor.core.open_delegations import OpenDelegations
from supervisor.core.restart import RestartIntensity
from supervisor.core.resumption import plan_resumption, unfinished_result
from supervisor.errors import StorageFailed
from supervisor.worker_life import WorkerEnd, WorkerLife

if TYPE_CHECKING:
    from supervisor.run import Run

Arguments = TypeVarTuple("Arguments")


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is to do: the worker's ``start``, the ``history`` it goes on from, and its ``prompt``."""

    start: Start
    history: Sequence[Message]
    prompt: str


class AgentLife:
    """Drives one agent; ``worker`` is the present one.

    ``ended`` is set once the agent is over, after ``ending`` says how.
    """

    def __init__(self, run: Run, assignment: Assignment, nursery: trio.Nursery) -> None:
        self._run = run
        self._nursery = nursery
        self._assignment = assignment
        self._place = trio.Event()
        self._cancel_ending: Finished | None = None
        self.worker: WorkerLife | None = None
        self._restarts = RestartIntensity()
        self.delegations = OpenDelegations()
        self.start = assignment.start
        self.agent_id = assignment.start.agent_id
        self.agent_name = assignment.start.spec.name
        self.started_at = trio.current_time()
        self.frames = AgentFrames(run, self, assignment.start.model)
        self.ending = Finished(outcome="error")
        self._ended_at: float | None = None
        self.ended = trio.Event()

    # -- what others may ask of it ------------------------------------------------------------------------------------

    def admitted(self) -> None:
        """It has a place among the agents that run at once."""
        self._place.set()

    def tell(self, message: DownwardFrame) -> None:
        """Send ``message`` to the worker, if there is one."""
        if self.worker is not None:
            self.worker.tell(message)

    def cancel(self, ending: Finished) -> None:
        """End the agent as ``ending`` says, unless it is over already. Its children are ended with it."""
        if self._cancel_ending is None and not self.ended.is_set():
            self._cancel_ending = ending
            self._place.set()
            if self.worker is not None:
                self.worker.cancel(ending.message)

    def kill(self) -> None:
        """Kill the worker at once; the life goes on as after any death of a worker."""
        if self.worker is not None:
            self.worker.kill()

    def start_soon(self, task: Callable[[Unpack[Arguments]], Awaitable[None]], *args: *Arguments) -> None:
        """Run ``task`` beside the life; it ends with the run."""
        self._nursery.start_soon(task, *args)

    @property
    def _is_external(self) -> bool:
        """Whether a program of somebody else's does the work: without a session that it keeps, all is lost with it."""
        return self.start.spec.acp is not None

    @property
    def pid(self) -> int | None:
        """The process of the present worker."""
        return None if self.worker is None else self.worker.pid

    def delegate(self, request: SpawnRequest) -> None:
        """The worker wants a sub-agent."""
        self.delegations.ask(request)
        self._run.start_child(self, request)

    def hand_back(self, result: ChildResult) -> None:
        """A sub-agent is over. The result is kept until its call is committed: the worker may die before that."""
        self.delegations.end(result)
        self.tell(result)

    # -- the life -----------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Wait for a place, run workers until one finishes the turn or no other may be started, conclude."""
        end = WorkerEnd()
        while True:
            await self._wait_for_place()
            if self._cancel_ending is not None:
                break
            # Made at the last moment: children may have ended while there was no place.
            assignment = await self._resume() if self.frames.commits else self._begin()
            if assignment is None:
                break
            end = await self._run_worker(assignment)
            if end.cause is None or self._cancel_ending is not None:
                break
            restart = self._next_restart(end.cause)
            name = self._run.tree[self.agent_id].agent_name
            self._run.hub.publish(end.as_record(name, self.agent_id, restart), self.agent_id)
            if restart is None:
                break
            self._run.tree.restart(self.agent_id)
        self.ending = self._decide_ending(end)
        await self._conclude()

    async def _wait_for_place(self) -> None:
        self._place = trio.Event()
        if self._cancel_ending is None:
            self._run.grants.admit(self.agent_id, self)
            await self._place.wait()
        await self._run.admission.wait_for_memory(self.agent_id, lambda: self._cancel_ending is not None)

    async def _run_worker(self, assignment: Sequence[DownwardFrame]) -> WorkerEnd:
        times, kind = self._run.settings.worker_times, "acp" if self._is_external else "agent"
        self.worker = worker = WorkerLife(self.frames.handle, self._run.hub.room, times, kind)
        self._run.tree.set_state(self.agent_id, "running")
        if any(child.is_live for child in self._run.tree.children(self.agent_id)):
            # A restarted agent waits for its children first: it must not hold the place that one of them needs.
            self._run.wait_for_children(self.agent_id)
        try:
            return self._without_key(await self._run.cgroups.run_worker(worker, self._run.spawner, assignment))
        finally:
            self.worker = None

    def _without_key(self, end: WorkerEnd) -> WorkerEnd:
        """A worker's own last words may hold anything."""
        key = self.start.model.api_key
        return msgspec.structs.replace(end, detail=end.detail.replace(key, "[key]")) if key else end

    def _next_restart(self, cause: CrashCause) -> int | None:
        """The number of the restart, if there is one. What the dead worker held is given up."""
        under_way = self._run.grants.leave(self.agent_id)
        self._run.count_uncertain(self.agent_id, under_way)
        settings = self._run.settings
        if not settings.restart or (self.start.is_main and not settings.restart_main):
            return None
        if self._is_external and self.frames.external is None:
            return None
        return self._restarts.next(trio.current_time(), cause, self.frames.commits)

    def _begin(self) -> list[DownwardFrame]:
        """What a worker is told of a turn of which nothing is committed."""
        return [self.start, *map(_as_history, self._assignment.history), Prompt(text=self._assignment.prompt)]

    async def _resume(self) -> list[DownwardFrame] | None:
        """What a new worker is told: all that is committed, and what became of the open calls. None: can't be read."""
        try:
            history = await self._run.read_history(self.agent_id)
        except StorageFailed as error:
            self._run.storage_failed(error)
            return None
        node = self._run.tree[self.agent_id]
        plan = plan_resumption(history, self.frames.results, node.open_calls, self.delegations.requests)
        for call in plan.opened:
            self._run.tree.open_call(self.agent_id, call)
            start = ToolCallStart(id=call.id, name=call.name, args=checked_arguments(call))
            self._run.hub.publish(start, self.agent_id)
        for result in plan.ended:
            self._close(result.call_id, result.name, result.outcome, result.output)
            self.frames.results[result.call_id] = result  # told, but not committed yet
        resume = Resume(
            iterations=self.frames.iterations,
            results=plan.results,
            delegations=plan.delegations,
            files=self.frames.files,
            requests=self.delegations.last_request,
        )
        arrived = self.delegations.results(plan.delegations.values())
        begin = msgspec.structs.replace(self.start, external=self.frames.external)
        return [begin, *map(_as_history, history), resume, *arrived]

    # -- the end ------------------------------------------------------------------------------------------------------

    def _decide_ending(self, end: WorkerEnd) -> Finished:
        """A turn that was finished before it could be cancelled is finished."""
        if end.finished is not None and (self._cancel_ending is None or end.finished.outcome == "complete"):
            return end.finished
        if self._cancel_ending is not None:
            return self._cancel_ending
        return Finished(outcome="crashed", code="agent_crashed", message=end.in_words())

    async def _conclude(self) -> None:
        """End the children, answer the open calls, write the terminal event."""
        await self._run.end_children(self.agent_id)
        outcome: Outcome = "interrupted" if self.ending.outcome == "crashed" else "cancelled"
        results: list[Message] = list(self.frames.results.values())
        for call in self._run.tree[self.agent_id].open_calls:
            result = unfinished_result(call, outcome)
            results.append(result)
            self._close(call.id, call.name, outcome, result.output)
        if results:
            self._run.store.append(self.agent_id, tuple(results), None, 0)
        self._ended_at = trio.current_time()
        self._run.agent_over(self)
        self.ended.set()

    def _close(self, call_id: str, name: str, outcome: Outcome, output: str) -> None:
        """Tell the client how a call ended that its worker can't tell of any more."""
        self._run.tree.close_call(self.agent_id, call_id, name)
        record = ToolCallResult(id=call_id, name=name, outcome=outcome, output=output, elapsed_ms=0)
        self._run.hub.publish(record, self.agent_id)

    @property
    def elapsed_ms(self) -> int:
        """Time since the agent was asked for, up to its end."""
        return round(((self._ended_at or trio.current_time()) - self.started_at) * 1000)


def _as_history(message: Message) -> DownwardFrame:
    return History(message=message)
