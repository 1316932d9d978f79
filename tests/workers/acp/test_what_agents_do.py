"""What real agents were seen to do, and what hostile ones could, against an agent in memory and in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from trio.testing import MockClock

from tests.workers.acp.memory_agent import SESSION, MemoryAgent, Message, Script, run_with
from workers.acp import (
    AcpCancelled,
    AcpControl,
    AcpProtocolError,
)

TEXT: Message = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "said"}}


async def finish(agent: MemoryAgent, prompt: Message) -> None:
    """Say something, end the prompt, wait for the end."""
    await agent.say("said")
    await agent.end_prompt(prompt)
    await agent.receive()


# -- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        b"Starting the agent ...\n",
        b"\x1b[32mready\x1b[0m\n\n\n",
        b'[{"jsonrpc": "2.0", "id": 1, "result": {}}]\n',
        b'{"level": "info", "msg": "up", "id": 1}\n',
        b'{"jsonrpc": "1.0", "id": 1, "result": {}}\n',
        b'{"jsonrpc": "2.0", "id": 1.0, "result": {}}\n',
        b'{"jsonrpc": "2.0", "id": true, "result": {}}\n',
        b'{"jsonrpc": "2.0", "id": 1}\n',
        b'{"jsonrpc": "2.0", "result": {}}\n',
        b'"a string"\nnull\n17\n',
        b"\xff\xfe binary \x00\n",
    ],
)
async def test_what_is_no_message_is_skipped(autojump_clock: MockClock, noise: bytes) -> None:
    async def script(agent: MemoryAgent) -> None:
        await agent.write(noise)
        await finish(agent, await agent.open_prompt())

    assert (await run_with(script)).text == "said"


@pytest.mark.parametrize(("lines", "is_too_many"), [(10_000, False), (10_001, True)])
async def test_ten_thousand_lines_of_noise_are_skipped_and_no_more(
    autojump_clock: MockClock, lines: int, is_too_many: bool
) -> None:
    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        await agent.write(b"noise\n" * lines)
        await finish(agent, prompt)

    if is_too_many:
        with pytest.raises(AcpProtocolError, match="10000 lines"):
            await run_with(script)
    else:
        assert (await run_with(script)).text == "said"


@pytest.mark.parametrize(
    "line", [b"{\n", b"{nonsense}\n", b'  {"jsonrpc": "2.0",\n', b'{"a": NaN}\n', b'{"\xff": 1}\n']
)
async def test_a_line_that_begins_like_a_message_and_is_none_ends_the_turn(
    autojump_clock: MockClock, line: bytes
) -> None:
    async def script(agent: MemoryAgent) -> None:
        await agent.open_prompt()
        await agent.write(line)

    with pytest.raises(AcpProtocolError, match="begins like JSON"):
        await run_with(script)


async def test_a_last_line_without_an_end_is_a_line(autojump_clock: MockClock) -> None:
    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        await agent.say("said")
        answer = {"jsonrpc": "2.0", "id": prompt["id"], "result": {"stopReason": "end_turn"}}
        await agent.write(json.dumps(answer).encode())
        await agent.leave(0)

    assert (await run_with(script)).text == "said"


async def test_half_a_message_at_the_end_is_no_message(autojump_clock: MockClock) -> None:
    async def script(agent: MemoryAgent) -> None:
        await agent.open_prompt()
        await agent.write(b'{"jsonrpc": "2.0", "id": 3, "resu')
        await agent.leave(0)

    with pytest.raises(AcpProtocolError):
        await run_with(script)


async def test_a_line_of_twelve_megabytes_is_a_line(autojump_clock: MockClock) -> None:
    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        await agent.say("x" * 12_000_000)
        await agent.end_prompt(prompt)

    assert len((await run_with(script)).text) == 12_000_000


async def test_a_line_without_an_end_in_sight_ends_the_turn(autojump_clock: MockClock) -> None:
    async def script(agent: MemoryAgent) -> None:
        await agent.open_prompt()
        while True:
            await agent.write(b"x" * 1_000_000)

    with pytest.raises(AcpProtocolError, match="a line of more than 16777216 bytes"):
        await run_with(script, agent=MemoryAgent(lockstep=True))


async def test_an_emoji_cut_in_two_pieces_is_whole_again(autojump_clock: MockClock) -> None:
    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        await agent.say("\ud83d")
        await agent.say("\ude00 and half of one: \ud83d")
        await agent.end_prompt(prompt)

    assert (await run_with(script)).text == "\U0001f600 and half of one: \ufffd"


async def test_an_agent_that_floods_while_it_does_not_read_meets_a_writer_of_its_own(autojump_clock: MockClock) -> None:
    async def script(agent: MemoryAgent) -> None:
        await agent.open_session()
        for number in range(50):
            await agent.send({"id": number, "method": "fs/read_text_file", "params": {}})
        await finish(agent, await agent.receive_prompt())

    assert (await run_with(script, agent=MemoryAgent(lockstep=True))).text == "said"


# -- ids --------------------------------------------------------------------------------------------------------------


def true(_: object) -> object:
    return True


def null(_: object) -> object:
    return None


@pytest.mark.parametrize("wrong", [str, float, true, null])
async def test_an_answer_under_an_id_of_another_type_is_no_answer(
    autojump_clock: MockClock, wrong: Callable[[object], object]
) -> None:
    async def script(agent: MemoryAgent) -> None:
        first = await agent.receive()
        await agent.send({"id": wrong(first["id"]), "result": {"protocolVersion": 99}})
        await agent.answer(first, {"protocolVersion": 1})
        await agent.answer(await agent.receive_request("session/new"), {"sessionId": SESSION})
        prompt = await agent.receive_prompt()
        await agent.send({"id": wrong(prompt["id"]), "result": {"stopReason": "max_tokens"}})
        await finish(agent, prompt)

    assert (await run_with(script)).text == "said"


@pytest.mark.parametrize("asked", [0, 1, -7, 2**70, "", "1", "an id", None])
async def test_a_request_of_the_agent_is_answered_under_its_own_id(autojump_clock: MockClock, asked: object) -> None:
    answers: list[Message] = []

    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        await agent.send({"id": asked, "method": "read_file", "params": {"path": "x"}})
        answers.append(await agent.receive())
        await finish(agent, prompt)

    await run_with(script)
    assert answers == [
        {"jsonrpc": "2.0", "id": asked, "error": {"code": -32601, "message": "Method not found: read_file"}}
    ]
    assert type(answers[0]["id"]) is type(asked)


async def test_notifications_that_nobody_knows_are_ignored(autojump_clock: MockClock) -> None:
    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        await agent.send({"method": "telemetry", "params": {"a": 1}})
        await agent.send({"method": "_vendor/thing"})
        await agent.send({"method": "session/update", "params": [1, 2]})
        await agent.send({"method": "session/update", "params": {"sessionId": SESSION}})
        await agent.update({"sessionUpdate": "from_the_future", "content": {"type": "text", "text": "not said"}})
        await agent.update({})
        await finish(agent, prompt)

    assert (await run_with(script)).text == "said"


async def test_a_second_answer_changes_nothing(autojump_clock: MockClock) -> None:
    async def script(agent: MemoryAgent) -> None:
        await agent.open_session()
        prompt = await agent.receive_prompt()
        await agent.say("first ")
        await agent.end_prompt(prompt)
        second = await agent.receive_prompt()
        await agent.end_prompt(prompt, "max_tokens")
        await agent.say("second")
        await agent.end_prompt(second)

    control = AcpControl()
    control.steer("go on")
    assert (await run_with(script, control=control)).text == "first second"


# -- answers ----------------------------------------------------------------------------------------------------------


def answering(**results: object) -> Script:
    """An agent that answers ``initialize``, ``new`` and ``prompt`` with these results."""

    async def script(agent: MemoryAgent) -> None:
        await agent.answer(await agent.receive(), results.get("initialize", {"protocolVersion": 1}))
        await agent.answer(await agent.receive(), results.get("new", {"sessionId": SESSION}))
        await agent.answer(await agent.receive(), results.get("prompt", {"stopReason": "end_turn"}))

    return script


@pytest.mark.parametrize("version", ["1", "0.2.0", 0, 2, True, 1.5, None])
async def test_another_version_of_the_protocol_is_an_error(autojump_clock: MockClock, version: object) -> None:
    with pytest.raises(AcpProtocolError, match="version"):
        await run_with(answering(initialize={"protocolVersion": version}))


@pytest.mark.parametrize(
    "initialized",
    [
        {"protocolVersion": 1},
        {"protocolVersion": 1, "agentCapabilities": None, "authMethods": None},
        {"protocolVersion": 1, "agentCapabilities": {"loadSession": None, "promptCapabilities": None}},
    ],
)
async def test_an_agent_need_not_say_what_it_can(autojump_clock: MockClock, initialized: Message) -> None:
    assert (await run_with(answering(initialize=initialized))).stop_reason == "end_turn"


@pytest.mark.parametrize("new", [{}, {"sessionId": None}, {"sessionId": 1}, None, []])
async def test_a_session_needs_an_id(autojump_clock: MockClock, new: object) -> None:
    with pytest.raises(AcpProtocolError, match="sessionId"):
        await run_with(answering(new=new))


@pytest.mark.parametrize("prompt", [{}, {"stopReason": None}, {"stopReason": "tired"}, {"stopReason": 1}, None])
async def test_a_prompt_ends_for_a_reason_that_is_known(autojump_clock: MockClock, prompt: object) -> None:
    with pytest.raises(AcpProtocolError, match="stop reason"):
        await run_with(answering(prompt=prompt))


async def test_an_agent_that_ends_as_cancelled_by_itself_has_cancelled_the_turn(autojump_clock: MockClock) -> None:
    with pytest.raises(AcpCancelled):
        await run_with(answering(prompt={"stopReason": "cancelled"}))


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_an_error_in_an_answer_ends_the_turn_with_its_code_and_words(
    autojump_clock: MockClock, count: int
) -> None:
    async def script(agent: MemoryAgent) -> None:
        for result in ({"protocolVersion": 1}, {"sessionId": SESSION})[:count]:
            await agent.answer(await agent.receive(), result)
        request = await agent.receive()
        await agent.send({"id": request["id"], "error": {"code": -32603, "message": "out of\x1b[31m order \ud83d"}})

    with pytest.raises(AcpProtocolError, match=r"out of order \ufffd \(-32603\)") as failed:
        await run_with(script)
    assert failed.value.code == -32603


async def test_an_agent_that_needs_a_login_says_so_with_what_it_offers(autojump_clock: MockClock) -> None:
    async def script(agent: MemoryAgent) -> None:
        methods = [{"id": "web", "name": "Log in on the web"}, {"id": "key"}, None]
        await agent.answer(await agent.receive(), {"protocolVersion": 1, "authMethods": methods})
        request = await agent.receive()
        await agent.send({"id": request["id"], "error": {"code": -32000, "message": "Authentication required"}})

    with pytest.raises(AcpProtocolError, match=r"start it by hand once and log in \(it offers: Log in on the web\)"):
        await run_with(script)


async def test_an_agent_that_could_not_read_a_request_ends_the_turn(autojump_clock: MockClock) -> None:
    async def script(agent: MemoryAgent) -> None:
        await agent.receive()
        await agent.send({"id": None, "error": {"code": -32700, "message": "Parse error"}})

    with pytest.raises(AcpProtocolError, match="could not read"):
        await run_with(script)


# -- updates ----------------------------------------------------------------------------------------------------------


async def test_only_what_the_open_prompt_of_this_session_says_is_its_text(autojump_clock: MockClock) -> None:
    async def script(agent: MemoryAgent) -> None:
        await agent.receive_request("initialize")
        await agent.send({"id": 1, "result": {"protocolVersion": 1}})
        new = await agent.receive_request("session/new")
        await agent.say("before the session;")
        await agent.answer(new, {"sessionId": SESSION})
        prompt = await agent.receive_prompt()
        await agent.say("of another;", session="another")
        await agent.update({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "thought;"}})
        await agent.update({"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "echo;"}})
        await agent.update({"sessionUpdate": "agent_message_chunk", "content": {"type": "image", "data": ""}})
        await agent.say("said")
        answer = {"jsonrpc": "2.0", "id": prompt["id"], "result": {"stopReason": "end_turn"}}
        late = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": SESSION, "update": TEXT}}
        await agent.write(f"{json.dumps(answer)}\n{json.dumps(late)}\n".encode())

    assert (await run_with(script)).text == "said"


async def test_activity_is_what_comes_while_a_prompt_is_open_and_its_answer_and_is_told_first(
    autojump_clock: MockClock,
) -> None:
    calls: list[str] = []

    async def script(agent: MemoryAgent) -> None:
        await agent.receive()
        await agent.send({"id": 1, "result": {"protocolVersion": 1}})
        new = await agent.receive()
        await agent.update({"sessionUpdate": "available_commands_update", "availableCommands": []})
        await agent.answer(new, {"sessionId": SESSION})
        prompt = await agent.receive_prompt()
        assert calls == []
        await agent.say("of another", session="another")
        await agent.send({"id": 5, "method": "session/request_permission", "params": {"sessionId": SESSION}})
        await agent.receive()
        assert calls == []
        await agent.update({"sessionUpdate": "from_the_future"})
        await agent.say("said")
        await agent.end_prompt(prompt)

    await run_with(script, on_activity=lambda: calls.append("activity"))
    assert calls == ["activity"] * 3


async def test_a_follow_up_given_on_the_answer_itself_is_still_sent(autojump_clock: MockClock) -> None:
    control = AcpControl()
    seen: list[int] = []

    def on_activity() -> None:
        seen.append(len(seen))
        if len(seen) == 2:
            control.interrupt_and_steer("one more")

    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        await agent.say("one, ")
        await agent.end_prompt(prompt)
        prompt = await agent.receive_prompt()  # no cancel: there was nothing left to cancel
        await agent.say("two")
        await agent.end_prompt(prompt)

    assert (await run_with(script, control=control, on_activity=on_activity)).text == "one, two"


async def test_an_exception_out_of_the_activity_callback_comes_bare_after_the_end_of_the_agent(
    autojump_clock: MockClock,
) -> None:
    agent = MemoryAgent()

    def on_activity() -> None:
        raise ZeroDivisionError("mine")

    async def script(agent: MemoryAgent) -> None:
        await finish(agent, await agent.open_prompt())

    with pytest.raises(ZeroDivisionError, match="mine"):
        await run_with(script, agent=agent, on_activity=on_activity)
    assert agent.signals == ["terminate", "kill"]


# -- permission -------------------------------------------------------------------------------------------------------

CANCELLED = {"outcome": "cancelled"}


def option(kind: object, option_id: object = None) -> Message:
    return {"optionId": kind if option_id is None else option_id, "name": "an option", "kind": kind}


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ([option("reject_once"), option("allow_once"), option("allow_always")], "allow_always"),
        ([option("allow_always", "first"), option("allow_always", "second")], "first"),
        ([option("reject_always"), option("allow_once", "a"), option("allow_once", "b")], "a"),
        ([option("reject_once"), option("reject_always")], CANCELLED),
        ([option("allow_everything"), option(None), {}, 7], CANCELLED),
        ([option("allow_once", 0)], CANCELLED),
        ([option("allow_once", "")], ""),
        ([], CANCELLED),
        (None, CANCELLED),
        ("allow_always", CANCELLED),
    ],
)
async def test_consent_is_only_an_offered_option_that_allows(
    autojump_clock: MockClock, options: object, outcome: object
) -> None:
    answers: list[Message] = []

    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        params: Message = {"sessionId": SESSION, "toolCall": {"toolCallId": "never seen before"}, "options": options}
        await agent.send({"id": "p", "method": "session/request_permission", "params": params})
        answers.append(await agent.receive())
        await finish(agent, prompt)

    await run_with(script)
    wanted = CANCELLED if outcome is CANCELLED else {"outcome": "selected", "optionId": outcome}
    assert answers == [{"jsonrpc": "2.0", "id": "p", "result": {"outcome": wanted}}]
