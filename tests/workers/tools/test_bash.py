from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from protocol.content import ToolCall
from tests.workers.tools.project import HeldPipe, Project
from workers.sandbox.command_output import HEAD, LIVE_LINES, TAIL
from workers.tools.call import run_call
from workers.tools.table import TOOLS_BY_NAME


def end_process(pid: str) -> None:
    with suppress(ProcessLookupError):
        os.kill(int(pid), signal.SIGKILL)


async def test_a_command_runs_in_the_project_folder(project: Project) -> None:
    assert await project.text("Bash", command="pwd") == str(project.root)


async def test_a_command_that_says_nothing_is_reported_as_such(project: Project) -> None:
    assert await project.text("Bash", command="true") == "(no output)"


async def test_a_nonzero_exit_is_an_error_with_the_output_and_the_code(project: Project) -> None:
    output = await project.call("Bash", command="echo so far; exit 3")
    assert output.outcome == "error"
    assert output.output == "so far\nexit code 3"


async def test_a_command_that_a_signal_ends_is_an_error_that_names_it(project: Project) -> None:
    output = await project.call("Bash", command="kill -SEGV $$")
    assert output.outcome == "error"
    assert output.output == "killed by signal 11 (SIGSEGV)"


async def test_lines_come_out_live_and_say_which_stream_they_are_from(project: Project) -> None:
    await project.text("Bash", command="echo one; echo two >&2")
    assert sorted(project.lines) == [("one", False), ("two", True)]


async def test_a_line_comes_out_while_the_command_still_runs(project: Project) -> None:
    os.mkfifo(project.root / "go_on")
    go_on = os.open(project.root / "go_on", os.O_RDWR)
    # Without the answer to its first line the command would never come to its second.
    project.on_line = lambda line: os.write(go_on, b"\n") if line == "question" else None
    try:
        assert await project.text("Bash", command="echo question; read <go_on; echo done") == "question\ndone"
    finally:
        os.close(go_on)


async def test_a_last_line_without_end_is_not_lost(project: Project) -> None:
    assert await project.text("Bash", command="printf 'a\\nb'") == "a\nb"
    assert project.lines == [("a", False), ("b", False)]


async def test_a_command_has_no_input_and_no_terminal(project: Project) -> None:
    assert await project.text("Bash", command="cat; tty; (: </dev/tty) 2>/dev/null || echo none") == "not a tty\nnone"


async def test_bytes_that_are_no_text_and_control_characters_come_out_harmless(project: Project) -> None:
    command = r"printf 'a\xff\x00b\x1b[31mred\x1b[0m\r\n\xed\xa0\x80\x07\n'"
    assert await project.text("Bash", command=command) == "a\ufffd\ufffdbred\n\ufffd\ufffd\ufffd\ufffd"


async def test_a_command_sees_only_what_the_environment_list_allows(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-key")
    monkeypatch.setenv("LC_TIME", "C")
    seen = await project.text("Bash", command="env; cat /proc/self/environ | tr '\\0' '\\n'")
    assert "canary-key" not in seen
    assert "LC_TIME=C" in seen
    assert "GIT_TERMINAL_PROMPT=0" in seen


async def test_a_hundred_megabytes_of_output_leave_memory_flat(project: Project) -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("no /proc to read the peak of the memory from")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
    before = _kilobytes(status, "VmHWM")
    output = await project.text("Bash", command="yes | head -c 100M; echo the end")
    assert _kilobytes(status, "VmHWM") - before < 20_000
    assert len(output) < HEAD + TAIL + 100
    assert output.startswith("y\ny\n")
    assert output.endswith("y\ny\nthe end")
    assert "characters left out" in output
    assert len(project.lines) == LIVE_LINES


def _kilobytes(status: Path, field: str) -> int:
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(field))


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_five_hundred_megabytes_leave_memory_flat_too(project: Project) -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("no /proc to read the peak of the memory from")
    Path("/proc/self/clear_refs").write_text("5")
    before = _kilobytes(status, "VmHWM")
    assert len(await project.text("Bash", command="yes | head -c 500M")) < HEAD + TAIL + 100
    assert _kilobytes(status, "VmHWM") - before < 20_000


async def test_a_line_of_a_hundred_megabytes_is_cut_too(project: Project) -> None:
    output = await project.text("Bash", command="head -c 100M /dev/zero | tr '\\0' x")
    assert len(output) < HEAD + TAIL + 100


async def test_a_timeout_kills_the_whole_group_and_keeps_what_was_said(project: Project, held_pipe: HeldPipe) -> None:
    command = f"exec 9>'{held_pipe.path}'; sleep 60 & sleep 60 | cat & echo partial; wait"
    output = await project.call("Bash", command=command, timeout=1)
    assert output.outcome == "error"
    assert output.output.startswith("partial\nTimed out after 1 s: ")
    await held_pipe.wait_until_let_go()


async def test_a_command_that_ignores_sigterm_is_killed_at_its_timeout(project: Project, held_pipe: HeldPipe) -> None:
    command = f"exec 9>'{held_pipe.path}'; trap '' TERM; echo partial; while :; do sleep 0.05; done"
    output = await project.call("Bash", command=command, timeout=1)
    assert output.output.startswith("partial\nTimed out")
    await held_pipe.wait_until_let_go()


async def test_what_a_command_says_at_sigterm_is_kept(project: Project) -> None:
    command = "trap 'echo goodbye; exit 0' TERM; echo hello; while :; do sleep 0.05; done"
    output = await project.call("Bash", command=command, timeout=1)
    said, _, rest = output.output.partition("\nTimed out")
    assert rest
    assert {"hello", "goodbye"} <= set(said.split("\n"))


async def test_a_cancelled_command_leaves_nothing_behind(project: Project, held_pipe: HeldPipe) -> None:
    with trio.CancelScope() as scope:
        project.on_line = lambda _line: scope.cancel()
        command = f"exec 9>'{held_pipe.path}'; sleep 60 & (sleep 60 &) ; echo ready; sleep 60"
        await project.call("Bash", command=command)
    assert scope.cancelled_caught
    await held_pipe.wait_until_let_go()


async def test_a_background_child_that_holds_the_output_does_not_hold_the_call(project: Project) -> None:
    output = await project.text("Bash", command="sleep 60 & echo $!")
    pid, note = output.split("\n")
    try:
        assert "goes on in the background" in note
        os.kill(int(pid), 0)
    finally:
        end_process(pid)


@pytest.mark.parametrize("start", ["", "nohup ", "setsid "])
async def test_a_background_child_with_its_output_elsewhere_goes_on(
    project: Project, held_pipe: HeldPipe, start: str
) -> None:
    command = f"exec 9>'{held_pipe.path}'; {start}sh -c 'echo $$ >&9; exec sleep 60' >log 2>&1 & echo started"
    assert await project.text("Bash", command=command) == "started"
    descriptor = os.open(held_pipe.path, os.O_RDONLY)
    try:
        with trio.fail_after(10):
            await trio.lowlevel.wait_readable(descriptor)
        pid = os.read(descriptor, 100).decode()
        assert held_pipe.is_held()
    finally:
        os.close(descriptor)
    end_process(pid)
    await held_pipe.wait_until_let_go()


async def test_a_background_child_is_not_ended_by_writing_on(project: Project, held_pipe: HeldPipe) -> None:
    os.mkfifo(project.root / "go_on")
    command = f"(exec 9>'{held_pipe.path}'; read <go_on; echo more; echo more; touch written) & echo started"
    go_on = os.open(project.root / "go_on", os.O_RDWR)
    try:
        assert (await project.text("Bash", command=command)).startswith("started\n")
        os.write(go_on, b"\n")
        await held_pipe.wait_until_let_go()
    finally:
        os.close(go_on)
    assert (project.root / "written").exists()


async def test_commands_of_one_reply_run_at_the_same_time(project: Project) -> None:
    os.mkfifo(project.root / "meeting")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: project.text("Bash", command="echo hello >meeting"))
        assert await project.text("Bash", command="cat meeting") == "hello"


async def test_output_is_whole_even_when_nobody_makes_room_for_it(project: Project) -> None:
    object.__setattr__(project.context, "wait_for_room", trio.sleep_forever)
    output = await project.text("Bash", command="echo one; echo two; echo three >&2")
    assert sorted(output.split("\n")) == ["one", "three", "two"]


async def test_an_empty_command_is_refused(project: Project) -> None:
    assert "must be a shell command" in await project.refusal("Bash", command="  ")


async def test_a_command_too_long_for_the_system_is_refused_with_advice(project: Project) -> None:
    assert "write a script" in await project.refusal("Bash", command="true " + "x" * 3_000_000)


async def test_a_project_folder_that_is_gone_is_said_so(project: Project) -> None:
    project.root.rmdir()
    assert (await project.refusal("Bash", command="pwd")).startswith("cwd_gone: ")


async def test_a_command_that_takes_its_own_folder_away_is_told_what_it_did(project: Project) -> None:
    output = await project.call("Bash", command='echo going; rm -r "$PWD"')
    assert output.outcome == "error"
    assert output.output.startswith("going\ncwd_gone: ")


async def test_variables_that_the_settings_name_are_passed_on(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/opt/java")
    monkeypatch.setenv("OTHER_HOME", "/opt/other")
    project.context = replace(project.context, variables=("JAVA_HOME",))
    assert await project.text("Bash", command="echo $JAVA_HOME$OTHER_HOME") == "/opt/java"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is what would wait for an editor or a pager")
async def test_no_editor_and_no_pager_waits_for_a_person(project: Project) -> None:
    commands = [
        "git init -q && git config user.name a && git config user.email a@b",
        "git commit -q --allow-empty -m one && git commit -q --amend --allow-empty && git log --format=%s",
        "GIT_PAGER= git -c core.pager=less log --format=%s; test -t 0 || test -t 1 || echo no terminal",
    ]
    assert await project.text("Bash", command="\n".join(commands)) == "one\none\nno terminal"


async def test_lone_surrogates_in_a_command_do_no_harm(project: Project) -> None:
    call = ToolCall(id="1", name="Bash", arguments='{"command":"echo \\ud800"}')
    output = await run_call(TOOLS_BY_NAME["Bash"], call, project.context)
    output.output.encode()
    assert output.outcome == "error"


async def test_a_timeout_longer_than_allowed_is_shortened_not_refused(project: Project) -> None:
    assert await project.text("Bash", command="echo ok", timeout=100_000) == "ok"


async def test_no_descriptor_stays_open_after_calls(project: Project) -> None:
    await project.text("Bash", command="true")
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(5):
        await project.text("Bash", command="echo x")
    assert len(list(Path("/dev/fd").iterdir())) == before
