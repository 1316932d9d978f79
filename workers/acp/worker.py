"""The worker of an external agent: between its process, which is this worker's child, and the supervisor.

The agent calls its own model. One grant is asked for all that it does with a prompt, so that the limits of the run hold
before it begins, and is settled with what it reports; where it reports nothing it counts nothing, and that is told.
Source: the contract of external agents; the v1 wire contract, "Lines".
"""

from __future__ import annotations

import os
from pathlib import Path

import trio

from protocol.codec import downward_decoder
from protocol.content import Message, ToolCall, UserMessage
from protocol.errors import ProtocolError
from protocol.frame_stream import FrameStream
from protocol.frames import (
    FRAMES_VERSION,
    AskGrant,
    CallFailed,
    Cancel,
    Commit,
    Committed,
    DownwardFrame,
    Finished,
    GrantAnswer,
    Ready,
    ToolCallOpened,
)
from protocol.records import Info, TextDelta, ToolCallResult, Warn
from protocol.usage import Usage
from workers import ceilings
from workers.acp.command import AcpProcessSpec
from workers.acp.driver import Report
from workers.acp.effects import PermissionAsked, PromptEnded, SessionLost, SessionOpened, Updated
from workers.acp.errors import AcpError
from workers.acp.held_output import HeldSandbox
from workers.acp.kept_session import KeptSession
from workers.acp.permission import PermissionOption, headless_choice
from workers.acp.request import AcpRunRequest
from workers.acp.spoken import GO_ON, SpokenTurn, bounded, pieces, whole_prompt
from workers.acp.translate import Translated, UpdateTranslator
from workers.acp.turn import AcpTurn
from workers.acp.verdict import ending_of
from workers.assignment import Assignment, receive_assignment
from workers.heartbeat import send_heartbeats
from workers.sandbox.local_sandbox import LocalSandbox

BYTES_OF_A_TOKEN = 4
"""For the estimate of a prompt: nobody here knows how the agent's model counts."""
_GRANT = 1
_LONGEST_LAST_WORDS = 2_000


async def run_external_agent(stream: trio.SocketStream) -> None:
    """Greet, take up the assignment, have the agent carry it out and say how it ended.

    A `Cancel` reaches the agent as ``session/cancel``; one that does not end its prompt in 500 ms is terminated. The
    end of the stream ends the process (see `workers.start`), and with it the agent.
    """
    channel: FrameStream[DownwardFrame] = FrameStream(stream, downward_decoder)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run_writer)
        channel.put(Ready(version=FRAMES_VERSION, pid=os.getpid()))
        assignment, early = await receive_assignment(channel)
        ceilings.apply(assignment.start.ceilings)
        agent = ExternalAgent(channel, assignment)
        nursery.start_soon(agent.read_commands, early)
        nursery.start_soon(send_heartbeats, channel, assignment.start.heartbeat)
        channel.put(await agent.run())
        await channel.flush()
        nursery.cancel_scope.cancel()


class ExternalAgent:
    """One prompt of one external agent, which goes on with its session of before where it can.

    A turn that is resumed goes on with a note in the place of its prompt.
    """

    def __init__(self, channel: FrameStream[DownwardFrame], assignment: Assignment) -> None:
        if assignment.start.spec.acp is None:
            raise ProtocolError("the worker of an external agent was started without the agent's command")
        self._channel = channel
        self._start = start = assignment.start
        self._command = assignment.start.spec.acp
        self._history = assignment.history
        self._prompt = assignment.prompt if assignment.resume is None else GO_ON
        self._kept = KeptSession(start.project_root, assignment.history, start.external)
        self._translator = UpdateTranslator()
        self._spoken = SpokenTurn()
        self._has_refused = False
        self._turn: AcpTurn | None = None
        self._commits = 0
        self._usage: Usage | None = None
        self._grant: GrantAnswer | None = None
        self._cancel = trio.Event()
        self._woken = trio.Event()

    async def read_commands(self, early: list[DownwardFrame]) -> None:
        """Take what the supervisor says, ``early`` first, until the stream ends, which cancels the turn."""
        frames = early
        while True:
            for frame in frames:
                self._take(frame)
            frames = await self._channel.receive()
            if not frames:
                break
        self._stop()

    async def run(self) -> Finished:
        """Run the prompt to its end."""
        prompt = whole_prompt(self._start.spec.system_prompt, self._history, self._prompt)
        self._commit([UserMessage(text=self._prompt)])
        estimate = len(prompt.encode(errors="replace")) // BYTES_OF_A_TOKEN + 1
        self._channel.put(AskGrant(grant=_GRANT, purpose="reply", prompt_tokens=estimate, max_tokens=None))
        await self._woken.wait()
        if self._grant is None:
            return Finished(outcome="cancelled", code="cancelled", message="the agent was cancelled before it began")
        if self._grant.decision == "stop":
            return Finished(outcome="limit", code=self._grant.code, message=self._grant.message)
        self._warn_of_trust()
        error = await self._run_turn(prompt)
        self._put_all(self._translator.end_prompt(trio.current_time(), cancelled=self._cancel.is_set()))
        self._settle()
        response = self._spoken.reply
        if error is None:
            # To a client the reply is what came after the last call; who delegated wants to read something.
            whole = response or ("" if self._start.is_main else self._spoken.all_text)
            return Finished(outcome="complete", response=whole)
        if last_words := error.exec_output_tail.stderr.strip()[-_LONGEST_LAST_WORDS:]:
            self._channel.put(Warn(message=f"{self._start.spec.name} wrote on its standard error: {last_words}"))
        return ending_of(error, response, is_our_cancel=self._cancel.is_set(), has_refused=self._has_refused)

    # -- what the supervisor says -------------------------------------------------------------------------------------

    def _take(self, frame: DownwardFrame) -> None:
        match frame:
            case GrantAnswer():
                self._grant = frame
                self._woken.set()
            case Cancel():
                self._stop()
            case Committed():
                pass
            case _:
                raise ProtocolError(f"{type(frame).__name__} came in the middle of a turn of an external agent")

    def _stop(self) -> None:
        self._cancel.set()
        self._woken.set()

    # -- the turn -----------------------------------------------------------------------------------------------------

    async def _run_turn(self, prompt: str) -> AcpError | None:
        root = Path(self._start.project_root)
        passed_on = {name: os.environ[name] for name in self._start.pass_env if name in os.environ}
        request = AcpRunRequest(
            command=AcpProcessSpec((self._command.command, *self._command.args), self._command.env),
            prompt=prompt,
            cwd=root,
            env={**passed_on, **self._start.environment},
            sandbox=HeldSandbox(LocalSandbox(root), self._channel.room),
            timeout=self._command.timeout,
            cancel=self._cancel,
        )
        earlier = self._kept.way_on(self._prompt)
        self._turn = AcpTurn(request, on_report=self._report, relays_permission=True, earlier=earlier)
        try:
            await self._turn.run()
        except AcpError as error:
            return error
        return None

    def _report(self, report: Report) -> None:
        assert self._turn is not None, "only a turn that runs reports"
        now = trio.current_time()
        match report:
            case SessionLost(reason):
                lost = f"{self._start.spec.name} could not go on with its session"
                why = self._turn.fit_to_show(reason)
                self._channel.put(Info(message=f"{lost}, so it begins a new one and is told what was said: {why}"))
            case SessionOpened() as opened:
                self._kept.opened(opened)
                self._commit([])
            case Updated(update):
                self._took_prompt()
                self._put_all(self._translator.take(update, now))
            case PermissionAsked(key, options, tool_call):
                self._put_all(self._translator.permission_asked(tool_call, now))
                is_allowed = self._start.trust == "auto"
                if not is_allowed:
                    self._has_refused = True
                    self._translator.permission_denied(tool_call)
                choice = headless_choice(options) if is_allowed else _refusing_choice(options)
                self._turn.answer_permission(key, choice)
            case PromptEnded(result):
                self._took_prompt()
                self._put_all(self._translator.end_prompt(now, cancelled=self._cancel.is_set()))
                self._count(self._translator.usage(result))
            case _:
                pass  # a question that was withdrawn had been answered already

    def _took_prompt(self) -> None:
        self._kept.took_prompt()
        self._commit([])

    def _count(self, usage: Usage | None) -> None:
        if usage is None:
            name = self._start.spec.name
            self._channel.put(Info(message=f"{name} does not report what it used: its model calls are not counted"))
        self._usage = (self._usage or Usage()) + (usage or Usage())

    def _warn_of_trust(self) -> None:
        trust, name = self._start.trust, self._start.spec.name
        if trust != "auto":
            refused = f"{name} is an external agent: with trust {trust} all that it asks leave for is refused"
            self._channel.put(Warn(message=f"{refused}, but what it does without asking is not held back"))

    # -- what the supervisor is told ----------------------------------------------------------------------------------

    def _put_all(self, told: list[Translated]) -> None:
        for record in told:
            match record:
                case TextDelta(text=text):
                    self._spoken.say(text)
                    for piece in pieces(text):
                        self._channel.put(TextDelta(text=piece))
                case ToolCallOpened(call=call):
                    self._open(bounded(call))
                case ToolCallResult():
                    self._channel.put(record)
                    self._commit(self._spoken.close(record))
                case _:
                    self._channel.put(record)

    def _open(self, call: ToolCall) -> None:
        self._spoken.open(call)
        self._channel.put(ToolCallOpened(call=call))

    def _commit(self, messages: list[Message], usage: Usage | None = None) -> None:
        """Commit what there is, if there is anything new."""
        self._kept.committed(len(messages))
        external = self._kept.news()
        if messages or usage is not None or external is not None:
            self._commits += 1
            commit = Commit(
                number=self._commits,
                messages=tuple(messages),
                usage=usage,
                grant=None if usage is None else _GRANT,
                iterations=0 if usage is None else 1,
                external=external,
            )
            self._channel.put(commit)

    def _settle(self) -> None:
        """The last commit; a prompt without an answer has used nobody knows what."""
        if self._usage is None:
            self._channel.put(CallFailed(grant=_GRANT))
        self._commit(self._spoken.finish(), self._usage)


def _refusing_choice(options: tuple[PermissionOption, ...]) -> str | None:
    """The option that says no to this call, so that the agent may try something else; None where none is offered."""
    for kind in ("reject_once", "reject_always"):
        for option in options:
            if option.kind == kind:
                return option.option_id
    return None
