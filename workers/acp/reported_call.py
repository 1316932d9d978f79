"""One tool call of an external agent, put together from what its updates say of it.

No input or output; ``now`` is a time in seconds that only grows. Source: Agent Client Protocol v1, "Tool Calls".
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.codec import clean_text
from protocol.content import Outcome, ToolCall
from protocol.frames import ToolCallOpened
from protocol.records import ToolCallResult
from workers.acp.messages import objects_of
from workers.acp.tool_content import arguments_text, output_text

LONGEST_HOLD = 16
"""Updates of the session for which a call that does not run yet is held back, since its input changed last."""

_MERGED = ("title", "name", "kind", "status", "locations", "rawInput", "rawOutput")


class ReportedCall:
    """A call that is not over: all that is known of it, and what was told of it.

    A call is told of once and with its arguments, but agents announce a call first and give its input piece by piece.
    So it is held back until it runs, asks for consent or is over, or for `LONGEST_HOLD` updates.
    """

    def __init__(self, call_id: str, now: float) -> None:
        self.call_id = call_id
        self.was_denied = False
        self._started = now
        self._fields: dict[str, object] = {}
        self._proposed: object = None  # content from before it ran: what it is about, and no outcome
        self._content: object = None
        self._has_begun = False
        self._held_for = 0
        self._told: ToolCall | None = None

    @property
    def was_told(self) -> bool:
        """Whether `opened` was called."""
        return self._told is not None

    @property
    def is_due(self) -> bool:
        """Whether it is to be told of now."""
        return not self.was_told and (self._has_begun or self._held_for >= LONGEST_HOLD)

    @property
    def ended_as(self) -> Outcome | None:
        """How it ended by the agent's own account; None while it is open."""
        match self._fields.get("status"):
            case "completed":
                return "success"
            case "failed":
                return "denied" if self.was_denied else "error"
            case _:
                return None

    def merge(self, update: Mapping[str, object], *, is_question: bool = False) -> None:
        """Take in what ``update`` says: what it names replaces what was known, but no input becomes an empty one.

        ``is_question`` says that it comes with a question for consent, whose content is a proposal.
        """
        given = {name: update[name] for name in _MERGED if update.get(name) is not None}
        before = self._fields.get("rawInput")
        if before and not given.get("rawInput", before):
            del given["rawInput"]
        self._fields |= given
        if self._fields.get("rawInput") != before:
            self._held_for = 0
        self._has_begun = self._has_begun or self._fields.get("status") not in (None, "pending")
        content = update.get("content")
        if content is None:
            return
        if is_question or not self._has_begun:
            self._proposed = content
        else:
            self._content = content

    def hold(self) -> None:
        """The session had one update more."""
        self._held_for += 1

    def opened(self) -> ToolCallOpened:
        """What is told of it; its name stays what it is now."""
        title = self._fields.get("title")
        arguments = arguments_text(
            self._fields.get("rawInput"), title if isinstance(title, str) else "", self._fields.get("locations")
        )
        self._told = ToolCall(id=self.call_id, name=self._name(), arguments=arguments)
        return ToolCallOpened(call=self._told)

    def result(self, outcome: Outcome, now: float, output: str = "") -> ToolCallResult:
        """How it ended; ``output`` stands for an outcome of which the agent says nothing."""
        return ToolCallResult(
            id=self.call_id,
            outcome=outcome,
            name=self._name() if self._told is None else self._told.name,
            output=self._output(outcome) or output,
            elapsed_ms=max(0, round((now - self._started) * 1000)),
        )

    def _name(self) -> str:
        """The tool's name where the agent gives it, else the kind of tool."""
        for given in (self._fields.get("name"), self._fields.get("kind")):
            if isinstance(given, str) and given:
                return clean_text(given)
        return "other"

    def _output(self, outcome: Outcome) -> str:
        content, raw = self._content, self._fields.get("rawOutput")
        if content is None and outcome == "success":
            # Of a file that was changed as proposed, many agents say no more than that.
            is_all = raw is None
            content = [item for item in objects_of(self._proposed) if is_all or item.get("type") == "diff"]
        return output_text(content, raw)
