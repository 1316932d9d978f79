"""How full a model's context is.

Two sources, neither good enough alone. Our own estimate knows every message but no tokenizer. The server's count knows
the tokenizer but only the prefix of the last call, and some servers report a constant. So the estimate always counts,
and the server's number can raise it, as long as it behaves like a count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from protocol.content import AssistantMessage, Message, ToolCall, ToolResult

COMPACT_AT_PERCENT = 80
"""From here on the history is summed up before the next call. Source: the v1 wire contract, "compaction"."""

MESSAGE_OVERHEAD = 4
"""Tokens that a chat template spends on the frame of one message: role and delimiters."""

CALL_OVERHEAD = 8
"""Tokens for the frame of one tool call: id, type, braces."""


class DescribedTool(Protocol):
    """What of a tool a model reads. The schemas that go to the providers fit as they are."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> str:
        """The text of a JSON schema."""
        ...


def estimate_text(text: str) -> int:
    """About how many tokens ``text`` is; 0 only for the empty text.

    Four ASCII characters or three bytes of anything else make a token. That is an even guess for English and code,
    and for CJK (three bytes a character, about a token each); longer texts never get a smaller number.
    """
    if text.isascii():
        return (len(text) + 3) // 4
    ascii_bytes = len(text.encode("ascii", "ignore"))
    other_bytes = len(text.encode("utf-8", "surrogatepass")) - ascii_bytes
    return (3 * ascii_bytes + 4 * other_bytes + 11) // 12


def estimate_message(message: Message) -> int:
    """About how many tokens ``message`` takes in a prompt, its frame included."""
    if isinstance(message, AssistantMessage):
        # Reasoning goes back to a server only beside the tool calls that it led to.
        reasoning = estimate_text(message.reasoning) if message.tool_calls else 0
        calls = sum(_estimate_call(call) for call in message.tool_calls)
        return MESSAGE_OVERHEAD + estimate_text(message.text) + reasoning + calls
    if isinstance(message, ToolResult):
        return MESSAGE_OVERHEAD + CALL_OVERHEAD + estimate_text(message.output)
    return MESSAGE_OVERHEAD + estimate_text(message.text)


def estimate_messages(messages: Iterable[Message]) -> int:
    """The sum of `estimate_message` over ``messages``."""
    return sum(map(estimate_message, messages))


def estimate_prompt(system_prompt: str, tools: Iterable[DescribedTool], messages: Iterable[Message]) -> int:
    """About how many tokens a whole request takes: system prompt, descriptions of the tools, messages."""
    return _estimate_preamble(system_prompt, tools) + estimate_messages(messages)


def _estimate_preamble(system_prompt: str, tools: Iterable[DescribedTool]) -> int:
    described = sum(
        CALL_OVERHEAD + estimate_text(tool.name) + estimate_text(tool.description) + estimate_text(tool.parameters)
        for tool in tools
    )
    return MESSAGE_OVERHEAD + estimate_text(system_prompt) + described


def _estimate_call(call: ToolCall) -> int:
    return CALL_OVERHEAD + estimate_text(call.name) + estimate_text(call.arguments)


class ContextGauge:
    """Says how full a window of ``window`` tokens is, and when it is time for a compaction.

    Every question takes ``estimate``, our own count of the next prompt (`estimate_prompt`), and, where it is at hand,
    ``messages``, the view that the prompt is made of: with it the server's last count is carried on over the messages
    that came after. The answer is never below ``estimate``.

    Some servers report the same number for every call. One that lies near the window would ask for a compaction before
    each send; so a report is forgotten by a compaction, and the reports after it are believed only if the first of them
    fell by a tenth or more. Otherwise our estimate alone decides until the next compaction.
    """

    def __init__(self, window: int) -> None:
        """``window`` is in tokens; raises ValueError unless it is over 0."""
        if window <= 0:
            raise ValueError(f"a context window has at least one token, not {window}")
        self._window = window
        self._last_prompt_tokens = 0
        self._reported: _Report | None = None
        self._ceiling: int | None = None
        self._believed = True
        self._hold_below = 0

    @property
    def window(self) -> int:
        """The size of the window, in tokens."""
        return self._window

    def report(self, prompt_tokens: int, completion_tokens: int, message_count: int) -> None:
        """Take in what the server counted for the last call.

        ``message_count`` is the number of messages that the call sent; its reply comes right behind them in the view.
        ``completion_tokens`` is the reply as the next prompt will hold it: without the tokens of reasoning that are
        not sent back.
        """
        self._last_prompt_tokens = prompt_tokens
        if self._ceiling is not None:
            self._believed = prompt_tokens <= self._ceiling
            self._ceiling = None
        self._reported = _Report(prompt_tokens, completion_tokens, message_count) if self._believed else None

    def used(self, estimate: int, messages: Sequence[Message] = ()) -> int:
        """Tokens that the next prompt takes: the larger of our estimate and what follows from the server's count."""
        if self._reported is None:
            return estimate
        return max(estimate, self._reported.lower_bound(messages))

    def percent(self, estimate: int, messages: Sequence[Message] = ()) -> int:
        """How much of the window is used, in whole percent, rounded down; over 100 when the prompt does not fit."""
        return self.used(estimate, messages) * 100 // self._window

    def is_due(self, estimate: int, messages: Sequence[Message] = ()) -> bool:
        """Whether the history should be summed up before the next call.

        True from `COMPACT_AT_PERCENT` on. After an attempt that did not bring the use below that (`compacted`,
        `compaction_failed`) only once it has grown by another 5 % of the window: a summary that can't help must not be
        paid for before every call.
        """
        used = self.used(estimate, messages)
        return used * 100 >= self._window * COMPACT_AT_PERCENT and used >= self._hold_below

    def compacted(self, estimate: int) -> None:
        """A compaction was done; ``estimate`` is our count of the prompt as it is now. The last report is forgotten."""
        self._reported = None
        # A history without a report so far has nothing to compare the next one with.
        self._ceiling = self._last_prompt_tokens * 9 // 10 if self._last_prompt_tokens else None
        self._believed = True
        self._hold_below = estimate + self._window // 20

    def compaction_failed(self, estimate: int, messages: Sequence[Message] = ()) -> None:
        """A compaction was skipped or failed: the history is as it was."""
        self._hold_below = self.used(estimate, messages) + self._window // 20


class _Report:
    """One count of the server and the messages it covers."""

    def __init__(self, prompt_tokens: int, completion_tokens: int, message_count: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._completion_tokens = completion_tokens
        self._message_count = message_count

    def lower_bound(self, messages: Sequence[Message]) -> int:
        """What a prompt with these messages takes at least; without messages: up to and with the reply."""
        later = messages[self._message_count :]
        if messages and not (later and isinstance(later[0], AssistantMessage)):
            # The reply was empty and is not in the history.
            return self._prompt_tokens + estimate_messages(later)
        return self._prompt_tokens + self._completion_tokens + estimate_messages(later[1:])
