"""An external agent's updates as the records and frames of a worker of ours.

No input or output; ``now`` is a time in seconds that only grows. Source: Agent Client Protocol v1, "Prompt Turn", "Tool
Calls", "Agent Plan", "Session Usage"; the v1 wire contract, "Lines".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from protocol.codec import clean_text
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
from workers.acp.reported_call import ReportedCall
from workers.acp.tool_content import block_text

Translated: TypeAlias = (
    TextDelta | ThinkingDelta | ToolCallOpened | ToolCallResult | TodoUpdate | ContextUsage | Info | Warn
)

_STATUSES: dict[str, TodoStatus] = {status: status for status in ("pending", "in_progress", "completed")}
_PRIORITIES: dict[str, TodoPriority] = {priority: priority for priority in ("high", "medium", "low")}
LARGEST_COUNT = 10**12
"""Tokens. More is a mistake of the agent's; sums of these are far from what frames can hold."""
NO_END_TOLD = "The agent did not say how this call ended."


class UpdateTranslator:
    """Translates the updates of one session, in their order; what it can't understand it leaves out.

    Every call that is opened is closed: by its own update, or by `end_prompt`. ``cost`` is the last that was reported.
    """

    def __init__(self) -> None:
        self._open: dict[str, ReportedCall] = {}
        self._closed: set[str] = set()
        self._half = ""  # the first half of a surrogate pair that was cut in two
        self._half_kind = ""
        self._used_by_updates: Usage | None = None

    def take(self, update: Mapping[str, object], now: float) -> list[Translated]:
        """What the ``update`` object of a ``session/update`` says."""
        translated = self._taken(update, now)
        if (usage := _usage(object_of(object_of(update.get("_meta")).get("usage")))) is not None:
            self._used_by_updates = (self._used_by_updates or Usage()) + usage
        for call in self._open.values():
            call.hold()
            translated += self._told(call) if call.is_due else []
        return translated

    def _taken(self, update: Mapping[str, object], now: float) -> list[Translated]:
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
        call = self._merged(tool_call, now, is_new=False, is_question=True)
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
            if call.was_denied:  # which many agents take for its end
                translated.append(call.result("denied", now))
            else:
                translated.append(call.result("cancelled" if cancelled else "interrupted", now, NO_END_TOLD))
        self._open.clear()
        self._closed.clear()
        return translated

    def usage(self, result: Mapping[str, object]) -> Usage | None:
        """What the prompt that ``result`` answers has used: what the answer reports, else what its updates did.

        None where neither does. Source: Qwen Code, ``_meta.usage`` of the update behind each of its model calls.
        """
        by_updates, self._used_by_updates = self._used_by_updates, None
        return usage_of(result) or by_updates

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
        if not text:
            return translated
        # The reply is what comes after the last call, so calls that are held back are told of before it goes on.
        held = [call for call in self._open.values() if kind == "message" and not call.was_told]
        return [*translated, *(call.opened() for call in held), _delta(kind, text)]

    def _rest_of_text(self) -> list[Translated]:
        half, self._half = self._half, ""
        return [_delta(self._half_kind, half)] if half else []

    # -- tool calls ---------------------------------------------------------------------------------------------------

    def _tool_call(self, update: Mapping[str, object], now: float, *, is_new: bool) -> list[Translated]:
        call = self._merged(update, now, is_new=is_new)
        if call is None:
            return []
        translated = self._told(call) if call.is_due else []
        if (outcome := call.ended_as) is not None:
            translated.append(call.result(outcome, now))
            del self._open[call.call_id]
            self._closed.add(call.call_id)
        return translated

    def _merged(
        self, update: Mapping[str, object], now: float, *, is_new: bool, is_question: bool = False
    ) -> ReportedCall | None:
        """The open call that ``update`` is about, with what it says; None for one that is over, or that has no id."""
        call_id = _call_id(update)
        if not call_id or (call_id in self._closed and not is_new):
            return None
        self._closed.discard(call_id)
        call = self._open.setdefault(call_id, ReportedCall(call_id, now))
        call.merge(update, is_question=is_question)
        return call

    def _told(self, call: ReportedCall) -> list[Translated]:
        return [] if call.was_told else [*self._rest_of_text(), call.opened()]

    # -- all else -----------------------------------------------------------------------------------------------------

    def _usage(self, update: Mapping[str, object]) -> list[Translated]:
        used, size = _count(update.get("used")), _count(update.get("size"))
        return [] if used is None or not size else [ContextUsage(used=used, max=size)]


def usage_of(result: Mapping[str, object]) -> Usage | None:
    """The usage that the answer to a prompt reports; None where it reports none.

    How many model calls that was is not told: it counts as one. Tokens that the agent lists beside its input and
    output, as its total tells, are added to the side that they belong to. Source: Agent Client Protocol v1 (unstable),
    ``PromptResponse.usage``; Gemini CLI, ``_meta.quota``.
    """
    counts = object_of(object_of(object_of(result.get("_meta")).get("quota")).get("token_count"))
    in_quota = {"inputTokens": counts.get("input_tokens"), "outputTokens": counts.get("output_tokens")}
    return _usage(object_of(result.get("usage"))) or _usage(in_quota)


def _usage(given: Mapping[str, object]) -> Usage | None:
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
    """A whole number from zero to `LARGEST_COUNT`."""
    return value if type(value) is int and 0 <= value <= LARGEST_COUNT else None
