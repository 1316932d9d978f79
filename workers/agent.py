"""The shell of our own agent: carries out what `workers.core.turn` asks for, over the channel to the supervisor."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import trio

from protocol.codec import clean_text, downward_decoder
from protocol.content import ToolCall
from protocol.errors import ProtocolError
from protocol.frame_stream import FrameStream
from protocol.frames import (
    FRAMES_VERSION,
    ApprovalAnswer,
    Cancel,
    ChildResult,
    Commit,
    Committed,
    DownwardFrame,
    Finished,
    GrantAnswer,
    Ready,
)
from protocol.records import TextDelta, ThinkingDelta, ToolOutputLine
from protocol.tool_names import DELEGATING_TOOL, ToolEffect
from workers import ceilings
from workers.assignment import Assignment, receive_assignment
from workers.core.effects import CallModel, Effect, RunTool, Send, TakeUp, Wait
from workers.core.transcript import Transcript
from workers.core.turn import Turn
from workers.delegations import Delegations
from workers.heartbeat import send_heartbeats
from workers.providers import table as providers
from workers.providers.provider import ModelRequest, Provider, ProviderError, ToolSchema
from workers.tools.arguments import schemas
from workers.tools.call import run_call
from workers.tools.file_memory import FileMemory
from workers.tools.table import TOOLS_BY_NAME
from workers.tools.tool import ToolContext, ToolOutput

Step = Callable[[], list[Effect]]


async def run_agent(stream: trio.SocketStream) -> None:
    """Greet, take up the assignment, run its turn and say how it ended.

    A `Cancel` ends the turn at once: running tools are killed, the model call is dropped. The end of the stream ends
    the process (see `workers.start`).
    """
    channel: FrameStream[DownwardFrame] = FrameStream(stream, downward_decoder)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run_writer)
        channel.put(Ready(version=FRAMES_VERSION, pid=os.getpid()))
        assignment, early = await receive_assignment(channel)
        ceilings.apply(assignment.start.ceilings)
        shell = AgentShell(channel, assignment)
        nursery.start_soon(shell.read_commands, early)
        nursery.start_soon(send_heartbeats, channel, assignment.start.heartbeat)
        await shell.run_turn()
        await channel.flush()
        nursery.cancel_scope.cancel()


class AgentShell:
    """Runs the effects of a turn. Whatever takes time is a task that posts the turn's next input when it is done."""

    def __init__(self, channel: FrameStream[DownwardFrame], assignment: Assignment) -> None:
        start, resume = assignment.start, assignment.resume
        self._channel = channel
        self._tools = {name: TOOLS_BY_NAME[name] for name in start.tools}
        effects: dict[str, ToolEffect] = {name: tool.effect for name, tool in self._tools.items()}
        self._turn = Turn(start, self._describe_tools(start.agents), effects, Transcript(assignment.history))
        begin, resumed = self._turn.begin, self._turn.resume
        self._first = partial(begin, assignment.prompt) if resume is None else partial(resumed, resume)
        self._root = Path(start.project_root)
        self._start = start
        self._files = FileMemory(resume.files if resume else None)
        self._delegations = Delegations(channel.put, resume.requests if resume else 0)
        self._provider: Provider = providers.load(start.model)
        self._inputs: deque[Step] = deque()
        self._has_input = trio.Event()
        self._turn_scope = trio.CancelScope()

    async def read_commands(self, early: list[DownwardFrame]) -> None:
        """Take what the supervisor says, ``early`` first, until the stream ends, which cancels the turn."""
        frames = early
        while True:
            for frame in frames:
                self._take(frame)
            frames = await self._channel.receive()
            if not frames:
                break
        self._turn_scope.cancel()

    async def run_turn(self) -> None:
        """Run the turn to its end; a cancelled one ends as ``cancelled``."""
        with self._turn_scope:
            async with trio.open_nursery() as tasks:
                self._post(self._first)
                while not self._turn.ended:
                    await self._has_input.wait()
                    self._has_input = trio.Event()
                    while self._inputs:
                        for effect in self._inputs.popleft()():
                            await self._carry_out(effect, tasks)
                    await self._channel.room()
                tasks.cancel_scope.cancel()
            with trio.move_on_after(0.5):
                await self._provider.aclose()
        if not self._turn.ended:
            self._channel.put(Finished(outcome="cancelled"))

    def _describe_tools(self, agents: dict[str, str]) -> tuple[ToolSchema, ...]:
        """What the model is told of its tools; the delegating one names the agents that there are."""
        known = "\n".join(f"- {name}: {description}" for name, description in sorted(agents.items()))
        return tuple(
            msgspec.structs.replace(schema, description=f"{schema.description}\nThe agents:\n{known}")
            if schema.name == DELEGATING_TOOL
            else schema
            for schema in schemas(self._tools.values())
        )

    # -- inputs -------------------------------------------------------------------------------------------------------

    def _post(self, step: Step) -> None:
        self._inputs.append(step)
        self._has_input.set()

    def _take(self, frame: DownwardFrame) -> None:
        match frame:
            case GrantAnswer():
                self._post(partial(self._turn.granted, frame))
            case ApprovalAnswer(call_id=call_id, denial=denial):
                self._post(partial(self._turn.call_answered, call_id, denial))
            case Committed(number=number):
                self._post(partial(self._turn.committed, number))
            case ChildResult():
                self._delegations.take(frame)
            case Cancel():
                self._turn_scope.cancel()
            case _:
                raise ProtocolError(f"{type(frame).__name__} came in the middle of a turn")

    # -- effects ------------------------------------------------------------------------------------------------------

    async def _carry_out(self, effect: Effect, tasks: trio.Nursery) -> None:
        match effect:
            case Send(Commit() as commit):
                self._channel.put(msgspec.structs.replace(commit, files=self._files.take_news()))
            case Send(message):
                self._channel.put(message)
            case CallModel(request):
                tasks.start_soon(self._call_model, request)
            case Wait(seconds):
                tasks.start_soon(self._wait, seconds)
            case RunTool(index, call):
                await tasks.start(self._run_tool, index, call)
            case TakeUp(index, _, request):
                tasks.start_soon(self._take_up, index, request)

    async def _wait(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self._post(self._turn.waited)

    async def _call_model(self, request: ModelRequest) -> None:
        deltas = self if request.purpose == "reply" else _NoDeltas()
        try:
            reply = await self._provider.reply(request, deltas)
        except ProviderError as error:
            self._post(partial(self._turn.failed, error))
        else:
            self._post(partial(self._turn.replied, reply))

    def text(self, piece: str) -> None:
        """A piece of the reply goes out at once."""
        self._channel.put(TextDelta(text=piece))

    def thinking(self, piece: str) -> None:
        """A piece of the reasoning goes out at once."""
        self._channel.put(ThinkingDelta(text=piece))

    async def _run_tool(
        self, index: int, call: ToolCall, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run a call; counts as started at once, a delegation when its request is out: so children keep call order."""
        started = trio.current_time()
        has_started = _Once(task_status.started)
        if self._tools[call.name].effect != "delegate":
            has_started()
        context = ToolContext(
            root=self._root,
            files=self._files,
            emit_line=partial(self._emit_line, call.id),
            wait_for_room=self._channel.room,
            delegate=partial(self._delegate, call.id, has_started),
            emit=self._channel.put,
            agents=self._start.agents,
            variables=self._start.pass_env,
            environment=self._start.environment,
        )
        output = await run_call(self._tools[call.name], call, context)
        has_started()
        self._post_result(index, output, started)

    async def _take_up(self, index: int, request: int) -> None:
        """Wait for a sub-agent that an earlier worker of this agent asked for."""
        started = trio.current_time()
        self._post_result(index, await self._delegations.result(request), started)

    def _post_result(self, index: int, output: ToolOutput, started: float) -> None:
        elapsed_ms = round((trio.current_time() - started) * 1000)
        self._post(partial(self._turn.tool_done, index, output.outcome, clean_text(output.output), elapsed_ms))

    def _emit_line(self, call_id: str, line: str, is_stderr: bool) -> None:
        self._channel.put(ToolOutputLine(id=call_id, line=clean_text(line), is_stderr=is_stderr))

    async def _delegate(
        self, call_id: str, has_started: Callable[[], None], agent_name: str, prompt: str
    ) -> ToolOutput:
        request = self._delegations.ask(call_id, agent_name, prompt)
        has_started()
        return await self._delegations.result(request)


class _Once:
    """Calls ``function`` the first time it is called, and then no more."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function

    def __call__(self) -> None:
        function, self._function = self._function, None
        if function is not None:
            function()


class _NoDeltas:
    """Where the pieces of a summary go: they are no part of the reply."""

    def text(self, piece: str) -> None:
        """Dropped."""

    def thinking(self, piece: str) -> None:
        """Dropped."""
