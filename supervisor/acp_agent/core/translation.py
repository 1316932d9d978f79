"""The lines of a run as the updates that a client of the Agent Client Protocol reads.

A pure machine, one for each session. The main agent's text is the message; a sub-agent is the tool call that started
it, its text is that call's content, and its own calls are shown with its name before their titles. Ids of calls come
from models and repeat, so a client is given ids of ours.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from protocol import content as transcript
from protocol.content import Outcome
from protocol.records import (
    AgentCrashed,
    Compaction,
    ContextUsage,
    Error,
    Info,
    Record,
    Retry,
    SubAgentStart,
    TextDelta,
    ThinkingDelta,
    TodoUpdate,
    ToolCallResult,
    ToolCallStart,
    ToolOutputLine,
    Warn,
)
from supervisor.acp_agent.core.tool_calls import LONGEST_TITLE, ShownCall, plan_entries, plan_in, shown_call
from supervisor.acp_agent.core.updates import (
    AgentMessageChunk,
    AgentThoughtChunk,
    CompactionStatus,
    CompactionUpdate,
    Content,
    Notice,
    NoticeSeverity,
    Plan,
    Text,
    ToolCall,
    ToolCallFields,
    ToolCallUpdate,
    ToolStatus,
    Update,
    UsageUpdate,
    UserMessageChunk,
)
from supervisor.store.schema import MAIN_AGENT_ID as MAIN
from supervisor.terminal_text import printable

KEPT_OUTPUT = 8 * 1024
"""Characters of a running command's output, the newest, that a client is shown; the result has all that the model has.
"""

_COMPACTIONS: dict[str, CompactionStatus] = {
    "started": "in_progress",
    "completed": "completed",
    "skipped": "cancelled",
    "failed": "failed",
}


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds of updates that the client announced to take."""

    notices: bool = False
    compaction: bool = False


class _OpenCall:
    """A call that has no result yet; ``live`` is what it has shown of itself so far."""

    def __init__(self, tool_call_id: str, name: str, arguments: msgspec.Raw, shown: ShownCall) -> None:
        self.tool_call_id = tool_call_id
        self.name = name
        self.arguments = arguments
        self.shown = shown
        self._live = ""
        self.is_due = False

    def add(self, text: str) -> None:
        self._live = (self._live + text)[-KEPT_OUTPUT:]
        self.is_due = True

    def update(self) -> ToolCallUpdate:
        self.is_due = False
        return ToolCallUpdate(tool_call_id=self.tool_call_id, content=_text_content(self._live))


class Translator:
    """Makes updates of records, in order. ``root`` is the session's folder, ``epoch`` keeps ids apart."""

    def __init__(self, root: str, epoch: int, features: Features) -> None:
        self._root = root
        self._epoch = epoch
        self._features = features
        self._open: dict[tuple[str, str], _OpenCall] = {}
        self._delegations: dict[str, _OpenCall] = {}
        self._calls = 0
        self._messages = 0
        self._compactions = 0
        self._speaking: type[Update] | None = None

    # -- a turn -------------------------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """No call of the turn before is open any more, and the next text is a message of its own."""
        self._open.clear()
        self._delegations.clear()
        self._speaking = None

    def know_sub_agent(self, agent_id: str, parent_agent_id: str, parent_call_id: str) -> None:
        """The open call of ``parent_agent_id`` that started the sub-agent; to be told before its first record."""
        call = self._open.get((parent_agent_id, parent_call_id))
        if call is not None:
            self._delegations[agent_id] = call

    def translate(self, record: Record, agent_id: str = MAIN) -> list[Update]:
        """The updates that ``record`` of the agent becomes; none for what a client has no use for."""
        match record:
            case ToolCallStart(id=call_id, name=name, args=arguments):
                return [self._begin_call(agent_id, call_id, name, arguments, "in_progress")]
            case ToolCallResult(id=call_id, outcome=outcome, output=output):
                return self._end_call(agent_id, call_id, outcome, output)
            case ToolOutputLine(id=call_id, line=line):
                call = self._open.get((agent_id, call_id))
                if call is not None:
                    call.add(f"{line}\n")
                return []
            case SubAgentStart(agent_id=child, prompt=prompt):
                return self._begin_sub_agent(child, prompt)
            case _ if agent_id == MAIN:
                return self._of_main(record)
            case TextDelta(text=text) if agent_id in self._delegations:
                self._delegations[agent_id].add(text)
                return []
            case _:
                return []

    def live_output(self) -> list[Update]:
        """What running calls have shown since this was asked last. To be asked a few times a second."""
        return [call.update() for call in self._open.values() if call.is_due]

    def question(self, agent_id: str, call_id: str) -> ToolCallFields | None:
        """An open call as a permission request shows it."""
        call = self._open.get((agent_id, call_id))
        if call is None:
            return None
        return ToolCallFields(
            tool_call_id=call.tool_call_id,
            title=call.shown.title,
            name=call.name,
            kind=call.shown.kind,
            status="pending",
            content=call.shown.changes,
            locations=call.shown.locations,
            raw_input=call.arguments,
        )

    # -- a stored transcript ------------------------------------------------------------------------------------------

    def replay(self, messages: Iterable[transcript.Message]) -> list[Update]:
        """A main agent's transcript, for a client that takes the session up."""
        self.begin_turn()
        updates: list[Update] = []
        for message in messages:
            match message:
                case transcript.UserMessage(text=text):
                    self._open.clear()
                    updates.append(self._chunk(UserMessageChunk, text))
                    self._speaking = None
                case transcript.AssistantMessage():
                    updates += self._replay_reply(message)
                case transcript.ToolResult(call_id=call_id, outcome=outcome, output=output):
                    updates += self._end_call(MAIN, call_id, outcome, output)
                case transcript.Summary():
                    pass  # made for the model; what it stands for was replayed
        return updates

    def _replay_reply(self, message: transcript.AssistantMessage) -> list[Update]:
        updates: list[Update] = []
        if message.reasoning:
            updates.append(self._chunk(AgentThoughtChunk, message.reasoning))
        if message.text:
            updates.append(self._chunk(AgentMessageChunk, message.text))
        for call in message.tool_calls:
            arguments = msgspec.Raw(call.arguments.encode())
            updates.append(self._begin_call(MAIN, call.id, call.name, arguments, "pending"))
            if call.name == "TodoWrite" and (entries := plan_in(call.arguments)) is not None:
                updates.append(Plan(entries=entries))
        self._speaking = None
        return updates

    # -- calls --------------------------------------------------------------------------------------------------------

    def _begin_call(
        self, agent_id: str, call_id: str, name: str, arguments: msgspec.Raw, status: ToolStatus
    ) -> ToolCall:
        self._speaking = None
        self._calls += 1
        shown = shown_call(name, bytes(arguments), self._root, "" if agent_id == MAIN else agent_id)
        call = _OpenCall(f"call-{self._epoch}-{self._calls}", name, arguments, shown)
        self._open[agent_id, call_id] = call
        return ToolCall(
            tool_call_id=call.tool_call_id,
            title=shown.title,
            name=name,
            kind=shown.kind,
            status=status,
            raw_input=arguments,
            content=shown.changes,
            locations=shown.locations,
        )

    def _end_call(self, agent_id: str, call_id: str, outcome: Outcome, output: str) -> list[Update]:
        call = self._open.pop((agent_id, call_id), None)
        if call is None:
            return []
        done = outcome == "success"
        # A change that was made shows itself; of one that was not, the client is told why.
        content = None if done and call.shown.changes else _text_content(output)
        status: ToolStatus = "completed" if done else "failed"
        return [ToolCallUpdate(tool_call_id=call.tool_call_id, status=status, content=content)]

    def _begin_sub_agent(self, agent_id: str, prompt: str) -> list[Update]:
        call = self._delegations.get(agent_id)
        if call is None:
            return []
        title = printable(" ".join(f"{agent_id}: {prompt}".split()))[:LONGEST_TITLE]
        return [ToolCallUpdate(tool_call_id=call.tool_call_id, title=title)]

    # -- what the main agent says -------------------------------------------------------------------------------------

    def _of_main(self, record: Record) -> list[Update]:
        match record:
            case TextDelta(text=text):
                return [self._chunk(AgentMessageChunk, text)] if text else []
            case ThinkingDelta(text=text):
                return [self._chunk(AgentThoughtChunk, text)] if text else []
            case TodoUpdate(items=items):
                return [Plan(entries=plan_entries(items))]
            case ContextUsage(used=used, max=most):
                return [UsageUpdate(used=used, size=most)]
            case Compaction():
                return self._of_compaction(record)
            case Retry(reason=reason, attempt=attempt, max_attempts=most):
                return self._note("warning", f"The reply is asked for again ({reason}, {attempt} of {most}).")
            case AgentCrashed(restart=int(), cause=cause):
                return self._note("warning", f"The agent's process died ({cause}); it goes on in a new one.")
            case Info(message=message):
                return self._note("info", message)
            case Warn(message=message):
                return self._note("warning", message)
            case Error(message=message):
                return self._note("error", message)
            case _:
                return []

    def _of_compaction(self, record: Compaction) -> list[Update]:
        if not self._features.compaction:
            return []
        self._compactions += record.status == "started"
        compaction_id = f"compaction-{self._epoch}-{self._compactions}"
        return [CompactionUpdate(compaction_id=compaction_id, status=_COMPACTIONS[record.status])]

    def _note(self, severity: NoticeSeverity, text: str) -> list[Update]:
        """A note for the person: a thought, where the client takes no notes. What comes after it is a new message."""
        self._speaking = None
        if self._features.notices:
            return [Notice(severity=severity, title=text or severity)]
        updates: list[Update] = [self._chunk(AgentThoughtChunk, text)]
        self._speaking = None
        return updates

    def _chunk(
        self, kind: type[UserMessageChunk] | type[AgentMessageChunk] | type[AgentThoughtChunk], text: str
    ) -> UserMessageChunk | AgentMessageChunk | AgentThoughtChunk:
        if self._speaking is not kind:
            self._speaking = kind
            self._messages += 1
        return kind(content=Text(text=text), message_id=f"message-{self._epoch}-{self._messages}")


def _text_content(text: str) -> tuple[Content, ...]:
    return (Content(content=Text(text=text)),)
