"""What a provider is: one model call in, one whole reply out.

ProviderError
├── Retryable           the same request may succeed later
│   ├── RateLimited         429; the endpoint asked all its callers to wait
│   ├── ServerFailed        5xx, or an error of that class inside the stream
│   ├── StreamFailed        the reply broke off, or was silent too long
│   └── NetworkFailed       refused, reset, unknown name, timed out before the reply began
├── ContextOverflow     the prompt is longer than the model's window
├── Refused             400, 422, a certificate error: asking again is no use
│   └── AccountRefused      401, 402, 403, 404: no request with this key, account or model is any use
└── BadResponse         an answer that is none of this protocol: HTML, wrong types
"""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol, TypeAlias

import msgspec

from protocol.content import AssistantMessage, Message
from protocol.records import RetryReason
from protocol.usage import Usage

FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "content_filter", "other"]


class ToolSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a model is told of it; ``parameters`` is the text of a JSON schema of one object, without ``$ref``."""

    name: str
    description: str
    parameters: str


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. ``messages`` is the view the model gets: a `Summary` first where there was a compaction.

    ``agent`` is the agent's name (``main`` for the default agent): the scripted model picks its replies by it, real
    ones never see it. ``max_tokens`` bounds the reply, None leaves it to the server.
    """

    agent: str
    system_prompt: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    streaming: bool
    max_tokens: int | None
    purpose: Literal["reply", "summary"] = "reply"


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply. ``usage`` has ``api_calls`` 1, its token counts are the server's, 0 where it gave none."""

    message: AssistantMessage
    usage: Usage
    finish: FinishReason


class DeltaSink(Protocol):
    """Takes the pieces of a streamed reply as they come; never blocks."""

    def text(self, piece: str) -> None:
        """A piece of the reply's text."""
        ...

    def thinking(self, piece: str) -> None:
        """A piece of the model's reasoning."""
        ...


class Provider(Protocol):
    """An adapter to one model server, made for one worker and used for one call at a time."""

    async def reply(self, request: ModelRequest, deltas: DeltaSink) -> ModelReply:
        """Make the call and return the whole reply; raise a `ProviderError` for all else.

        The pieces of a streamed reply go to ``deltas`` in order; a reply that is not streamed sends one piece of each
        kind that it has. Cancellation closes the connection at once.
        """
        ...

    async def aclose(self) -> None:
        """Close idle connections."""
        ...


class ProviderError(Exception):
    """Base. The message is one sentence for a person, with the server's own words where it had any; keys are masked.

    ``code`` is the word for a program that ``turn_end`` carries.
    """

    code: ClassVar[str] = "provider_error"


class Retryable(ProviderError):
    """``retry_after`` is the time that the server asked for, in seconds, already bounded; None: it asked for none."""

    reason: ClassVar[RetryReason]

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(Retryable):
    """429."""

    reason = "rate_limit"
    code = "rate_limited"


class ServerFailed(Retryable):
    """5xx, 408, or an error of that class inside a stream."""

    reason = "server_error"
    code = "server_error"


class StreamFailed(Retryable):
    """The reply broke off or fell silent."""

    reason = "stream_failed"
    code = "stream_failed"


class NetworkFailed(Retryable):
    """No reply began."""

    reason = "network"
    code = "unreachable"


class ContextOverflow(ProviderError):
    """The prompt is too long for the model."""

    code = "context_overflow"


class Refused(ProviderError):
    """The server will not take this request, however often it is sent. ``status`` is the HTTP status, 0 for none."""

    code = "refused"

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class AccountRefused(Refused):
    """The key, the account or the model is at fault, not this request."""

    code = "account_refused"


ACCOUNT_STATUSES = frozenset({401, 402, 403, 404})


def refused(message: str, status: int) -> Refused:
    """The error for a ``status`` of which asking again is no use."""
    return (AccountRefused if status in ACCOUNT_STATUSES else Refused)(message, status)


class BadResponse(ProviderError):
    """What answered does not speak this protocol."""

    code = "bad_response"
