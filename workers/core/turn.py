"""One turn of an agent, without IO: from a prompt to its end.

The machine takes one input at a time and returns the effects to carry out, in order. It knows nothing of processes,
parents or clocks. Its phases:

    begin -> (compaction) -> model call -> commit -> tool round -> commit -> (compaction) -> model call -> ... -> end

A reply is committed, with its usage and the starts of its calls, before any of them runs; their results are committed
before the next model call. Source: design notes on commits; the wire contract, "Loop guard, cap, compaction".
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.content import AssistantMessage, Outcome, UserMessage
from protocol.frames import Finished, GrantAnswer, Resume, Start
from protocol.records import AgentOutcome, ContextUsage, LoopCapRequest, TextDelta, Warn
from protocol.tool_names import ToolEffect
from workers.core.compactor import Compactor
from workers.core.effects import Effect, Send
from workers.core.limits import CallCap
from workers.core.loop_guard import LoopGuard
from workers.core.model_call import CallResult, ModelCall, Numbering
from workers.core.retry import RetrySchedule
from workers.core.tool_round import ToolRound
from workers.core.transcript import Transcript
from workers.providers.provider import ModelReply, ModelRequest, ProviderError, ToolSchema

_AT_CAP = "the cap of {cap} model calls was reached"


class Turn:
    """The turn of one agent. ``ended`` is true once a `Finished` was among the effects.

    ``tools`` and ``effects`` belong together: the schemas the model sees, and what each tool may do to the world.
    """

    def __init__(
        self, start: Start, tools: tuple[ToolSchema, ...], effects: Mapping[str, ToolEffect], transcript: Transcript
    ) -> None:
        self._start = start
        self._tools = tools
        self._effects = effects
        self._transcript = transcript
        self._guard = LoopGuard()
        self._numbering = Numbering()
        self._retry = RetrySchedule(first_delay=start.retry_delay)
        self._compactor = Compactor(start, tools, transcript, self._numbering)
        self._cap = CallCap(start.max_iterations, is_main=start.is_main)
        self._overflowed = False
        self._call: ModelCall | None = None
        self._round: ToolRound | None = None
        self._awaited_commit = 0
        self.ended = False

    # -- inputs -------------------------------------------------------------------------------------------------------

    def begin(self, prompt: str) -> list[Effect]:
        """Take up ``prompt``. Calls that an earlier process left open are answered as interrupted first."""
        repaired = self._transcript.repair()
        message = UserMessage(text=prompt)
        self._transcript.append(message)
        return [self._numbering.commit((*repaired, message)), *self._prepare()]

    def resume(self, resume: Resume) -> list[Effect]:
        """Go on with the turn that an earlier worker began, from what it had committed."""
        self._numbering.iterations = resume.iterations
        self._cap.restore(resume.iterations)
        self._guard.restore(self._transcript.calls_of_turn())
        if calls := self._transcript.unanswered:
            self._round = ToolRound(calls, self._guard, self._start.trust, self._effects, self._start.project_root)
            return [*self._round.resume(resume.results, resume.delegations), *self._after_tools()]
        last = self._transcript.items[-1]
        if isinstance(last, AssistantMessage):
            # Its predecessor died between the commit of the final reply and saying so; with it the text went void that
            # a client has.
            said = [Send(TextDelta(text=last.text))] if self._start.is_main else []
            return [*said, *self._end_with(last.text)]
        return self._prepare()

    def granted(self, answer: GrantAnswer) -> list[Effect]:
        """A grant was answered."""
        return self._after_call(self._current_call.granted(answer))

    def replied(self, reply: ModelReply) -> list[Effect]:
        """The model call under way brought a whole reply."""
        return self._after_call(self._current_call.replied(reply))

    def failed(self, error: ProviderError) -> list[Effect]:
        """The model call under way failed."""
        return self._after_call(self._current_call.failed(error))

    def waited(self) -> list[Effect]:
        """The wait before a resend is over."""
        return self._current_call.waited()

    def committed(self, number: int) -> list[Effect]:
        """All commits up to ``number`` are stored: tools that waited for that may run."""
        if not self._awaited_commit or number < self._awaited_commit or self._round is None:
            return []
        self._awaited_commit = 0
        return [*self._round.begin(), *self._after_tools()]

    def call_answered(self, call_id: str, denial: str | None) -> list[Effect]:
        """Somebody said whether the call ``call_id`` may run; ``denial`` says why not."""
        return [] if self._round is None else [*self._round.answered(call_id, denial), *self._after_tools()]

    def tool_done(self, index: int, outcome: Outcome, output: str, elapsed_ms: int) -> list[Effect]:
        """Call ``index`` of the running round ended."""
        assert self._round is not None
        return [*self._round.done(index, outcome, output, elapsed_ms), *self._after_tools()]

    # -- before a model call ------------------------------------------------------------------------------------------

    def _prepare(self) -> list[Effect]:
        """What comes before a send: the cap, then the context, then the call itself."""
        self._overflowed = False
        if not self._cap.is_reached(self._numbering.iterations):
            return self._compact_or_send()
        cap = self._cap.cap
        request = Send(LoopCapRequest(cap=cap, recent_tools=self._transcript.recent_tools(5)))
        match self._cap.answer():
            case "extended":
                return [request, *self._compact_or_send()]
            case "end":
                return [request, *self._end("limit", "max_iterations", _AT_CAP.format(cap=cap))]
            case "last_call":
                message = UserMessage(text=self._cap.last_words())
                if self._transcript.items[-1] == message:  # an earlier worker was told already
                    return [request, *self._compact_or_send()]
                self._transcript.append(message)
                return [request, self._numbering.commit((message,)), *self._compact_or_send()]

    def _compact_or_send(self) -> list[Effect]:
        effects = self._compactor.start_if_due()
        return effects + (self._call_model(*self._compactor.request()) if self._compactor.is_open else self._send())

    def _send(self) -> list[Effect]:
        request = ModelRequest(
            agent="main" if self._start.is_main else self._start.spec.name,
            system_prompt=self._start.spec.system_prompt,
            messages=self._transcript.view(),
            tools=() if self._cap.is_last_call else self._tools,
            streaming=self._start.is_main,
            max_tokens=self._start.model.max_tokens,
        )
        return self._call_model(request, self._compactor.prompt_tokens())

    def _call_model(self, request: ModelRequest, tokens: int) -> list[Effect]:
        self._call = ModelCall(request, prompt_tokens=tokens, numbering=self._numbering, retry=self._retry)
        return self._call.ask()

    @property
    def _current_call(self) -> ModelCall:
        assert self._call is not None
        return self._call

    # -- after a model call -------------------------------------------------------------------------------------------

    def _after_call(self, effects: list[Effect]) -> list[Effect]:
        call = self._current_call
        if call.result is None:
            return effects
        if call.purpose == "summary":
            return effects + self._after_summary(call.result)
        if call.result.reply is not None:
            return effects + self._take_reply(call.result.reply, call.result.grant)
        return effects + self._give_up(call.result)

    def _after_summary(self, result: CallResult) -> list[Effect]:
        if result.is_limit:
            return [*self._compactor.fail(result.message), *self._end("limit", result.code, result.message)]
        self._retry.reset()
        effects = self._compactor.finish(result)
        if self._overflowed and not self._compactor.succeeded:
            message = "the prompt is longer than the model's context window and could not be summed up"
            return effects + self._end("error", "context_overflow", message)
        return effects + self._send()

    def _give_up(self, result: CallResult) -> list[Effect]:
        if not result.is_overflow or self._overflowed:
            return self._end("limit" if result.is_limit else "error", result.code, result.message)
        self._overflowed = True
        effects = self._compactor.start("overflow")
        if self._compactor.is_open:
            return effects + self._call_model(*self._compactor.request())
        return effects + self._end("error", result.code, result.message)

    def _take_reply(self, reply: ModelReply, grant: int) -> list[Effect]:
        self._retry.reset()
        self._numbering.iterations += 1
        message = reply.message
        if self._cap.is_last_call and message.tool_calls:
            message = AssistantMessage(text=message.text or "(no report)", reasoning=message.reasoning)
        self._compactor.take_count(message, reply.usage)
        self._transcript.append(message)
        effects: list[Effect] = [
            self._numbering.commit((message,), reply.usage, grant),
            Send(ContextUsage(used=self._compactor.prompt_tokens(), max=self._start.model.context_window)),
        ]
        if calls := message.tool_calls:
            self._round = ToolRound(calls, self._guard, self._start.trust, self._effects, self._start.project_root)
            self._awaited_commit = self._numbering.commits
            return effects
        if reply.finish == "length":
            effects.append(Send(Warn(message="the reply was cut off at its limit of tokens")))
        return effects + self._end_with(message.text, is_cut_off=reply.finish == "length")

    # -- after the tools ----------------------------------------------------------------------------------------------

    def _after_tools(self) -> list[Effect]:
        tool_round = self._round
        if tool_round is None or not tool_round.is_over:
            return []
        self._round = None
        self._transcript.append(*tool_round.results)
        commit = self._numbering.commit(tool_round.results)
        if tool_round.stopped_by:
            return [commit, *self._end("error", "loop_guard", tool_round.stopped_by)]
        return [commit, *self._prepare()]

    def _end_with(self, response: str, *, is_cut_off: bool = False) -> list[Effect]:
        """The end by a reply without calls."""
        if self._cap.is_last_call:
            return self._end("limit", "max_iterations", _AT_CAP.format(cap=self._cap.cap), response)
        self.ended = True
        return [Send(Finished(outcome="complete", response=response, is_cut_off=is_cut_off))]

    def _end(self, outcome: AgentOutcome, code: str, message: str, response: str = "") -> list[Effect]:
        self.ended = True
        return [Send(Finished(outcome=outcome, response=response, code=code, message=message))]
