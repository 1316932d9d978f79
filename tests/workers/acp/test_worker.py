"""The worker of an external agent, as its supervisor sees it: frames in their order, whatever the agent does."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from protocol.agent_spec import AgentSpec, ExternalCommand, ModelSettings, Trust
from protocol.codec import upward_decoder
from protocol.content import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from protocol.frame_stream import FrameStream
from protocol.frames import (
    AskGrant,
    CallFailed,
    Cancel,
    Commit,
    ExternalSession,
    Finished,
    GrantAnswer,
    Heartbeat,
    History,
    Prompt,
    Ready,
    Resume,
    Start,
    ToolCallOpened,
    UpwardFrame,
)
from protocol.records import Info, TextDelta, ThinkingDelta, TodoUpdate, ToolCallResult, Warn
from protocol.usage import Usage
from workers.acp.errors import AcpCancelled, AcpProtocolError, AcpStopped, AcpTimedOut
from workers.acp.spoken import (
    LONGEST_ARGUMENTS,
    LONGEST_HISTORY,
    LONGEST_PIECE,
    SpokenTurn,
    bounded,
    pieces,
    whole_prompt,
)
from workers.acp.verdict import ending_of
from workers.acp.worker import run_external_agent

SECONDS = 20.0
STUBS = Path(__file__).parents[2] / "stubs"

WITH_THE_FAKE = f"""
import sys
sys.path.insert(0, {str(STUBS)!r})
from fake_acp_agent import *

def update(session_update, **fields):
    update = {{"sessionUpdate": session_update, **fields}}
    write({{"method": "session/update", "params": {{"sessionId": SESSION, "update": update}}}})

def ask(call_id, *kinds):
    options = [{{"optionId": kind, "name": kind, "kind": kind}} for kind in kinds]
    call = {{"toolCallId": call_id, "title": "Write it", "kind": "edit"}}
    params = {{"sessionId": SESSION, "toolCall": call, "options": options}}
    write({{"id": 0, "method": "session/request_permission", "params": params}})
    return read()["result"]["outcome"]

open_session()
request, text = next_prompt()
"""

WORKS = """
update("agent_thought_chunk", content={"type": "text", "text": "Hm."})
update("plan", entries=[{"content": "look", "status": "pending", "priority": "high"}])
say("First a look. ")
update("tool_call", toolCallId="1", title="Read a", kind="read", status="in_progress", rawInput={"path": "a"})
update("tool_call", toolCallId="2", title="Read b", kind="read", status="in_progress", rawInput={"path": "b"})
update("tool_call_update", toolCallId="2", kind="other", status="failed")
update("tool_call_update", toolCallId="1", status="completed", rawOutput="the text")
say("It is ")
say("there.")
usage = {"inputTokens": 7, "outputTokens": 2, "totalTokens": 9}
answer(request, {"stopReason": "end_turn", "usage": usage})
"""


class Supervisor:
    """Our end of the channel; ``frames`` is all that the worker has said, heartbeats left out."""

    def __init__(self, stream: trio.SocketStream, decision: GrantAnswer) -> None:
        self.channel: FrameStream[UpwardFrame] = FrameStream(stream, upward_decoder)
        self.frames: list[UpwardFrame] = []
        self._decision = decision
        self._changed = trio.Event()

    async def listen(self) -> None:
        while frames := await self.channel.receive():
            for frame in frames:
                if isinstance(frame, AskGrant):
                    self.channel.put(self._decision)
                if not isinstance(frame, Heartbeat):
                    self.frames.append(frame)
            self._changed.set()
            self._changed = trio.Event()

    async def wait_for(self, wanted: Callable[[UpwardFrame], bool]) -> UpwardFrame:
        while not (found := [frame for frame in self.frames if wanted(frame)]):
            await self._changed.wait()
        return found[0]

    async def finished(self) -> Finished:
        """The last word of the worker."""
        ending = await self.wait_for(lambda frame: isinstance(frame, Finished))
        assert isinstance(ending, Finished)
        assert self.frames[-1] is ending
        return ending

    def committed(self) -> list[Message]:
        return [item for frame in self.frames if isinstance(frame, Commit) for item in frame.messages]


GO = GrantAnswer(grant=1, decision="go")
DO_IT = Prompt(text="Do it")


@asynccontextmanager
async def worker(
    root: Path,
    program: str,
    *,
    trust: Trust = "auto",
    decision: GrantAnswer = GO,
    command: ExternalCommand | None = None,
    history: tuple[Message, ...] = (),
    external: ExternalSession | None = None,
    last: Prompt | Resume = DO_IT,
) -> AsyncGenerator[Supervisor, None]:
    """A worker in this process, whose external agent runs ``program`` behind `WITH_THE_FAKE`."""
    command = command or ExternalCommand(command=sys.executable, args=("-c", WITH_THE_FAKE + program))
    ours, theirs = socket.socketpair()
    supervisor = Supervisor(trio.SocketStream(trio.socket.from_stdlib_socket(ours)), decision)
    start = Start(
        agent_id="fake-1",
        spec=AgentSpec(name="fake", acp=command),
        model=ModelSettings(provider="acp", adapter="acp", model="fake"),
        project_root=str(root),
        trust=trust,
        is_main=True,
        tools=(),
        agents={},
        max_iterations=1,
        external=external,
    )
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
    with trio.fail_after(SECONDS):
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(run_external_agent, stream)
            nursery.start_soon(supervisor.channel.run_writer)
            nursery.start_soon(supervisor.listen)
            for frame in (start, *(History(message=item) for item in history), last):
                supervisor.channel.put(frame)
            yield supervisor
            nursery.cancel_scope.cancel()
        await supervisor.channel.aclose()


async def test_what_an_agent_does_becomes_frames_and_a_transcript(tmp_path: Path) -> None:
    async with worker(tmp_path, WORKS) as supervisor:
        ending = await supervisor.finished()
    assert ending == Finished(outcome="complete", response="It is there.")
    said = [type(frame) for frame in supervisor.frames]
    assert said[:3] == [Ready, Commit, AskGrant]
    assert said[3:6] == [ThinkingDelta, TodoUpdate, TextDelta]
    assert supervisor.committed() == [
        UserMessage(text="Do it"),
        AssistantMessage(
            text="First a look. ",
            tool_calls=(
                ToolCall(id="1", name="read", arguments='{"path":"a"}'),
                ToolCall(id="2", name="read", arguments='{"path":"b"}'),
            ),
        ),
        ToolResult(call_id="1", name="read", outcome="success", output="the text"),
        ToolResult(call_id="2", name="read", outcome="error", output=""),
        AssistantMessage(text="It is there."),
    ]
    commits = [frame for frame in supervisor.frames if isinstance(frame, Commit)]
    assert [commit.number for commit in commits] == [1, 2, 3]
    assert (commits[-1].grant, commits[-1].iterations) == (1, 1)
    assert commits[-1].usage == Usage(prompt_tokens=7, completion_tokens=2, api_calls=1)


async def test_a_call_keeps_the_name_that_it_was_told_under(tmp_path: Path) -> None:
    """The supervisor takes a result under another name for the work of a broken worker."""
    async with worker(tmp_path, WORKS) as supervisor:
        await supervisor.finished()
    opened = {frame.call.id: frame.call.name for frame in supervisor.frames if isinstance(frame, ToolCallOpened)}
    closed = {frame.id: frame.name for frame in supervisor.frames if isinstance(frame, ToolCallResult)}
    assert opened == closed == {"1": "read", "2": "read"}


async def test_usage_that_is_not_reported_is_told_and_counts_nothing(tmp_path: Path) -> None:
    async with worker(tmp_path, "say('hello')\nend_prompt(request)") as supervisor:
        await supervisor.finished()
    (note,) = [frame for frame in supervisor.frames if isinstance(frame, Info)]
    assert "does not report what it used" in note.message
    assert [frame.usage for frame in supervisor.frames if isinstance(frame, Commit)] == [None, Usage()]


async def test_without_a_grant_nothing_is_started(tmp_path: Path) -> None:
    stop = GrantAnswer(grant=1, decision="stop", code="max_turns", message="enough")
    async with worker(tmp_path, f"open({str(tmp_path / 'started')!r}, 'w')", decision=stop) as supervisor:
        assert await supervisor.finished() == Finished(outcome="limit", code="max_turns", message="enough")
    assert not (tmp_path / "started").exists()


async def test_a_cancel_reaches_the_agent_and_closes_its_calls(tmp_path: Path) -> None:
    program = """
update("tool_call", toolCallId="1", title="Wait", kind="execute", status="in_progress", rawInput={"for": "ever"})
read_until("session/cancel")
say("I was told")
end_prompt(request, "cancelled")
"""
    async with worker(tmp_path, program) as supervisor:
        await supervisor.wait_for(lambda frame: isinstance(frame, ToolCallOpened))
        supervisor.channel.put(Cancel(reason="enough"))
        ending = await supervisor.finished()
    assert (ending.outcome, ending.response) == ("cancelled", "I was told")
    (result,) = [frame for frame in supervisor.frames if isinstance(frame, ToolCallResult)]
    assert result.outcome == "cancelled"


async def test_an_agent_that_ignores_a_cancel_is_ended(tmp_path: Path) -> None:
    async with worker(tmp_path, "say(str(os.getpid()))\nwhile True: read()") as supervisor:
        said = await supervisor.wait_for(lambda frame: isinstance(frame, TextDelta))
        supervisor.channel.put(Cancel(reason="enough"))
        assert (await supervisor.finished()).outcome == "cancelled"
    assert isinstance(said, TextDelta)
    with pytest.raises(ProcessLookupError):
        os.kill(int(said.text), 0)
    assert any(isinstance(frame, CallFailed) for frame in supervisor.frames)


@pytest.mark.parametrize(
    ("trust", "offered", "answer", "outcome"),
    [
        ("auto", ("reject_once", "allow_once", "allow_always"), "allow_always", "success"),
        ("auto", ("reject_once", "allow_once"), "allow_once", "success"),
        ("auto", ("reject_once",), "cancelled", "success"),
        ("safe", ("allow_always", "allow_once", "reject_once"), "reject_once", "denied"),
        ("plan", ("allow_always",), "cancelled", "denied"),
    ],
)
async def test_consent_is_as_wide_as_trust(
    tmp_path: Path, trust: Trust, offered: tuple[str, ...], answer: str, outcome: str
) -> None:
    program = f"""
answer_to_us = ask("1", *{offered!r})
say(answer_to_us.get("optionId", answer_to_us["outcome"]))
update("tool_call_update", toolCallId="1", status={("completed" if outcome == "success" else "failed")!r})
end_prompt(request)
"""
    async with worker(tmp_path, program, trust=trust) as supervisor:
        assert (await supervisor.finished()).response == answer
    opened, result = [frame for frame in supervisor.frames if isinstance(frame, ToolCallOpened | ToolCallResult)]
    assert isinstance(opened, ToolCallOpened) and isinstance(result, ToolCallResult)
    assert (opened.call.name, result.outcome) == ("edit", outcome)
    warned = [frame.message for frame in supervisor.frames if isinstance(frame, Warn)]
    assert len(warned) == (trust != "auto")


async def test_a_missing_program_is_one_sentence(tmp_path: Path) -> None:
    command = ExternalCommand(command="no-such-agent")
    async with worker(tmp_path, "", command=command) as supervisor:
        ending = await supervisor.finished()
    assert (ending.outcome, ending.code) == ("error", "agent_not_started")
    assert ending.message == "there is no program 'no-such-agent': install it, or give its whole path"


async def test_an_agent_that_needs_a_login_says_what_to_do(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(STUBS)!r})
from fake_acp_agent import *
answer(read_until("initialize"), {{"protocolVersion": 1, "authMethods": [{{"id": "web", "name": "Log in"}}]}})
write({{"id": read_until("session/new")["id"], "error": {{"code": -32000, "message": "Authentication required"}}}})
read()
"""
    command = ExternalCommand(command=sys.executable, args=("-c", program))
    async with worker(tmp_path, "", command=command) as supervisor:
        ending = await supervisor.finished()
    assert (ending.outcome, ending.code) == ("error", "login_needed")
    assert "start it by hand once and log in (it offers: Log in)" in ending.message


async def test_what_a_dead_agent_wrote_last_is_told(tmp_path: Path) -> None:
    program = "print('the disk is full', file=sys.stderr, flush=True)\nsys.exit(3)"
    async with worker(tmp_path, program) as supervisor:
        ending = await supervisor.finished()
    assert (ending.code, "exit_code=3" in ending.message) == ("agent_exited", True)
    (warned,) = [frame for frame in supervisor.frames if isinstance(frame, Warn)]
    assert warned.message == "fake wrote on its standard error: the disk is full"


async def test_what_was_said_before_is_in_the_prompt(tmp_path: Path) -> None:
    history = (UserMessage(text="Who are you?"), AssistantMessage(text="The fake."))
    async with worker(tmp_path, "say(text)\nend_prompt(request)", history=history) as supervisor:
        ending = await supervisor.finished()
    assert ending.response.endswith("User: Who are you?\n\nYou: The fake.\n\nNow:\n\nDo it")
    assert supervisor.committed()[0] == UserMessage(text="Do it")


async def test_a_flood_of_text_waits_for_the_supervisor_and_arrives_whole(tmp_path: Path) -> None:
    program = "for _ in range(300): say('x' * 20_000)\nend_prompt(request)"
    async with worker(tmp_path, program) as supervisor:
        await supervisor.finished()
    assert sum(len(frame.text) for frame in supervisor.frames if isinstance(frame, TextDelta)) == 6_000_000


# -- the parts without a process --------------------------------------------------------------------------------------


def test_a_reply_is_what_came_after_the_last_call() -> None:
    turn = SpokenTurn()
    turn.say("before ")
    turn.open(ToolCall(id="1", name="read"))
    turn.say("meanwhile, ")
    assert turn.close(ToolCallResult(id="1", outcome="success", name="read", output="x", elapsed_ms=0)) == [
        AssistantMessage(text="before ", tool_calls=(ToolCall(id="1", name="read"),)),
        ToolResult(call_id="1", name="read", outcome="success", output="x"),
    ]
    turn.say("after")
    assert (turn.reply, turn.all_text) == ("meanwhile, after", "before meanwhile, after")
    assert turn.finish() == [AssistantMessage(text="meanwhile, after")]


def test_an_id_that_is_used_twice_is_two_calls_in_the_transcript() -> None:
    turn = SpokenTurn()
    result = ToolCallResult(id="1", outcome="success", name="read", output="x", elapsed_ms=0)
    turn.open(ToolCall(id="2", name="read"))
    turn.open(ToolCall(id="1", name="read"))
    assert turn.close(result) == []
    turn.open(ToolCall(id="1", name="read"))
    assert turn.close(msgspec.structs.replace(result, output="y")) == []
    _, *answers = turn.close(msgspec.structs.replace(result, id="2"))
    assert [(item.call_id, item.output) for item in answers if isinstance(item, ToolResult)] == [
        ("2", "x"),
        ("1", "x"),
        ("1#2", "y"),
    ]


def test_a_long_history_is_cut_at_its_beginning() -> None:
    history = (UserMessage(text="old"), AssistantMessage(text="x" * LONGEST_HISTORY), UserMessage(text="new"))
    prompt = whole_prompt("Be brief.", history, "Go on")
    assert prompt.startswith("Be brief.\n\nWhat was said earlier in this session:\n\n[what was said before that")
    assert prompt.endswith("x\n\nUser: new\n\nNow:\n\nGo on")
    assert "old" not in prompt


def test_what_is_too_long_for_a_line_is_cut_or_left_out() -> None:
    assert list(map(len, pieces("x" * (LONGEST_PIECE + 1)))) == [LONGEST_PIECE, 1]
    call = ToolCall(id="1", name="edit", arguments=f'{{"x":"{"x" * LONGEST_ARGUMENTS}"}}')
    assert msgspec.json.decode(bounded(call).arguments) == {
        "left_out": f"{LONGEST_ARGUMENTS + 8} characters of arguments"
    }


def test_without_anything_else_the_prompt_is_the_prompt() -> None:
    assert whole_prompt("", (), "Go on") == "Go on"


@pytest.mark.parametrize(
    ("error", "is_our_cancel", "outcome", "code"),
    [
        (AcpCancelled(), True, "cancelled", "cancelled"),
        (AcpCancelled(), False, "error", "agent_cancelled"),
        (AcpStopped("max_tokens", "x"), False, "limit", "max_tokens"),
        (AcpTimedOut(1.0), False, "limit", "timeout"),
        (AcpProtocolError("broken"), False, "error", "agent_failed"),
    ],
)
def test_each_error_is_an_end_of_the_agent(
    error: AcpCancelled | AcpStopped | AcpTimedOut | AcpProtocolError, is_our_cancel: bool, outcome: str, code: str
) -> None:
    ending = ending_of(error, "said", is_our_cancel=is_our_cancel, has_refused=False)
    assert (ending.outcome, ending.code, ending.response) == (outcome, code, "said")
    assert ending.message


def test_an_agent_that_gives_up_because_it_was_refused_is_said_to_have_done_so() -> None:
    ending = ending_of(AcpCancelled(), "", is_our_cancel=False, has_refused=True)
    assert (ending.outcome, ending.code) == ("error", "agent_cancelled")
    assert "refused" in ending.message
