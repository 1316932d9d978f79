"""What an external agent said and did as items of a transcript, and a transcript as a prompt for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from protocol.content import AssistantMessage, Message, Summary, ToolCall, ToolResult, UserMessage
from protocol.records import ToolCallResult
from workers.core.transcript import Transcript

LONGEST_TEXT = 4_000_000
"""Characters of one reply that are kept; the transcript travels in frames."""
LONGEST_HISTORY = 100_000
"""Characters of earlier turns that a prompt repeats, the newest."""

LONGEST_PIECE = 1_000_000
"""Characters of one line of text; one line of an agent's may hold many more."""
LONGEST_ARGUMENTS = 1_000_000
"""Characters of a call's arguments that are passed on."""

_CUT = "[what was said before that is left out]\n"
_EARLIER = "What was said earlier in this session:"
_MISSED = "What was said since, without you:"

GO_ON = "Your process ended before you were done: what you did last may have been done in part. Go on where you were."
"""The prompt of an agent whose process was started again in the middle of its turn."""


class SpokenTurn:
    """Groups text and calls into replies: a reply's calls are those that were open at the same time.

    A group becomes items of the transcript once the last of its calls has ended, so that no result stands without its
    call, whenever the process dies. ``reply`` is the text since the last call began, ``all_text`` all of it.
    """

    def __init__(self) -> None:
        self._before = ""
        self._text: list[str] = []
        self._all: list[str] = []
        self._calls: list[ToolCall] = []
        self._results: dict[int, ToolCallResult] = {}

    @property
    def reply(self) -> str:
        """What was said since the last call began."""
        return "".join(self._text)[:LONGEST_TEXT]

    @property
    def all_text(self) -> str:
        """What was said in all of the turn."""
        return "".join(self._all)[:LONGEST_TEXT]

    def say(self, text: str) -> None:
        """A piece of text came."""
        self._text.append(text)
        self._all.append(text)

    def open(self, call: ToolCall) -> None:
        """A call began."""
        self._before += "".join(self._text)
        self._text.clear()
        self._calls.append(call)

    def close(self, result: ToolCallResult) -> list[Message]:
        """A call ended; returns the items of its group if it was the last of it that was open."""
        for index, call in enumerate(self._calls):
            if call.id == result.id and index not in self._results:
                self._results[index] = result
                break
        return self._group() if len(self._results) == len(self._calls) else []

    def finish(self) -> list[Message]:
        """The turn is over, and so are all calls: the last reply, if there is one."""
        return [AssistantMessage(text=self.reply)] if self._text else []

    def _group(self) -> list[Message]:
        calls, results = self._calls, self._results
        ids = _unique([call.id for call in calls])
        named = tuple(
            ToolCall(id=unique, name=call.name, arguments=call.arguments)
            for unique, call in zip(ids, calls, strict=True)
        )
        answers = [
            ToolResult(call_id=call.id, name=call.name, outcome=results[index].outcome, output=results[index].output)
            for index, call in enumerate(named)
        ]
        reply = AssistantMessage(text=self._before[:LONGEST_TEXT], tool_calls=named)
        self._before, self._calls, self._results = "", [], {}
        return [reply, *answers] if named else []


def whole_prompt(system_prompt: str, history: Sequence[Message], prompt: str) -> str:
    """The one prompt that an agent is given: what it is to be, what was said before, what is wanted now.

    An agent that begins a session of its own knows nothing, so it is told what the transcript holds.
    """
    return "\n\n".join(filter(None, (system_prompt.strip(), _told(_EARLIER, history), prompt)))


def later_prompt(missed: Sequence[Message], prompt: str) -> str:
    """The prompt of an agent that goes on with its session; ``missed`` is what the transcript has that it has not."""
    return "\n\n".join(filter(None, (_told(_MISSED, missed), prompt)))


def pieces(text: str) -> Iterator[str]:
    """``text`` in pieces that frames can hold."""
    for begin in range(0, len(text), LONGEST_PIECE):
        yield text[begin : begin + LONGEST_PIECE]


def bounded(call: ToolCall) -> ToolCall:
    """The call; arguments that are too long are left out of it whole, so that what is there is true."""
    if len(call.arguments) <= LONGEST_ARGUMENTS:
        return call
    return msgspec.structs.replace(call, arguments=f'{{"left_out":"{len(call.arguments)} characters of arguments"}}')


def _told(opening: str, history: Sequence[Message]) -> str:
    said = "\n\n".join(filter(None, map(_in_words, Transcript(history).view())))
    if len(said) > LONGEST_HISTORY:
        said = _CUT + said[-LONGEST_HISTORY:]
    return f"{opening}\n\n{said}\n\nNow:" if said else ""


def _in_words(message: Message) -> str:
    match message:
        case UserMessage(text=text):
            return f"User: {text}"
        case AssistantMessage(text=text) if text:
            return f"You: {text}"
        case Summary(text=text):
            return f"In short: {text}"
        case _:
            return ""


def _unique(ids: Sequence[str]) -> list[str]:
    """The ids, the second use of one with ``#2`` behind it."""
    seen: dict[str, int] = {}
    unique: list[str] = []
    for each in ids:
        seen[each] = seen.get(each, 0) + 1
        unique.append(each if seen[each] == 1 else f"{each}#{seen[each]}")
    return unique
