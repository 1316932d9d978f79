"""The socket of a run: its commands, its readers, and that none of them can hold the run up."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
import trio

from protocol import records
from protocol.records import Info, SubAgentEnd, TextDelta
from protocol.usage import Usage
from supervisor.core.tagger import Tagger
from supervisor.hub import Hub
from supervisor.live.messages import (
    MAX_COMMAND_BYTES,
    TAIL_END_START,
    CommandError,
    Kill,
    Killed,
    Ps,
    Shown,
    Tail,
    TailEnd,
    Tailing,
    line_of,
    reply_decoder,
)
from supervisor.live.server import MAX_CONNECTIONS, LiveServer
from supervisor.live.tail_sink import QUEUE_BYTES
from supervisor.sinks.sink import Event, Sink
from tests.supervisor.live.staged_run import MAIN, SESSION, Shell, StagedRun, agent, make_hub, serving, shell_at

FAMILY = (
    MAIN,
    agent("a-1"),
    agent("a-1-1", "a-1"),
    agent("a-1-2", "a-1", state="ended", outcome="complete"),
    agent("b"),
)


@pytest.fixture
def folder(short_folder: Path) -> Path:
    """The folder of the sockets, yet to be made."""
    return short_folder / "run"


class Kept:
    """A sink that keeps the lines, to compare with."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def take(self, event: Event) -> None:
        self.lines.append(event.line)

    async def room(self) -> None: ...

    def release(self) -> None: ...

    async def finish(self) -> None: ...


def end_of(agent_id: str) -> SubAgentEnd:
    """The agent's terminal line, as of one that was cancelled."""
    return SubAgentEnd(
        agent_name="task", agent_id=agent_id, outcome="cancelled", usage=Usage(), elapsed_ms=1, restarts=0
    )


async def start_tail(shell: Shell, agent_id: str | None = None) -> Tailing:
    reply = await shell.ask(Tail(agent=agent_id))
    assert isinstance(reply, Tailing)
    return reply


# -- ps and what is no command ----------------------------------------------------------------------------------------


async def test_ps_shows_the_run_as_often_as_it_is_asked(folder: Path) -> None:
    run = StagedRun(MAIN)
    async with serving(run, make_hub(run), folder) as path, shell_at(path) as shell:
        assert await shell.ask(Ps()) == Shown(run=run.snapshot())
        run.agents = FAMILY
        assert await shell.ask(Ps()) == Shown(run=run.snapshot())


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"\xff", b'{"type":"reboot"}', b'{"type":"kill","agent":5}', b"{}"])
async def test_what_is_no_command_is_told_so_and_the_next_command_works(folder: Path, line: bytes) -> None:
    run = StagedRun(MAIN)
    async with serving(run, make_hub(run), folder) as path, shell_at(path) as shell:
        await shell.stream.send_all(line + b"\n")
        reply = await shell.reply()
        assert isinstance(reply, CommandError)
        assert reply.code == "bad_command"
        assert isinstance(await shell.ask(Ps()), Shown)


async def test_a_command_that_is_too_long_ends_its_connection(folder: Path) -> None:
    run = StagedRun(MAIN)
    async with serving(run, make_hub(run), folder) as path, shell_at(path) as shell:
        await shell.stream.send_all(b"x" * (MAX_COMMAND_BYTES + 1))
        reply = await shell.reply()
        assert isinstance(reply, CommandError)
        assert reply.code == "too_large"
        assert await shell.rest() == []


async def test_a_command_may_come_in_pieces_and_two_at_once(folder: Path) -> None:
    run = StagedRun(MAIN)
    async with serving(run, make_hub(run), folder) as path, shell_at(path) as shell:
        twice = line_of(Ps()) * 2
        for piece in (twice[:3], twice[3:20], twice[20:]):
            await shell.stream.send_all(piece)
        assert await shell.reply() == await shell.reply() == Shown(run=run.snapshot())


@pytest.mark.parametrize(
    ("words", "code"), [("nobody", "unknown_agent"), ("a", "ambiguous_agent"), ("", "unknown_agent")]
)
async def test_an_agent_that_is_none_or_several_is_told_so_and_nothing_is_done(
    folder: Path, words: str, code: str
) -> None:
    run = StagedRun(*FAMILY)
    async with serving(run, make_hub(run), folder) as path, shell_at(path) as shell:
        for command in (Kill(agent=words), Tail(agent=words)):
            reply = await shell.ask(command)
            assert isinstance(reply, CommandError)
            assert reply.code == code
    assert run.cancelled == []


async def test_one_connection_too_many_is_turned_away_and_the_others_go_on(folder: Path) -> None:
    run = StagedRun(MAIN)
    async with serving(run, make_hub(run), folder) as path, AsyncExitStack() as stack:
        shells = [await stack.enter_async_context(shell_at(path)) for _ in range(MAX_CONNECTIONS)]
        for shell in shells:
            assert isinstance(await shell.ask(Ps()), Shown)
        async with shell_at(path) as late:
            reply = await late.reply()
            assert isinstance(reply, CommandError)
            assert reply.code == "busy"
        assert isinstance(await shells[0].ask(Ps()), Shown)


# -- tail -------------------------------------------------------------------------------------------------------------


async def test_tail_sends_the_lines_from_now_on_byte_for_byte_and_says_when_they_end(folder: Path) -> None:
    run = StagedRun(MAIN, agent("b"))
    hub = make_hub(run)
    kept = Kept()
    hub.publish(Info(message="before"))
    async with serving(run, hub, folder) as path, shell_at(path) as shell:
        tailing = await start_tail(shell)
        assert tailing == Tailing(run=run.snapshot(), agent_id=None)
        hub.add(kept)
        for number in range(100):
            hub.publish(TextDelta(text=f"é{number}\n"), "b")
        hub.publish(Info(message="of the run"))
        await hub.finish()
        *lines, end = await shell.rest()
    assert lines == kept.lines
    assert len(lines) == 101
    assert reply_decoder.decode(end) == TailEnd(reason="run_ended")


async def test_tail_of_one_agent_sends_its_lines_alone_and_ends_with_it(folder: Path) -> None:
    run = StagedRun(*FAMILY)
    hub = make_hub(run)
    async with serving(run, hub, folder) as path, shell_at(path) as shell:
        assert (await start_tail(shell, "a-1")).agent_id == "a-1"
        for each in ("main", "a-1", "a-1-1", "b"):
            hub.publish(TextDelta(text=each), each)
        hub.publish(Info(message="of the run"))
        hub.publish(end_of("a-1-1"), "a-1-1")
        hub.publish(end_of("a-1"), "a-1")
        text, its_end, end = [msgspec.json.decode(line) for line in await shell.rest()]
    assert (text["text"], its_end["type"], its_end["agent_id"]) == ("a-1", "sub_agent_end", "a-1")
    assert end == {"type": "tail_end", "reason": "agent_ended"}


async def test_tail_of_an_agent_that_has_ended_says_so(folder: Path) -> None:
    run = StagedRun(*FAMILY)
    async with serving(run, make_hub(run), folder) as path, shell_at(path) as shell:
        reply = await shell.ask(Tail(agent="a-1-2"))
        assert isinstance(reply, CommandError)
        assert "has ended (complete)" in reply.message


def publish_much(hub: Hub, size: int) -> list[bytes]:
    """Publish ``size`` bytes and more without a pause; return the lines."""
    kept = Kept()
    hub.add(kept)
    piece = TextDelta(text="x" * 10_000)
    for _ in range(size // 10_000 + 1):
        hub.publish(piece, "main")
    hub.remove(kept)
    return kept.lines


async def test_a_reader_that_never_reads_holds_nothing_up_and_gets_all_until_the_cut(folder: Path) -> None:
    run = StagedRun(MAIN)
    hub = make_hub(run)
    async with serving(run, hub, folder) as path, shell_at(path) as shell, shell_at(path) as other:
        await start_tail(shell)
        published: list[bytes] = []
        while len(published) * 10_000 < 4 * QUEUE_BYTES:
            published += publish_much(hub, 500_000)
            with trio.fail_after(1):
                await hub.room()
            assert isinstance(await other.ask(Ps()), Shown)  # the writer has had its turns in the meantime
        *lines, end = await shell.rest()
    assert reply_decoder.decode(end) == TailEnd(reason="too_slow")
    assert len(lines) < len(published)
    assert lines == published[: len(lines)]
    assert sum(map(len, lines)) >= QUEUE_BYTES - 20_000


async def test_the_end_of_a_run_does_not_wait_for_readers_that_never_read(folder: Path) -> None:
    run = StagedRun(MAIN)
    hub = make_hub(run)
    async with serving(run, hub, folder) as path, shell_at(path) as one, shell_at(path) as two:
        for shell in (one, two):
            await start_tail(shell)
        publish_much(hub, QUEUE_BYTES // 2)
        with trio.fail_after(2):
            await hub.finish()


class CountingHub(Hub):
    """A hub that knows how many sinks came and have not gone; ``is_empty`` is set with each that was the last."""

    def __init__(self) -> None:
        super().__init__(Tagger(SESSION), [])
        self.tagger.know_agent("main", None, "main")
        self.present: set[int] = set()
        self.is_empty = trio.Event()

    def add(self, sink: Sink, only: str | None = None) -> None:
        super().add(sink, only)
        self.present.add(id(sink))

    def remove(self, sink: Sink) -> None:
        super().remove(sink)
        self.present.remove(id(sink))
        if not self.present:
            self.is_empty.set()


async def test_a_reader_that_leaves_is_forgotten(folder: Path) -> None:
    hub = CountingHub()
    async with serving(StagedRun(MAIN), hub, folder) as path:
        async with shell_at(path) as one, shell_at(path) as two:
            for shell in (one, two):
                await start_tail(shell)
            assert len(hub.present) == 2
        await hub.is_empty.wait()
        with trio.fail_after(1):
            await hub.finish()


# -- kill -------------------------------------------------------------------------------------------------------------


async def test_kill_ends_one_agent_and_tells_how_it_ended_once_it_has(folder: Path) -> None:
    def on_cancel(agent_id: str) -> None:
        hub.publish(end_of("a-1-1"), "a-1-1")
        hub.publish(end_of(agent_id), agent_id)

    run = StagedRun(*FAMILY, on_cancel=on_cancel)
    hub = make_hub(run)
    async with serving(run, hub, folder) as path, shell_at(path) as shell:
        reply = await shell.ask(Kill(agent="a-1"))
    assert reply == Killed(agent_id="a-1", below=("a-1-1",), outcome="cancelled")
    assert run.cancelled == ["a-1"]
    assert not run.run_cancelled.is_set()


async def test_kill_of_an_agent_that_has_ended_says_so_and_does_nothing(folder: Path) -> None:
    run = StagedRun(*FAMILY)
    async with serving(run, make_hub(run), folder) as path, shell_at(path) as shell:
        reply = await shell.ask(Kill(agent="a-1-2"))
    assert reply == Killed(agent_id="a-1-2", already_ended=True, outcome="complete")
    assert run.cancelled == []


@pytest.mark.parametrize("words", [None, "main"])
async def test_kill_of_the_run_or_its_main_agent_ends_the_run_whose_end_closes_the_connection(
    folder: Path, words: str | None
) -> None:
    run = StagedRun(*FAMILY)
    hub = make_hub(run)
    async with trio.open_nursery() as nursery:
        async with serving(run, hub, folder) as path:
            stream = await trio.open_unix_socket(str(path))
            shell = Shell(stream)
            reply = await shell.ask(Kill(agent=words))
            assert reply == Killed(agent_id=None, below=("main", "a-1", "a-1-1", "b"))
            assert run.run_cancelled.is_set()
        nursery.cancel_scope.deadline = trio.current_time() + 10
        async with stream:
            assert await shell.rest() == []
    assert not nursery.cancel_scope.cancelled_caught
    assert run.cancelled == []


async def test_the_answer_says_whether_the_process_is_there_for_more_than_the_run(folder: Path) -> None:
    run = StagedRun(*FAMILY)
    async with serving(run, make_hub(run), folder, process_goes_on=True) as path:
        stream = await trio.open_unix_socket(str(path))
        async with stream:
            reply = await Shell(stream).ask(Kill())
    assert isinstance(reply, Killed)
    assert reply.process_goes_on


# -- the socket -------------------------------------------------------------------------------------------------------


async def test_the_socket_is_this_user_s_alone_and_goes_with_the_run(folder: Path) -> None:
    run = StagedRun(MAIN)
    async with serving(run, make_hub(run), folder) as path:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(folder.iterdir()) == []


async def test_a_run_that_can_t_listen_goes_on_without(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = StagedRun(MAIN)
    async with trio.open_nursery() as nursery:
        note = await nursery.start(LiveServer(run, make_hub(run), tmp_path / "file" / "run").serve)
    assert "can't reach this run" in note


OTHER_USER = 65_534
AS_OTHER_USER = """
import os, socket, sys
folder, name, user = sys.argv[1:]
os.chdir(folder)
os.setuid(int(user))
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(10)
connection.connect(name)
connection.sendall(b'{"type":"kill"}\\n')
sys.stdout.write(connection.makefile().readline())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_is_refused_even_if_the_modes_let_it_in(folder: Path) -> None:
    run = StagedRun(MAIN)
    async with serving(run, make_hub(run), folder) as path:
        command = [sys.executable, "-c", AS_OTHER_USER, str(folder), path.name, str(OTHER_USER)]
        shut_out = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        assert b"PermissionError" in shut_out.stderr
        path.chmod(0o666)
        folder.chmod(0o711)
        let_in = await trio.run_process(command, capture_stdout=True, stderr=subprocess.DEVNULL)
        reply = reply_decoder.decode(let_in.stdout)
    assert isinstance(reply, CommandError)
    assert reply.code == "forbidden"
    assert not run.run_cancelled.is_set()


def test_no_line_of_the_wire_can_be_taken_for_the_end_of_a_tail() -> None:
    assert line_of(TailEnd(reason="run_ended")).startswith(TAIL_END_START)
    lines = [each for each in vars(records).values() if isinstance(each, type) and issubclass(each, records.Record)]
    types = {each.__struct_config__.tag for each in lines}
    assert {"hello", "text_delta", "run_summary"} <= types
    assert "tail_end" not in types
