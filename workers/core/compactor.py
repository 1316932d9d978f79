"""When the history is summed up, and what becomes of it.

The pure functions are in `workers.core.compaction`; this machine says when they are used and what a client is told.
Source: the wire contract, "Loop guard, cap, compaction".
"""

from __future__ import annotations

from typing import Literal

from protocol.content import AssistantMessage, Summary
from protocol.frames import Start
from protocol.records import Compaction
from protocol.usage import Usage
from workers.core import compaction
from workers.core.context import ContextGauge, estimate_messages, estimate_prompt
from workers.core.effects import Effect, Send
from workers.core.model_call import CallResult, Numbering
from workers.core.transcript import Transcript
from workers.providers.provider import ModelRequest, ToolSchema

Trigger = Literal["threshold", "overflow", "manual"]


class Compactor:
    """At most one compaction is open at a time: ``start``, then ``request``, then ``finish`` or ``fail``."""

    def __init__(
        self, start: Start, tools: tuple[ToolSchema, ...], transcript: Transcript, numbering: Numbering
    ) -> None:
        self._start = start
        self._gauge = ContextGauge(start.model.context_window)
        self._transcript = transcript
        self._numbering = numbering
        self._plan: compaction.CompactionPlan | None = None
        self._trigger: Trigger = "threshold"
        self._overhead = estimate_prompt(start.spec.system_prompt, tools, ())
        self.succeeded = False

    @property
    def is_open(self) -> bool:
        """A summary call is due or under way."""
        return self._plan is not None

    def prompt_tokens(self) -> int:
        """What the next prompt takes: by our own estimate, or by the server's last count where that is larger."""
        view = self._transcript.view()
        return self._gauge.used(self._overhead + estimate_messages(view), view)

    def take_count(self, message: AssistantMessage, usage: Usage) -> None:
        """The server's count for the call that brought ``message``, which is not in the transcript yet."""
        sent = len(self._transcript.view())
        self._gauge.report(usage.prompt_tokens, _kept_tokens(message, usage), sent)

    def start_if_due(self) -> list[Effect]:
        """Open a compaction where the next prompt would fill 80 % of the window or more."""
        view = self._transcript.view()
        if not self._gauge.is_due(self._overhead + estimate_messages(view), view):
            return []
        return self.start("threshold")

    def start(self, trigger: Trigger) -> list[Effect]:
        """Open a compaction; with too few messages it is skipped, without a call."""
        view = self._transcript.view()
        estimate = self._overhead + estimate_messages(view)
        window = self._start.model.context_window
        if trigger == "overflow":
            # The server knows better: its window is smaller than we thought.
            window = min(window, max(1, estimate * 3 // 4))
        self._trigger = trigger
        self.succeeded = False
        percent = self._gauge.percent(estimate, view)
        started = Send(Compaction(trigger=trigger, status="started", context_percent=percent))
        self._plan = compaction.plan(view, window, overhead_tokens=self._overhead)
        if self._plan is not None:
            return [started]
        self._gauge.compaction_failed(estimate, view)
        return [started, Send(Compaction(trigger=trigger, status="skipped", detail="too few messages"))]

    def request(self) -> tuple[ModelRequest, int]:
        """The summary call and the estimate of its prompt in tokens: no tools, not streamed."""
        assert self._plan is not None
        messages = compaction.summary_messages(self._plan)
        room = compaction.summary_max_tokens(self._plan.window_tokens)
        request = ModelRequest(
            agent="main" if self._start.is_main else self._start.spec.name,
            system_prompt=compaction.SUMMARY_SYSTEM_PROMPT,
            messages=messages,
            tools=(),
            streaming=False,
            max_tokens=min(room, self._start.model.max_tokens or room),
            purpose="summary",
        )
        return request, estimate_prompt(request.system_prompt, (), messages)

    def finish(self, result: CallResult) -> list[Effect]:
        """Take what the summary call came to. The history is never replaced by nothing."""
        plan = self._plan
        reply = result.reply
        if reply is None or plan is None:
            return self.fail(result.message)
        text = compaction.read_summary(reply.message.text, bool(reply.message.tool_calls))
        if text is None:
            counted = self._numbering.commit(usage=reply.usage, grant=result.grant)
            return [counted, *self.fail("the model answered without a summary")]
        summary = Summary(text=text, replaces=plan.messages_removed)
        self._transcript.append(summary)
        self._gauge.compacted(self._overhead + estimate_messages(self._transcript.view()))
        self._plan = None
        self.succeeded = True
        done = Compaction(
            trigger=self._trigger,
            status="completed",
            messages_removed=plan.messages_removed,
            summary_tokens=compaction.summary_tokens(text),
        )
        return [self._numbering.commit((summary,), reply.usage, result.grant), Send(done)]

    def fail(self, detail: str) -> list[Effect]:
        """The open compaction came to nothing; the history stays as it is."""
        self._plan = None
        view = self._transcript.view()
        self._gauge.compaction_failed(self._overhead + estimate_messages(view), view)
        return [Send(Compaction(trigger=self._trigger, status="failed", detail=detail))]


def _kept_tokens(message: AssistantMessage, usage: Usage) -> int:
    """The tokens of a reply that the next prompt holds: reasoning goes back only beside the calls that it led to."""
    if message.tool_calls:
        return usage.completion_tokens
    return max(usage.completion_tokens - usage.thinking_tokens, 0)
