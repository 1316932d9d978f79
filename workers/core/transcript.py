"""The history of one agent and the view of it that a model gets.

``items`` is what was said, in the order in which it was stored; nothing is ever taken out of it. ``view()`` is what the
next model call sends: a `Summary` stands first in place of what it replaces, and every tool call is answered exactly
once, in call order, before the next message of another kind. Model servers refuse anything else.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable

from protocol.content import AssistantMessage, Message, Outcome, Summary, ToolCall, ToolResult, UserMessage

_UNANSWERED: dict[Outcome, str] = {
    "interrupted": "The call was interrupted: it may have run in part. Look at what it did before you repeat it.",
    "cancelled": "The call was cancelled by the user: it may have run in part.",
    "denied": "The call was denied and did not run.",
}


class Transcript:
    """A history that can be appended to, viewed, and mended after a crash.

    ``Transcript(items)`` takes up a stored history and never refuses one: a call that the history goes on without
    answering counts as interrupted, an answer to no open call is left out of the view, a summary that claims too much
    replaces what there is. The last reply's calls stay open, see `unanswered` and `repair`. `append` on the other hand
    raises ValueError for what would break the order.
    """

    def __init__(self, items: Iterable[Message] = ()) -> None:
        self._items: list[Message] = []
        self._view: list[Message] = []
        # The last reply: where its results begin in the view, its open calls by position, the positions answered.
        self._results_start = 0
        self._open: list[tuple[int, ToolCall]] = []
        self._answered: list[int] = []
        for item in items:
            self._take(item)

    @property
    def items(self) -> tuple[Message, ...]:
        """Everything that was said, in the order in which it is stored."""
        return tuple(self._items)

    @property
    def unanswered(self) -> tuple[ToolCall, ...]:
        """The calls of the last reply that have no result yet, in call order."""
        return tuple(call for _, call in self._open)

    def view(self) -> tuple[Message, ...]:
        """The messages that the next model call sends. Only the calls in `unanswered` are without a result in it."""
        return tuple(self._view)

    def append(self, *messages: Message) -> None:
        """Add ``messages`` at the end.

        The results of one reply may come in any order; the view has them in call order. A `Summary` replaces the first
        ``replaces`` messages of the view as it is when the summary is appended, an earlier summary among them.

        Raises ValueError, with nothing added from that message on, for a result of no open call, for any other message
        while calls are open, and for a summary whose border does not lie in the view or lies between a call and its
        results.
        """
        for message in messages:
            self._check(message)
            self._take(message)

    def repair(self, outcome: Outcome = "interrupted") -> tuple[ToolResult, ...]:
        """Answer the open calls of the last reply with ``outcome``, in call order; returns the results, to be stored.

        The text says that the call may have run in part: it is never run again by itself. Returns nothing where no
        call is open.
        """
        results = tuple(_unanswered_result(call, outcome) for call in self.unanswered)
        self.append(*results)
        return results

    def recent_tools(self, n: int) -> tuple[str, ...]:
        """The names of the last ``n`` tool calls or fewer, oldest first, those since summed up included."""
        names: list[str] = []
        for item in reversed(self._items):
            if len(names) >= n:
                break
            if isinstance(item, AssistantMessage):
                names.extend(call.name for call in reversed(item.tool_calls))
        return tuple(reversed(names[: max(n, 0)]))

    def calls_of_turn(self) -> tuple[ToolCall, ...]:
        """The tool calls since the last prompt, in order."""
        calls: list[ToolCall] = []
        for item in reversed(self._items):
            if isinstance(item, UserMessage):
                break
            if isinstance(item, AssistantMessage):
                calls.extend(reversed(item.tool_calls))
        return tuple(reversed(calls))

    def _check(self, message: Message) -> None:
        if isinstance(message, ToolResult):
            if all(call.id != message.call_id for _, call in self._open):
                raise ValueError(f"no open call {message.call_id!r} for a result of {message.name}")
            return
        if self._open:
            raise ValueError(f"the call {self._open[0][1].id!r} has no result yet")
        if isinstance(message, Summary):
            border = message.replaces
            if not 1 <= border <= len(self._view) or self._is_inside_an_exchange(border):
                raise ValueError(f"a summary can't replace {border} of {len(self._view)} messages")

    def _take(self, message: Message) -> None:
        self._items.append(message)
        if isinstance(message, ToolResult):
            self._answer(message)
            return
        for call in self.unanswered:
            self._answer(_unanswered_result(call, "interrupted"))
        if isinstance(message, Summary):
            self._summarize(message)
            return
        self._view.append(message)
        if isinstance(message, AssistantMessage):
            self._results_start = len(self._view)
            self._open = list(enumerate(message.tool_calls))
            self._answered = []

    def _answer(self, result: ToolResult) -> None:
        for index, (position, call) in enumerate(self._open):
            if call.id == result.call_id:
                place = bisect(self._answered, position)
                self._answered.insert(place, position)
                self._view.insert(self._results_start + place, result)
                del self._open[index]
                return

    def _summarize(self, summary: Summary) -> None:
        border = min(max(summary.replaces, 1), len(self._view))
        while self._is_inside_an_exchange(border):
            border += 1
        self._view[:border] = [summary]

    def _is_inside_an_exchange(self, border: int) -> bool:
        return border < len(self._view) and isinstance(self._view[border], ToolResult)


def _unanswered_result(call: ToolCall, outcome: Outcome) -> ToolResult:
    output = _UNANSWERED.get(outcome, "The call has no result.")
    return ToolResult(call_id=call.id, name=call.name, outcome=outcome, output=output)
