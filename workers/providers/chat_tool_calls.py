"""Puts the tool calls of one reply together from the pieces that servers send.

The protocol says: each piece has the ``index`` of its call, the first piece has ``id`` and ``name``. In the field
indexes are missing, start anywhere or are all 0, ids and names are repeated, empty or missing. The rules here ask what
could still be a sound call: arguments never follow a complete JSON object, and a call starts with a name.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from protocol.codec import clean_text
from protocol.content import ToolCall
from workers.providers.chat_chunk import ToolCallPart
from workers.providers.provider import FinishReason
from workers.providers.tool_arguments import ArgumentsFault, canonical_arguments, is_complete

_NAMELESS = "unnamed"
_COMPLETENESS_LIMIT = 64 * 1024  # beyond this many characters nobody is asked whether arguments are complete: too dear


class _OpenCall:
    """One call while its pieces come in."""

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self._pieces: list[str] = []
        self._size = 0

    def add(self, part: ToolCallPart) -> None:
        self.id = self.id or part.id or ""
        if part.name != self.name:
            self.name += part.name
        piece = part.arguments_text
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)

    @property
    def arguments(self) -> str:
        return clean_text("".join(self._pieces))

    @property
    def has_arguments(self) -> bool:
        return any(not piece.isspace() for piece in self._pieces)

    @property
    def is_complete(self) -> bool:
        return self._size <= _COMPLETENESS_LIMIT and is_complete(self.arguments)


class ToolCallAssembly:
    """Takes the pieces in the order in which they come; gives the calls in the order in which they began.

    ``made_id`` is what the ids begin with that are made up where the server sends none; it must be new for each reply,
    so that they are unique in the transcript.
    """

    def __init__(self, made_id: str) -> None:
        self._made_id = made_id
        self._calls: list[_OpenCall] = []
        self._by_index: dict[int, _OpenCall] = {}
        self._current: _OpenCall | None = None

    def feed(self, parts: Iterable[ToolCallPart]) -> None:
        """Take the pieces of one delta. Raises `BadResponse` for arguments that are neither text nor an object."""
        touched: list[_OpenCall] = []
        for part in parts:
            call = self._candidate(part)
            if call is None or _begins_another(call, part, call in touched):
                call = self._open(part)
            if part.index is not None:
                call.index = part.index
                self._by_index[part.index] = call
            call.add(part)
            touched.append(call)
            self._current = call

    def finish(self, reason: FinishReason) -> tuple[ToolCall, ...]:
        """The calls of the reply that ended for ``reason``; those that can't run say why in ``fault``."""
        real = [call for call in self._calls if call.name or call.has_arguments]
        taken: set[str] = set()
        calls: list[ToolCall] = []
        for position, call in enumerate(real):
            call_id = _unique(call.id or f"{self._made_id}{position}", taken)
            taken.add(call_id)
            cut = reason in ("length", "content_filter") and position == len(real) - 1
            calls.append(_finished(call, call_id, cut=cut))
        return tuple(calls)

    def _open(self, part: ToolCallPart) -> _OpenCall:
        call = _OpenCall(part.index)
        self._calls.append(call)
        return call

    def _candidate(self, part: ToolCallPart) -> _OpenCall | None:
        """The call that ``part`` may go on with, None if it can only begin one."""
        if part.index is not None:
            call = self._by_index.get(part.index)
            return call if call is not None else self._unindexed_for(part)
        if part.id:
            for call in reversed(self._calls):
                if call.id == part.id:
                    return call
        return self._current

    def _unindexed_for(self, part: ToolCallPart) -> _OpenCall | None:
        """The current call, if it has had no index so far and ``part`` brings the first one for it."""
        current = self._current
        if current is None or current.index is not None:
            return None
        goes_on = part.id == current.id if part.id else not part.name
        return current if goes_on else None


def _begins_another(call: _OpenCall, part: ToolCallPart, in_this_delta: bool) -> bool:
    """Whether ``part`` is the start of a new call although it could be taken for a piece of ``call``."""
    if part.id and call.id and part.id != call.id:
        return bool(part.name) or part.index is None
    if not part.name:
        return False
    if in_this_delta:
        return True
    # A name may come in halves among the arguments, but not behind them; nor may more arguments.
    return call.is_complete and (part.name != call.name or part.arguments_text.strip() != "")


def _finished(call: _OpenCall, call_id: str, *, cut: bool) -> ToolCall:
    name = clean_text(call.name) or _NAMELESS
    if not call.name:
        return ToolCall(id=call_id, name=name, fault="The call has no name.")
    if cut and not call.has_arguments:
        return ToolCall(id=call_id, name=name, fault="The reply was cut off before the arguments.")
    try:
        return ToolCall(id=call_id, name=name, arguments=canonical_arguments(call.arguments))
    except ArgumentsFault as fault:
        ending = " The reply was cut off: send less in one call." if cut else ""
        return ToolCall(id=call_id, name=name, fault=f"{fault}{ending}")


def _unique(wanted: str, taken: Container[str]) -> str:
    """``wanted``, with ``#2`` (``#3``, ...) behind it where it is taken."""
    base = clean_text(wanted)
    candidate, number = base, 1
    while candidate in taken:
        number += 1
        candidate = f"{base}#{number}"
    return candidate
