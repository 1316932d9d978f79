from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio

from protocol.agent_spec import AgentSpec, ModelSettings
from protocol.codec import downward_decoder, encode_frame_body
from protocol.content import AssistantMessage, UserMessage
from protocol.errors import ProtocolError
from protocol.frame_stream import FrameStream
from protocol.frames import Cancel, ChildResult, DownwardFrame, History, Prompt, Resume, Start
from protocol.framing import frame
from workers.assignment import receive_assignment

START = Start(
    agent_id="a",
    spec=AgentSpec(name="default", system_prompt="You are tested."),
    model=ModelSettings(provider="p", adapter="scripted", model="m"),
    project_root="/",
    trust="auto",
    is_main=True,
    tools=(),
    agents={},
    max_iterations=3,
)
SAID = History(message=UserMessage(text="before"))
ANSWERED = History(message=AssistantMessage(text="then"))


@asynccontextmanager
async def told(*frames: DownwardFrame, pieces: int = 1_000_000) -> AsyncGenerator[FrameStream[DownwardFrame], None]:
    """A worker's end of a channel on which ``frames`` come, ``pieces`` bytes at a time, and then its end."""
    ours, theirs = trio.socket.socketpair()
    supervisor = trio.SocketStream(ours)
    data = b"".join(frame(encode_frame_body(each)) for each in frames)

    async def send() -> None:
        for begin in range(0, len(data), pieces):
            await supervisor.send_all(data[begin : begin + pieces])
        await supervisor.aclose()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery, trio.SocketStream(theirs) as stream:
            nursery.start_soon(send)
            yield FrameStream(stream, downward_decoder)
            nursery.cancel_scope.cancel()
    await supervisor.aclose()


@pytest.mark.parametrize("pieces", [1, 7, 1_000_000])
async def test_a_new_turn_is_its_start_its_history_and_its_prompt(pieces: int) -> None:
    async with told(START, SAID, ANSWERED, Prompt(text="go"), pieces=pieces) as channel:
        assignment, _early = await receive_assignment(channel)
    assert assignment.start == START
    assert assignment.history == (SAID.message, ANSWERED.message)
    assert (assignment.prompt, assignment.resume) == ("go", None)


async def test_a_turn_to_go_on_with_has_a_resume_in_place_of_the_prompt() -> None:
    resume = Resume(iterations=4, requests=2)
    async with told(START, SAID, resume) as channel:
        assignment, _early = await receive_assignment(channel)
    assert (assignment.prompt, assignment.resume) == ("", resume)


async def test_what_came_with_the_last_frame_of_the_assignment_is_not_lost() -> None:
    result, cancel = ChildResult(request=1, outcome="complete", text="x"), Cancel(reason="enough")
    async with told(START, Resume(iterations=0), result, cancel) as channel:
        _assignment, early = await receive_assignment(channel)
    assert early == [result, cancel]


@pytest.mark.parametrize(
    "frames",
    [(Prompt(text="go"),), (SAID, Resume(iterations=0)), (START, Cancel(reason="x"), Prompt(text="go"))],
    ids=["prompt without a start", "resume without a start", "a cancel in between"],
)
async def test_frames_out_of_order_are_refused(frames: tuple[DownwardFrame, ...]) -> None:
    async with told(*frames) as channel:
        with pytest.raises(ProtocolError, match="before the assignment was complete"):
            await receive_assignment(channel)


async def test_a_stream_that_ends_too_early_is_refused() -> None:
    async with told(START, SAID) as channel:
        with pytest.raises(ProtocolError, match="ended before"):
            await receive_assignment(channel)
