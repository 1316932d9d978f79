"""A whole turn with a real process behind it, and what is left of it afterwards."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import trio

from tests.stubs.process_table import process_table
from tests.workers.acp.memory_agent import MemoryAgent, run_with
from workers.acp import (
    AcpCancelled,
    AcpControl,
    AcpProcessExited,
    AcpProcessSpec,
    AcpProtocolError,
    AcpRunRequest,
    AcpRunResult,
    AcpSandboxError,
    AcpStopped,
    AcpTimedOut,
    SteeringMessage,
    run_acp_turn,
)
from workers.sandbox import LocalSandbox

FAKE = Path(__file__).resolve().parents[2] / "stubs" / "fake_acp_agent.py"
LIMIT = 30.0


class Fake:
    """Runs turns of the fake agent in a folder, and shows what the fake left there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def run(
        self,
        mode: str,
        *,
        prompt: str = "hello",
        stop_reason: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = LIMIT,
        cancel: trio.Event | None = None,
        on_activity: Callable[[], None] | None = None,
        control: AcpControl | None = None,
    ) -> AcpRunResult:
        variables = {f"FAKE_{name}": str(self.folder / name) for name in ("METHODS", "CANCELS", "PIDS", "MESSAGES")}
        variables["FAKE_MODE"] = mode
        if stop_reason is not None:
            variables["FAKE_STOP_REASON"] = stop_reason
        request = AcpRunRequest(
            command=AcpProcessSpec.parse(shlex.join([sys.executable, str(FAKE)])),
            prompt=prompt,
            cwd=self.folder,
            env={**variables, **(env or {})},
            sandbox=LocalSandbox(self.folder),
            timeout=timeout,
            cancel=cancel,
            on_activity=on_activity,
            control=control,
        )
        with trio.fail_after(2 * LIMIT):
            return await run_acp_turn(request)

    def left(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def living(self) -> list[int]:
        """Those of its processes that are more than zombies."""
        table = process_table()
        return [pid for pid in map(int, self.left("PIDS")) if pid in table and table[pid].alive]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def once(function: Callable[[], object]) -> Callable[[], None]:
    """``function``, the first time it is called."""
    calls: list[None] = []

    def call() -> None:
        calls.append(None)
        if len(calls) == 1:
            function()

    return call


# -- the turn ---------------------------------------------------------------------------------------------------------


async def test_a_turn_opens_a_session_sends_the_prompt_and_joins_the_text(fake: Fake) -> None:
    result = await fake.run("plain")
    assert (result.text, result.stop_reason, result.stderr) == ("hello from the fake", "end_turn", "")
    assert fake.left("METHODS") == ["initialize", "session/new", "session/prompt"]
    assert 0 < result.duration < LIMIT
    assert fake.living() == []


async def test_a_sandbox_that_cannot_start_the_process_has_its_own_words_in_the_chain(tmp_path: Path) -> None:
    words = "this sandbox has no standard streams"

    class Incapable:
        async def open_stdio(self, *_: object, **__: object) -> MemoryAgent:
            raise RuntimeError(words)

    request = AcpRunRequest(AcpProcessSpec.parse("agent"), "hello", tmp_path, {}, Incapable(), LIMIT)
    with pytest.raises(AcpSandboxError) as failed:
        await run_acp_turn(request)
    assert str(failed.value.__cause__) == words


async def test_an_exit_right_after_the_answer_does_not_get_in_its_way() -> None:
    async def script(agent: MemoryAgent) -> None:
        prompt = await agent.open_prompt()
        await agent.say("hello from memory")
        await agent.end_prompt(prompt)
        await agent.leave(0)

    result = await run_with(script)
    assert (result.text, result.stop_reason) == ("hello from memory", "end_turn")


async def test_steering_sends_a_second_prompt_in_the_same_session(fake: Fake) -> None:
    control = AcpControl()
    result = await fake.run("steered", control=control, on_activity=once(lambda: control.steer("more of it")))
    assert result.text == "first, then: more of it"
    assert fake.left("METHODS") == ["initialize", "session/new", "session/prompt", "session/prompt"]
    sent = [json.loads(line) for line in fake.left("MESSAGES")]
    assert sent[-1]["params"]["prompt"] == [{"type": "text", "text": "more of it"}]
    assert sent[-1]["params"]["sessionId"] == sent[-2]["params"]["sessionId"]


async def test_interrupt_and_steer_cancels_first_and_prompts_after_the_cancelled_end(fake: Fake) -> None:
    control = AcpControl()
    steer = once(lambda: control.interrupt_and_steer(SteeringMessage("another way", actor="ada")))
    result = await fake.run("interrupted", control=control, on_activity=steer)
    assert (result.text, result.stop_reason) == ("cut off, then: another way", "end_turn")
    assert fake.left("METHODS") == ["initialize", "session/new", "session/prompt", "session/cancel", "session/prompt"]
    assert fake.left("CANCELS") == ["session/cancel"]


async def test_an_agent_that_takes_no_notice_of_an_interrupt_is_ended(fake: Fake) -> None:
    control = AcpControl()
    with pytest.raises(AcpCancelled):
        await fake.run("deaf", control=control, on_activity=once(control.interrupt))
    assert fake.left("METHODS") == ["initialize", "session/new", "session/prompt", "session/cancel"]
    assert fake.left("CANCELS") == ["session/cancel"]
    assert fake.living() == []


async def test_permission_is_given_by_the_option_that_allows_always(fake: Fake) -> None:
    result = await fake.run("permission")
    assert json.loads(result.text) == {"outcome": {"outcome": "selected", "optionId": "always"}}


async def test_the_agent_runs_in_the_requested_folder_and_is_told_of_it(fake: Fake) -> None:
    result = await fake.run("file_writer")
    assert Path(result.text).samefile(fake.folder)
    assert (fake.folder / "written.txt").read_text() == "by the fake\n"
    new = next(json.loads(line) for line in fake.left("MESSAGES") if "session/new" in line)
    assert new["params"] == {"cwd": str(fake.folder), "mcpServers": []}


async def test_a_cancel_in_flight_is_told_to_the_agent_once(fake: Fake) -> None:
    cancel, at_work = trio.Event(), trio.Event()

    async def cancel_at_work() -> None:
        await at_work.wait()
        cancel.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_at_work)
        with pytest.raises(AcpCancelled):
            await fake.run("cancellable", cancel=cancel, on_activity=at_work.set)
    assert fake.left("CANCELS") == ["session/cancel"]


async def test_a_cancel_before_the_session_ends_the_turn_without_a_process(fake: Fake) -> None:
    cancel = trio.Event()
    cancel.set()
    with pytest.raises(AcpCancelled):
        await fake.run("silent", cancel=cancel, timeout=0)
    assert fake.left("PIDS") == []


async def test_a_cancel_while_the_agent_says_nothing_at_all_ends_it_at_once(fake: Fake) -> None:
    cancel = trio.Event()
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            with pytest.raises(AcpCancelled):
                await fake.run("silent", cancel=cancel)

        nursery.start_soon(run)
        while not fake.left("PIDS"):
            await trio.sleep(0.01)
        cancel.set()
    assert fake.left("METHODS") == []
    assert fake.living() == []


async def test_a_process_that_lingers_after_its_answer_is_ended_with_its_children(fake: Fake) -> None:
    result = await fake.run("lingering")
    assert result.text == "hello from the fake"
    assert len(fake.left("PIDS")) == 2
    assert fake.living() == []
    assert result.duration < 10


async def test_a_refusal_is_a_result(fake: Fake) -> None:
    result = await fake.run("plain", stop_reason="refusal")
    assert (result.text, result.stop_reason) == ("hello from the fake", "refusal")


@pytest.mark.parametrize("stop_reason", ["max_tokens", "max_turn_requests"])
async def test_a_limit_of_the_agent_keeps_what_it_had_said(fake: Fake, stop_reason: str) -> None:
    with pytest.raises(AcpStopped) as stopped:
        await fake.run("plain", stop_reason=stop_reason)
    assert (stopped.value.stop_reason, stopped.value.text) == (stop_reason, "hello from the fake")


async def test_a_timeout_ends_the_process_without_a_cancel(fake: Fake) -> None:
    with pytest.raises(AcpTimedOut):
        await fake.run("deaf", timeout=1.0)
    assert fake.left("CANCELS") == []
    assert fake.living() == []


async def test_malformed_json_is_an_error_that_does_not_show_what_the_agent_wrote_for_people(fake: Fake) -> None:
    with pytest.raises(AcpProtocolError) as broken:
        await fake.run("malformed")
    assert "this is no JSON" not in str(broken.value)
    assert broken.value.exec_output_tail.stderr == "this is no JSON\n"


async def test_an_early_exit_has_its_code_in_the_message_and_the_rest_in_the_tail(fake: Fake) -> None:
    with pytest.raises(AcpProcessExited) as exited:
        await fake.run("early_exit")
    assert exited.value.exit_code == 2
    assert "exit_code=2" in str(exited.value)
    assert "no luck today" not in str(exited.value)
    assert exited.value.exec_output_tail.stderr == "no luck today\n"


# -- processes --------------------------------------------------------------------------------------------------------


async def test_a_signal_is_a_negative_exit_code(fake: Fake) -> None:
    with pytest.raises(AcpProcessExited) as exited:
        await fake.run("killed")
    assert exited.value.exit_code == -signal.SIGKILL


async def test_children_that_outlive_a_wrapper_are_killed_at_once(fake: Fake) -> None:
    result = await fake.run("wrapper")
    assert result.text == "hello from the fake"
    assert len(fake.left("PIDS")) == 4
    assert fake.living() == []


async def test_an_orphaned_zombie_in_the_group_keeps_nobody_waiting(fake: Fake) -> None:
    with trio.fail_after(10):
        result = await fake.run("unreaped")
    assert result.text == "hello from the fake"


async def test_a_program_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    command = AcpProcessSpec.parse("no-such-agent --acp")
    with pytest.raises(AcpSandboxError, match=r"no program 'no-such-agent': install it") as failed:
        await run_acp_turn(AcpRunRequest(command, "hello", tmp_path, {}, LocalSandbox(tmp_path)))
    assert isinstance(failed.value.__cause__, FileNotFoundError)


async def test_a_folder_that_is_not_there_is_the_sandboxs_own_failure(tmp_path: Path) -> None:
    command = AcpProcessSpec.parse(shlex.quote(sys.executable))
    with pytest.raises(AcpSandboxError, match="nowhere") as failed:
        await run_acp_turn(AcpRunRequest(command, "hello", tmp_path / "nowhere", {}, LocalSandbox(tmp_path)))
    assert isinstance(failed.value.__cause__, FileNotFoundError)


async def test_a_relative_folder_starts_at_the_root_of_the_sandbox(fake: Fake) -> None:
    (fake.folder / "sub").mkdir()
    process = await LocalSandbox(fake.folder).open_stdio(["pwd"], cwd=Path("sub"), env={"PATH": os.environ["PATH"]})
    with trio.fail_after(10):
        assert await process.stdout.receive_some() == f"{fake.folder / 'sub'}\n".encode()
        assert (await process.wait(), await process.wait()) == (0, 0)
        await process.end_group(1.0)
    process.release()


async def test_an_agent_that_floods_both_its_streams_meets_a_prompt_that_fills_its_input(fake: Fake) -> None:
    result = await fake.run("noisy_on_stderr", prompt="z" * 1_000_000)
    assert result.text.endswith("1000000")
    assert len(result.stderr) == 8192


async def test_the_environment_is_inherited_without_secrets_and_with_what_was_set(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SOME_API_KEY", "some_Secret", "A_TOKEN", "B_PASSWORD", "C_CREDENTIAL", "BASH_ENV"):
        monkeypatch.setenv(name, "not for the agent")
    monkeypatch.setenv("TOKEN", "no secret by its name")
    monkeypatch.setenv("SET_BY_ALL", "inherited")
    command = AcpProcessSpec.parse(
        shlex.join(["SET_BY_ALL=command", "BY_COMMAND_TOKEN=trusted", sys.executable, str(FAKE)])
    )
    env = {"FAKE_MODE": "environment", "SET_BY_ALL": "request", "BY_REQUEST_API_KEY": "trusted"}
    with trio.fail_after(LIMIT):
        result = await run_acp_turn(AcpRunRequest(command, "hello", fake.folder, env, LocalSandbox(fake.folder)))
    seen = json.loads(result.text)
    assert not {"SOME_API_KEY", "some_Secret", "A_TOKEN", "B_PASSWORD", "C_CREDENTIAL", "BASH_ENV"} & seen.keys()
    assert (seen["TOKEN"], seen["SET_BY_ALL"]) == ("no secret by its name", "request")
    assert (seen["BY_COMMAND_TOKEN"], seen["BY_REQUEST_API_KEY"]) == ("trusted", "trusted")


async def test_a_cancelled_caller_cancels_the_agent_and_leaves_nothing_behind(fake: Fake) -> None:
    with trio.CancelScope() as scope:
        with pytest.raises(trio.Cancelled):
            await fake.run("cancellable", on_activity=scope.cancel)
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert fake.left("CANCELS") == ["session/cancel"]
    assert fake.living() == []


async def test_several_turns_at_once_do_not_know_of_each_other(tmp_path: Path) -> None:
    texts: dict[str, str] = {}

    async def run(name: str) -> None:
        (tmp_path / name).mkdir()
        texts[name] = (await Fake(tmp_path / name).run("file_writer")).text

    async with trio.open_nursery() as nursery:
        for name in ("one", "two", "three"):
            nursery.start_soon(run, name)
    assert {name: Path(text).name for name, text in texts.items()} == {"one": "one", "two": "two", "three": "three"}
