"""An external agent's updates as the records and frames of a worker of ours.

No input or output; ``now`` is a time in seconds that only grows. Source: Agent Client Protocol v1, "Prompt Turn", "Tool
Calls", "Agent Plan", "Session Usage"; the v1 wire contract, "Lines".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from protocol.codec import clean_text
from protocol.content import Outcome, ToolCall
from protocol.frames import ToolCallOpened
from protocol.records import (
    ContextUsage,
    Info,
    TextDelta,
    ThinkingDelta,
    TodoItem,
    TodoPriority,
    TodoStatus,
    TodoUpdate,
    ToolCallResult,
    Warn,
)
from protocol.usage import Usage
from workers.acp.messages import object_of, objects_of
from workers.acp.tool_content import arguments_text, block_text, output_text

Translated: TypeAlias = (
    TextDelta | ThinkingDelta | ToolCallOpened | ToolCallResult | TodoUpdate | ContextUsage | Info | Warn
)

_STATUSES: dict[str, TodoStatus] = {status: status for status in ("pending", "in_progress", "completed")}
_PRIORITIES: dict[str, TodoPriority] = {priority: priority for priority in ("high", "medium", "low")}
_MERGED = ("title", "name", "kind", "status", "content", "locations", "rawInput", "rawOutput")
NO_END_TOLD = "The agent did not say how this call ended."


class Cost(msgspec.Struct, frozen=True):
    """What the agent says its session has cost so far; ``currency`` is a code of ISO 4217."""

    amount: float
    currency: str


class _Call:
    """An open call: all that is known of it, whether it was told, and since when it runs."""

    def __init__(self, call_id: str, now: float) -> None:
        self.call_id = call_id
        self.started = now
        self.fields: dict[str, object] = {}
        self.was_told = False
        self.was_denied = False

    @property
    def name(self) -> str:
        """The tool's name where the agent gives it, else the kind of tool."""
        for given in (self.fields.get("name"), self.fields.get("kind")):
            if isinstance(given, str) and given:
                return clean_text(given)
        return "other"

    def opened(self) -> ToolCallOpened:
        title = self.fields.get("title")
        arguments = arguments_text(
            self.fields.get("rawInput"), title if isinstance(title, str) else "", self.fields.get("locations")
        )
        return ToolCallOpened(call=ToolCall(id=self.call_id, name=self.name, arguments=arguments))

    def result(self, outcome: Outcome, now: float, output: str | None = None) -> ToolCallResult:
        text = output_text(self.fields.get("content"), self.fields.get("rawOutput"))
        return ToolCallResult(
            id=self.call_id,
            outcome=outcome,
            name=self.name,
            output=text or output or "",
            elapsed_ms=max(0, round((now - self.started) * 1000)),
        )


class UpdateTranslator:
    """Translates the updates of one session, in their order; what it can't understand it leaves out.

    Every call that is opened is closed: by its own update, or by `end_prompt`. ``cost`` is the last that was reported.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Call] = {}
        self._closed: set[str] = set()
        self._half = ""  # the first half of a surrogate pair that was cut in two
        self._half_kind = ""
        self.cost: Cost | None = None

    def take(self, update: Mapping[str, object], now: float) -> list[Translated]:
        """What the ``update`` object of a ``session/update`` says."""
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                return self._chunk("message", object_of(update.get("content")))
            case "agent_thought_chunk":
                return self._chunk("thought", object_of(update.get("content")))
            case "tool_call":
                return self._tool_call(update, now, is_new=True)
            case "tool_call_update":
                return self._tool_call(update, now, is_new=False)
            case "plan":
                return [_todo_update(update.get("entries"))]
            case "usage_update":
                return self._usage(update)
            case "notice":
                return _notice(update)
            case _:
                return []

    def permission_asked(self, tool_call: Mapping[str, object], now: float) -> list[Translated]:
        """The agent asked for consent to a call, which it may never have told of before."""
        call = self._merged(tool_call, now, is_new=False)
        return [] if call is None else self._told(call)

    def permission_denied(self, tool_call: Mapping[str, object]) -> None:
        """Consent was not given: where the call fails now, that is why."""
        call = self._open.get(_call_id(tool_call))
        if call is not None:
            call.was_denied = True

    def end_prompt(self, now: float, *, cancelled: bool = False) -> list[Translated]:
        """The prompt is over: calls that are still open are closed, in the order in which they came."""
        translated: list[Translated] = self._rest_of_text()
        for call in self._open.values():
            translated += self._told(call)
            translated.append(call.result("cancelled" if cancelled else "interrupted", now, NO_END_TOLD))
        self._open.clear()
        self._closed.clear()
        return translated

    # -- text ---------------------------------------------------------------------------------------------------------

    def _chunk(self, kind: str, block: Mapping[str, object]) -> list[Translated]:
        translated = [] if kind == self._half_kind else self._rest_of_text()
        text = block_text(block)
        if block.get("type") != "text":
            return [*translated, Info(message=clean_text(text))] if text else translated
        text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        self._half_kind = kind
        return [*translated, _delta(kind, text)] if text else translated

    def _rest_of_text(self) -> list[Translated]:
        half, self._half = self._half, ""
        return [_delta(self._half_kind, half)] if half else []

    # -- tool calls ---------------------------------------------------------------------------------------------------

    def _tool_call(self, update: Mapping[str, object], now: float, *, is_new: bool) -> list[Translated]:
        call = self._merged(update, now, is_new=is_new)
        if call is None:
            return []
        status = call.fields.get("status")
        # A call is told of once and with its arguments, so it waits until they are there or it runs.
        if status in (None, "pending") and not call.fields.get("rawInput"):
            return []
        translated = self._told(call)
        if status in ("completed", "failed"):
            failed: Outcome = "denied" if call.was_denied else "error"
            translated.append(call.result("success" if status == "completed" else failed, now))
            del self._open[call.call_id]
            self._closed.add(call.call_id)
        return translated

    def _merged(self, update: Mapping[str, object], now: float, *, is_new: bool) -> _Call | None:
        """The open call that ``update`` is about, with what it says; None for one that is over, or that has no id."""
        call_id = _call_id(update)
        if not call_id or (call_id in self._closed and not is_new):
            return None
        self._closed.discard(call_id)
        call = self._open.setdefault(call_id, _Call(call_id, now))
        call.fields |= {name: update[name] for name in _MERGED if update.get(name) is not None}
        return call

    def _told(self, call: _Call) -> list[Translated]:
        if call.was_told:
            return []
        call.was_told = True
        return [*self._rest_of_text(), call.opened()]

    # -- all else -----------------------------------------------------------------------------------------------------

    def _usage(self, update: Mapping[str, object]) -> list[Translated]:
        cost = object_of(update.get("cost"))
        amount, currency = cost.get("amount"), cost.get("currency")
        if isinstance(amount, int | float) and not isinstance(amount, bool) and isinstance(currency, str):
            self.cost = Cost(float(amount), currency)
        used, size = _count(update.get("used")), _count(update.get("size"))
        return [] if used is None or not size else [ContextUsage(used=used, max=size)]


def usage_of(result: Mapping[str, object]) -> Usage | None:
    """The usage that the answer to a prompt reports; None where it reports none.

    How many model calls that was is not told: it counts as one. Tokens that the agent lists beside its input and
    output, as its total tells, are added to the side that they belong to. Source: Agent Client Protocol v1 (unstable),
    ``PromptResponse.usage``.
    """
    given = object_of(result.get("usage"))
    read, written = _count(given.get("inputTokens")), _count(given.get("outputTokens"))
    if read is None or written is None:
        return None
    thought = _count(given.get("thoughtTokens")) or 0
    cache_read = _count(given.get("cachedReadTokens")) or 0
    cache_written = _count(given.get("cachedWriteTokens")) or 0
    if _count(given.get("totalTokens")) == read + written + thought + cache_read + cache_written:
        read, written = read + cache_read + cache_written, written + thought
    return Usage(
        prompt_tokens=read,
        completion_tokens=written,
        cache_read_tokens=cache_read,
        cache_creation_tokens=cache_written,
        thinking_tokens=thought,
        api_calls=1,
    )


def _delta(kind: str, text: str) -> TextDelta | ThinkingDelta:
    cleaned = clean_text(text)
    return TextDelta(text=cleaned) if kind == "message" else ThinkingDelta(text=cleaned)


def _todo_update(entries: object) -> TodoUpdate:
    items = [
        TodoItem(
            content=clean_text(content),
            status=_STATUSES.get(str(entry.get("status")), "pending"),
            priority=_PRIORITIES.get(str(entry.get("priority")), "medium"),
        )
        for entry in objects_of(entries)
        if isinstance(content := entry.get("content"), str)
    ]
    return TodoUpdate(items=tuple(items))


def _notice(update: Mapping[str, object]) -> list[Translated]:
    parts = [part for part in (update.get("title"), update.get("description")) if isinstance(part, str) and part]
    if not parts:
        return []
    message = clean_text(": ".join(parts))
    return [Info(message=message) if update.get("severity") == "info" else Warn(message=message)]


def _call_id(update: Mapping[str, object]) -> str:
    call_id = update.get("toolCallId")
    return clean_text(call_id) if isinstance(call_id, str) else ""


def _count(value: object) -> int | None:
    """A whole number that is none below zero."""
    return value if type(value) is int and value >= 0 else None
