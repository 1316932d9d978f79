"""How a turn ends: with its process, by its time, by a cancel or an interrupt; in memory and in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from tests.workers.acp.memory_agent import SESSION, MemoryAgent, Message, Script, run_with
from workers.acp import (
    AcpCancelled,
    AcpControl,
    AcpProcessExited,
    AcpProtocolError,
    AcpStopped,
    AcpTimedOut,
    SteeringMessage,
)

# -- ends of the process ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 3, -9])
async def test_an_answer_found_while_draining_wins_over_any_exit_code(autojump_clock: MockClock, code: int) -> None:
    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        agent.exit(code)
        await trio.sleep(0.4)
        await agent.say("late but said")
        await agent.end_prompt(prompt)

    assert (await run_with(script)).text == "late but said"


async def test_the_drain_of_a_process_that_is_gone_ends_after_half_a_second(autojump_clock: MockClock) -> None:
    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        agent.exit(0)
        await trio.sleep(0.6)
        await agent.end_prompt(prompt)

    with pytest.raises(AcpProcessExited) as exited:
        await run_with(script)
    assert exited.value.exit_code == 0


@pytest.mark.parametrize("requests", [0, 1, 2, 3])
async def test_an_exit_without_an_answer_is_an_exit_at_whatever_point(autojump_clock: MockClock, requests: int) -> None:
    async def script(agent: MemoryAgent) -> None:
        for result in [{"protocolVersion": 1}, {"sessionId": SESSION}][:requests]:
            await agent.answer(await agent.receive(), result)
        if requests == 3:
            await agent.receive()
        await agent.leave(0)

    with pytest.raises(AcpProcessExited, match="exit_code=0") as exited:
        await run_with(script)
    assert exited.value.exec_output_tail.stderr == ""


async def test_an_agent_that_exits_after_its_first_prompt_has_not_answered_the_follow_up(
    autojump_clock: MockClock,
) -> None:
    control = AcpControl()
    control.steer("go on")

    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        await agent.end_prompt(prompt)
        await agent.leave(0)

    with pytest.raises(AcpProcessExited):
        await run_with(script, control=control)


async def test_a_process_that_lives_on_a_second_after_its_output_breaks_the_protocol(autojump_clock: MockClock) -> None:
    started: list[float] = []

    async def script(agent: MemoryAgent) -> None:
        await agent.open_prompt()
        started.append(trio.current_time())
        await agent.close_output()

    with pytest.raises(AcpProtocolError, match="closed its output"):
        await run_with(script)
    assert trio.current_time() - started[0] == pytest.approx(1.0)


async def test_a_process_that_exits_within_a_second_after_its_output_is_an_exit(autojump_clock: MockClock) -> None:
    async def script(agent: MemoryAgent) -> None:
        await agent.open_prompt()
        await agent.close_output()
        await trio.sleep(0.9)
        agent.exit(4)

    with pytest.raises(AcpProcessExited, match="exit_code=4"):
        await run_with(script)


async def test_a_process_that_can_not_be_ended_is_given_up(autojump_clock: MockClock) -> None:
    agent = MemoryAgent()
    agent.ends_on_signal = False

    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        await agent.say("said")
        await agent.end_prompt(prompt)

    result = await run_with(script, agent=agent)
    assert result.text == "said"
    assert agent.signals == ["terminate", "kill"]
    assert result.duration < 5


async def test_an_agent_without_a_standard_error_has_an_empty_tail(autojump_clock: MockClock) -> None:
    agent = MemoryAgent()
    agent.stderr = None

    async def script(agent: MemoryAgent) -> None:
        await agent.open_prompt()
        await agent.close_output()
        agent.exit(1)

    with pytest.raises(AcpProcessExited) as exited:
        await run_with(script, agent=agent)
    assert exited.value.exec_output_tail.stderr == ""


# -- time, cancel, interrupt ------------------------------------------------------------------------------------------


async def test_a_timeout_covers_all_from_the_start_and_sends_no_cancel(autojump_clock: MockClock) -> None:
    agent = MemoryAgent()

    async def script(agent: MemoryAgent) -> None:
        await agent.open_prompt()
        while True:
            await trio.sleep(0.3)
            await agent.say("still at it")

    before = trio.current_time()
    with pytest.raises(AcpTimedOut):
        await run_with(script, agent=agent, timeout=7.0)
    assert 7.0 <= trio.current_time() - before < 8
    assert "session/cancel" not in agent.methods


async def chat_on(agent: MemoryAgent) -> None:
    """Open a prompt and then talk without end, whatever comes."""
    await agent.open_prompt()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen, agent)
        while True:
            await agent.say("and on ")
            await trio.sleep(0.01)


async def listen(agent: MemoryAgent) -> None:
    while True:
        await agent.receive()


@pytest.mark.parametrize("how", ["cancel", "interrupt", "interrupt_and_steer", "caller"])
async def test_half_a_second_after_a_cancel_a_chatty_agent_is_ended(autojump_clock: MockClock, how: str) -> None:
    agent, control, cancel = MemoryAgent(), AcpControl(), trio.Event()
    before = trio.current_time()
    told: list[float] = []

    async def stop(scope: trio.CancelScope) -> None:
        await trio.sleep(5)
        told.append(trio.current_time())
        actions: dict[str, Callable[[], object]] = {
            "cancel": cancel.set,
            "interrupt": control.interrupt,
            "interrupt_and_steer": lambda: control.interrupt_and_steer("other"),
            "caller": scope.cancel,
        }
        actions[how]()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(stop, scope)
            if how == "caller":
                await run_with(chat_on, agent=agent, control=control, cancel=cancel)
            else:
                with pytest.raises(AcpCancelled):
                    await run_with(chat_on, agent=agent, control=control, cancel=cancel)
    assert scope.cancelled_caught == (how == "caller")
    assert agent.methods.count("session/cancel") == 1
    assert 5.5 <= trio.current_time() - before < 6.2
    assert agent.signals[0] == "terminate"


async def test_a_cancel_decides_whatever_the_agent_says_then(autojump_clock: MockClock) -> None:
    for ending in ("end_turn", "cancelled", "max_tokens", "tired", "error", "garbage", "exit"):
        cancel = trio.Event()

        async def script(agent: MemoryAgent, ending: str = ending) -> None:
            prompt = await agent.open_prompt()
            await agent.say("said")
            await agent.receive_request("session/cancel")
            if ending == "error":
                await agent.send({"id": prompt["id"], "error": {"code": -32800, "message": "cancelled"}})
            elif ending == "garbage":
                await agent.write(b"{\n")
            elif ending == "exit":
                await agent.leave(1)
            else:
                await agent.end_prompt(prompt, ending)

        with pytest.raises(AcpCancelled):
            await run_with(script, cancel=cancel, on_activity=cancel.set, timeout=60)


async def test_a_cancel_that_is_set_before_the_time_runs_out_wins(autojump_clock: MockClock) -> None:
    cancel = trio.Event()

    async def script(agent: MemoryAgent) -> None:
        await agent.open_prompt()
        await trio.sleep(0.9)
        cancel.set()
        await trio.sleep_forever()

    with pytest.raises(AcpCancelled):
        await run_with(script, cancel=cancel, timeout=1.0)


async def test_a_cancel_set_in_the_callback_of_the_answer_still_counts(autojump_clock: MockClock) -> None:
    cancel = trio.Event()

    async def script(agent: MemoryAgent) -> None:
        await agent.end_prompt(await agent.open_prompt())

    with pytest.raises(AcpCancelled):
        await run_with(script, cancel=cancel, on_activity=cancel.set)


async def test_a_cancel_drops_the_follow_ups(autojump_clock: MockClock) -> None:
    cancel, control, agent = trio.Event(), AcpControl(), MemoryAgent()
    control.steer("never sent")

    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        await agent.say("said")
        await agent.receive_request("session/cancel")
        await agent.end_prompt(prompt, "cancelled")
        await agent.receive()

    with pytest.raises(AcpCancelled):
        await run_with(script, agent=agent, cancel=cancel, control=control, on_activity=cancel.set)
    assert agent.methods.count("session/prompt") == 1


async def test_an_interrupt_before_the_prompt_is_open_applies_to_the_first(autojump_clock: MockClock) -> None:
    control, agent = AcpControl(), MemoryAgent()
    control.interrupt()

    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        await agent.receive_request("session/cancel")
        await agent.end_prompt(prompt, "end_turn")

    with pytest.raises(AcpCancelled):
        await run_with(script, agent=agent, control=control)
    assert agent.methods == ["initialize", "session/new", "session/prompt", "session/cancel"]


async def test_a_cancel_that_gets_lost_right_behind_the_prompt_is_not_sent_again(autojump_clock: MockClock) -> None:
    control, agent = AcpControl(), MemoryAgent()
    control.interrupt_and_steer("another way")
    before = trio.current_time()
    with pytest.raises(AcpCancelled):
        await run_with(chat_on, agent=agent, control=control)
    assert agent.methods == ["initialize", "session/new", "session/prompt", "session/cancel"]
    assert 0.5 <= trio.current_time() - before < 1.2


@pytest.mark.parametrize("end", ["cancelled", "end_turn", "max_tokens", "error"])
async def test_an_interrupted_prompt_is_over_however_it_ends_and_the_next_waits_for_that(
    autojump_clock: MockClock, end: str
) -> None:
    control = AcpControl()
    sent_too_early: list[Message] = []

    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        await agent.say("one, ")
        await agent.receive_request("session/cancel")
        with trio.move_on_after(0.4):
            sent_too_early.append(await agent.receive())
        if end == "error":
            await agent.send({"id": prompt["id"], "error": {"code": -32800, "message": "cancelled"}})
        else:
            await agent.end_prompt(prompt, end)
        prompt = await agent.receive_prompt()
        await trio.sleep(10)  # the half second was the first prompt's
        await agent.say("two")
        await agent.end_prompt(prompt)

    def interrupt() -> None:
        if not interrupted:
            interrupted.append(True)
            control.interrupt_and_steer("go on")

    interrupted: list[bool] = []
    assert (await run_with(script, control=control, on_activity=interrupt)).text == "one, two"
    assert sent_too_early == []


async def test_a_cancel_behind_an_interrupt_is_not_told_twice_and_gives_no_more_time(autojump_clock: MockClock) -> None:
    control, cancel, agent = AcpControl(), trio.Event(), MemoryAgent()
    before = trio.current_time()

    async def script(agent: MemoryAgent) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chat_on, agent)
            await trio.sleep(1)
            control.interrupt()
            await trio.sleep(0.4)
            control.interrupt()
            cancel.set()

    with pytest.raises(AcpCancelled):
        await run_with(script, agent=agent, control=control, cancel=cancel)
    assert agent.methods.count("session/cancel") == 1
    assert 1.5 <= trio.current_time() - before < 2.2


async def test_only_the_last_prompt_is_judged(autojump_clock: MockClock) -> None:
    control = AcpControl()
    control.steer("go on")

    def ending(first: str, last: str) -> Script:
        async def script(agent: MemoryAgent) -> None:
            prompt = await agent.open_prompt()
            await agent.say("one, ")
            await agent.end_prompt(prompt, first)
            prompt = await agent.receive_prompt()
            await agent.say("two")
            await agent.end_prompt(prompt, last)

        return script

    assert (await run_with(ending("max_tokens", "end_turn"), control=control)).text == "one, two"
    control.steer("go on")
    with pytest.raises(AcpStopped) as stopped:
        await run_with(ending("end_turn", "max_tokens"), control=control)
    assert stopped.value.text == "one, two"


async def test_an_error_without_an_interrupt_ends_the_turn_although_a_follow_up_waits(
    autojump_clock: MockClock,
) -> None:
    control = AcpControl()
    control.steer("go on")

    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        await agent.send({"id": prompt["id"], "error": {"code": 1, "message": "no"}})

    with pytest.raises(AcpProtocolError):
        await run_with(script, control=control)
    assert control.take_next() == SteeringMessage("go on")


async def test_questions_that_come_after_a_cancel_are_answered_as_cancelled(autojump_clock: MockClock) -> None:
    control = AcpControl()
    answers: list[Message] = []

    async def script(agent: MemoryAgent) -> None:
        await agent.open_prompt()
        await agent.say("said")
        await agent.receive_request("session/cancel")
        params: Message = {
            "sessionId": SESSION,
            "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_always"}],
        }
        await agent.send({"id": 0, "method": "session/request_permission", "params": params})
        answers.append(await agent.receive())

    with pytest.raises(AcpCancelled):
        await run_with(script, control=control, on_activity=control.interrupt)
    assert answers == [{"jsonrpc": "2.0", "id": 0, "result": {"outcome": {"outcome": "cancelled"}}}]


async def test_a_caller_that_is_cancelled_already_starts_nothing(autojump_clock: MockClock) -> None:
    agent = MemoryAgent()
    with trio.CancelScope() as scope:
        scope.cancel()
        await run_with(chat_on, agent=agent)
    assert scope.cancelled_caught
    assert agent.messages == []


async def test_an_agent_that_closes_its_input_before_the_prompt_can_not_answer_it(autojump_clock: MockClock) -> None:
    agent = MemoryAgent()

    async def script(agent: MemoryAgent) -> None:
        first = await agent.receive()
        await agent.close_input()
        await agent.answer(first, {"protocolVersion": 1})

    with pytest.raises(AcpProtocolError, match="closed its input"):
        await run_with(script, agent=agent)


async def test_an_agent_that_has_answered_may_exit_by_itself_before_it_is_asked_to(
    autojump_clock: MockClock,
) -> None:
    signals: list[str] = []

    async def script(agent: MemoryAgent) -> None:
        await agent.end_prompt(await agent.open_prompt())
        await trio.sleep(0.05)
        signals.extend(agent.signals)
        await agent.leave(0)

    assert (await run_with(script)).duration == pytest.approx(0.05)
    assert signals == []
