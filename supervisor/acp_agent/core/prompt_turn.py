"""The prompts of one session, one at a time: which request is open, and how it is answered."""

from __future__ import annotations

from typing import TypeAlias

from protocol.frames import Finished
from protocol.jsonrpc import INTERNAL_ERROR, ErrorObject, RequestId
from supervisor.acp_agent.core.messages import StopReason

Answer: TypeAlias = StopReason | ErrorObject


class PromptTurns:
    """Refuses a prompt while one is open; remembers what became of that one."""

    def __init__(self) -> None:
        self._open: _OpenPrompt | None = None

    @property
    def is_open(self) -> bool:
        """Whether a prompt waits for its answer."""
        return self._open is not None

    @property
    def is_cancelled(self) -> bool:
        """Whether the open prompt was cancelled."""
        return self._open is not None and self._open.is_cancelled

    def begin(self, request: RequestId) -> bool:
        """Open the prompt of ``request``; False if one is open already."""
        if self._open is not None:
            return False
        self._open = _OpenPrompt(request)
        return True

    def is_of(self, request: RequestId) -> bool:
        """Whether the open prompt is that of ``request``: type and all."""
        opened = self._open
        return opened is not None and type(opened.request) is type(request) and opened.request == request

    def cancel(self) -> bool:
        """Cancel the open prompt; False if there is none, or it is cancelled already."""
        if self._open is None or self._open.is_cancelled:
            return False
        self._open.is_cancelled = True
        return True

    def end(self, ending: Finished | None) -> tuple[RequestId, Answer]:
        """Close the open prompt: its request and the answer. ``ending`` is None where the turn broke off by a defect.

        A cancelled prompt is answered as cancelled, whatever came of it in its last moment. Source: Agent Client
        Protocol, "Cancellation".
        """
        opened, self._open = self._open, None
        assert opened is not None, "no prompt is open"
        return opened.request, "cancelled" if opened.is_cancelled else answer_of(ending)


class _OpenPrompt:
    def __init__(self, request: RequestId) -> None:
        self.request = request
        self.is_cancelled = False


def answer_of(ending: Finished | None) -> Answer:
    """How a turn that nobody cancelled is answered: by its stop reason, or by an error where there is none for it."""
    if ending is None:
        return ErrorObject(code=INTERNAL_ERROR, message="corral failed; its standard error says how")
    match ending:
        case Finished(outcome="complete"):
            return "max_tokens" if ending.is_cut_off else "end_turn"
        case Finished(outcome="cancelled"):
            return "cancelled"
        case Finished(outcome="limit", code="max_tokens_total"):
            return "max_tokens"
        case Finished(outcome="limit"):
            return "max_turn_requests"
        case Finished(code="content_filter"):
            return "refusal"
        case _:
            return ErrorObject(code=INTERNAL_ERROR, message=ending.message or f"the turn ended with {ending.outcome}")
