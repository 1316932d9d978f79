"""When the history is summed up, and what becomes of it.

The pure functions are in `workers.core.compaction`; this machine says when they are used and what a client is told.
Source: the wire contract, "Loop guard, cap, compaction".
"""

from __future__ import annotations

from typing import Literal

from protocol.content import Summary
from protocol.frames import Start
from protocol.records import Compaction
from workers.core import compaction
from workers.core.context import ContextGauge, estimate_messages, estimate_prompt
from workers.core.effects import Effect, Send
from workers.core.model_call import CallResult, Numbering
from workers.core.transcript import Transcript
from workers.providers.provider import ModelRequest

Trigger = Literal["threshold", "overflow", "manual"]


class Compactor:
    """At most one compaction is open at a time: ``start``, then ``request``, then ``finish`` or ``fail``."""

    def __init__(self, start: Start, gauge: ContextGauge, transcript: Transcript, numbering: Numbering) -> None:
        self._start = start
        self._gauge = gauge
        self._transcript = transcript
        self._numbering = numbering
        self._plan: compaction.CompactionPlan | None = None
        self._trigger: Trigger = "threshold"
        self._overhead = 0
        self.succeeded = False

    @property
    def is_open(self) -> bool:
        """A summary call is due or under way."""
        return self._plan is not None

    def start(self, trigger: Trigger, overhead: int) -> list[Effect]:
        """Open a compaction; with too few messages it is skipped, without a call.

        ``overhead`` is our estimate of system prompt and tools, in tokens.
        """
        view = self._transcript.view()
        estimate = overhead + estimate_messages(view)
        window = self._start.model.context_window
        if trigger == "overflow":
            # The server knows better: its window is smaller than we thought.
            window = min(window, max(1, estimate * 3 // 4))
        self._trigger = trigger
        self._overhead = overhead
        self.succeeded = False
        percent = self._gauge.percent(estimate, view)
        started = Send(Compaction(trigger=trigger, status="started", context_percent=percent))
        self._plan = compaction.plan(view, window, overhead_tokens=overhead)
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
