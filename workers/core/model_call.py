"""One model call with its grant and its resends."""

from __future__ import annotations

import msgspec

from protocol.content import Message
from protocol.frames import AskGrant, CallFailed, Commit, GrantAnswer
from protocol.records import Retry, RetryReason
from protocol.usage import Usage
from workers.core.effects import CallModel, Effect, Send, Wait
from workers.core.retry import RetrySchedule, RetryStep
from workers.providers.provider import ContextOverflow, ModelReply, ModelRequest, ProviderError, RateLimited, Retryable


class Numbering:
    """The numbers of a worker's grants and commits, and how many replies its turn has had."""

    def __init__(self) -> None:
        self.grants = 0
        self.commits = 0
        self.iterations = 0

    def commit(self, messages: tuple[Message, ...] = (), usage: Usage | None = None, grant: int | None = None) -> Send:
        """The next commit."""
        self.commits += 1
        return Send(
            Commit(number=self.commits, messages=messages, usage=usage, grant=grant, iterations=self.iterations)
        )


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended: with a ``reply`` under ``grant`` that is still to be committed, or with a ``code``.

    ``is_limit`` tells a refused grant from a failure, ``is_overflow`` a prompt that was too long.
    """

    reply: ModelReply | None = None
    grant: int = 0
    code: str = ""
    message: str = ""
    is_limit: bool = False
    is_overflow: bool = False


class ModelCall:
    """From the first ask for a grant to a reply that is not empty, or to the end of all tries.

    Each try needs a grant of its own. A failed try counts nothing; an empty reply's tokens count, and it is sent again
    like a failed one. ``result`` is None while the call is under way. Source: the wire contract, "How the model is
    called".
    """

    def __init__(
        self, request: ModelRequest, *, prompt_tokens: int, numbering: Numbering, retry: RetrySchedule
    ) -> None:
        self._request = request
        self._prompt_tokens = prompt_tokens
        self._numbering = numbering
        self._retry = retry
        self._tries = 0
        self.result: CallResult | None = None

    @property
    def purpose(self) -> str:
        """What the call is for: ``reply`` or ``summary``."""
        return self._request.purpose

    def ask(self) -> list[Effect]:
        """Ask for a grant: the call begins, or begins again."""
        self._numbering.grants += 1
        self._tries += 1
        return [
            Send(
                AskGrant(
                    grant=self._numbering.grants,
                    purpose=self._request.purpose,
                    prompt_tokens=self._prompt_tokens,
                    max_tokens=self._request.max_tokens,
                )
            )
        ]

    def granted(self, answer: GrantAnswer) -> list[Effect]:
        """The supervisor answered."""
        if answer.decision == "stop":
            self.result = CallResult(code=answer.code, message=answer.message, is_limit=True)
            return []
        request = self._request
        if answer.max_tokens is not None:
            request = msgspec.structs.replace(request, max_tokens=answer.max_tokens)
        return [CallModel(request)]

    def replied(self, reply: ModelReply) -> list[Effect]:
        """A whole reply came; an empty one is sent again."""
        message = reply.message
        if message.text.strip() or message.tool_calls:
            self.result = CallResult(reply=reply, grant=self._numbering.grants)
            return []
        counted = self._numbering.commit(usage=reply.usage, grant=self._numbering.grants)
        code, why = "empty_response", "the model's reply was empty"
        if reply.finish == "content_filter":
            code, why = "content_filter", "the model's reply was withheld by the server's content filter"
        return [counted, *self._again(self._retry.next(None), "empty_response", code, why)]

    def failed(self, error: ProviderError) -> list[Effect]:
        """The try failed."""
        if not isinstance(error, Retryable):
            self.result = CallResult(
                code=error.code, message=str(error), is_overflow=isinstance(error, ContextOverflow)
            )
            return [Send(CallFailed(grant=self._numbering.grants))]
        step = self._retry.next(error.retry_after)
        # A rate limit is the endpoint's, not this call's: the supervisor holds all that use it.
        held = step.delay_ms if step and isinstance(error, RateLimited) else None
        failed = Send(CallFailed(grant=self._numbering.grants, rate_limited_ms=held))
        return [failed, *self._again(step, error.reason, error.code, str(error))]

    def waited(self) -> list[Effect]:
        """The wait before a resend is over."""
        return self.ask()

    def _again(self, step: RetryStep | None, reason: RetryReason, code: str, why: str) -> list[Effect]:
        if step is None:
            self.result = CallResult(code=code, message=f"{why} (tried {self._tries} times)")
            return []
        retry = Retry(reason=reason, attempt=step.attempt, max_attempts=step.max_attempts, delay_ms=step.delay_ms)
        return [Send(retry), Wait(step.delay_ms / 1000)]
