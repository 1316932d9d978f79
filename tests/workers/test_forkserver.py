"""The fork server as a process: what it is like, what its workers are like, and what is left of them."""

from __future__ import annotations

import ast
import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

import tests
from protocol.fork_frames import (
    FORK_SERVER_ENTRY,
    Exited,
    ForkNotice,
    ForkRequest,
    Reap,
    Serving,
    Spawn,
    Spawned,
    SpawnFailed,
    encode_fork_frame,
    notice_decoder,
)
from supervisor.child_processes import Family
from supervisor.early_fork import begin_serving
from tests.stubs.process_table import ended_within, process_table

ENTRIES = "tests.workers.fork_entries"
SECONDS = 20.0


class Server:
    """A fork server that the test speaks to itself."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        family = Family("unused:entry", [Path(tests.__path__[0])], ends_orphans=False)
        with theirs:
            self.process = family.start(FORK_SERVER_ENTRY, (str(os.getpid()),), theirs.fileno(), None)
        ours.settimeout(SECONDS)
        self.control = ours
        begin_serving(ours)
        serving = self.hear()
        assert isinstance(serving, Serving)
        self.keeper = serving.keeper

    def hear(self) -> ForkNotice:
        return notice_decoder.decode(self.control.recv(4096))

    def say(self, message: ForkRequest, descriptors: list[int] | None = None) -> None:
        socket.send_fds(self.control, [encode_fork_frame(message)], descriptors or [])

    def ask(self, entry: str, kind: str = "") -> tuple[ForkNotice, socket.socket, int]:
        """The answer to a request, our end of the channel and of stderr."""
        ours, theirs = socket.socketpair()
        ours.settimeout(SECONDS)
        reader, writer = os.pipe()
        with theirs:
            self.say(Spawn(number=7, entry=f"{ENTRIES}:{entry}", kind=kind), [theirs.fileno(), writer])
        os.close(writer)
        return self.hear(), ours, reader

    def spawn(self, entry: str, kind: str = "") -> tuple[int, socket.socket, int]:
        answer, channel, stderr = self.ask(entry, kind)
        assert isinstance(answer, Spawned), answer
        return answer.pid, channel, stderr

    def end(self) -> None:
        self.control.close()
        assert ended_within(self.process.pid, SECONDS)
        assert self.process.wait(SECONDS) == 0


@pytest.fixture
def server() -> Generator[Server, None, None]:
    running = Server()
    try:
        yield running
    finally:
        running.control.close()
        try:
            running.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()
            raise


def line_of(channel: socket.socket) -> str:
    data = b""
    while not data.endswith(b"\n"):
        piece = channel.recv(65_536)
        assert piece, "the worker has gone"
        data += piece
    return data.decode()


def all_of(descriptor: int) -> str:
    with open(descriptor, "rb") as stream:
        return stream.read().decode()


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_the_server_has_one_thread_a_group_of_its_own_and_nothing_open_but_its_socket(server: Server) -> None:
    pid = server.process.pid
    assert status_of(pid)["Threads"] == "1"
    assert os.getpgid(pid) == pid
    opened = {link.name: str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    assert opened.pop("0") == opened.pop("1") == "/dev/null"
    del opened["2"]
    assert sorted(target.partition(":")[0] for target in opened.values()) == ["pipe", "socket"]  # to its keeper


def test_what_was_sent_before_the_server_served_is_answered() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    family = Family("unused:entry", [Path(tests.__path__[0])], ends_orphans=False)
    channel, their_channel = socket.socketpair()
    request = Spawn(number=1, entry=f"{ENTRIES}:echo", kind="")
    begin_serving(ours)
    socket.send_fds(ours, [encode_fork_frame(request)], [their_channel.fileno(), 2])
    with ours, theirs, channel, their_channel:
        process = family.start(FORK_SERVER_ENTRY, (str(os.getpid()),), theirs.fileno(), None)
        theirs.close()
        ours.settimeout(SECONDS)
        assert isinstance(notice_decoder.decode(ours.recv(4096)), Serving)
        assert isinstance(notice_decoder.decode(ours.recv(4096)), Spawned)
    assert process.wait(SECONDS) == 0


def test_a_worker_has_only_its_own_descriptors_and_leads_a_group(server: Server) -> None:
    siblings = [server.spawn("echo") for _ in range(3)]
    pid, channel, stderr = server.spawn("describe")
    found = ast.literal_eval(line_of(channel))
    assert found["pid"] == found["group"] == pid
    assert found["descriptors"] == [0, 1, 2, found["channel"]]
    assert found["threads"] == 1
    for _, other, other_stderr in [*siblings, (pid, channel, stderr)]:
        other.close()
        os.close(other_stderr)


def test_a_worker_imports_nothing_that_the_server_has_not_imported(server: Server) -> None:
    _, channel, stderr = server.spawn("describe")
    found = ast.literal_eval(line_of(channel))
    channel.close()
    os.close(stderr)
    assert found["imported"] == []


def test_a_worker_starts_with_signals_as_a_new_process_and_chance_of_its_own(server: Server) -> None:
    found: list[dict[str, object]] = []
    for _ in range(2):
        _, channel, stderr = server.spawn("describe")
        found.append(ast.literal_eval(line_of(channel)))
        channel.close()
        os.close(stderr)
    assert found[0]["caught"] == found[1]["caught"] == []
    assert found[0]["chance"] != found[1]["chance"]


def test_a_worker_s_channel_ends_with_the_worker_though_siblings_live(server: Server) -> None:
    pid, channel, stderr = server.spawn("echo")
    _, sibling, sibling_stderr = server.spawn("echo")
    line_of(channel)
    os.kill(pid, signal.SIGKILL)
    assert channel.recv(100) == b""
    assert all_of(stderr) == ""
    line_of(sibling)
    sibling.close()
    os.close(sibling_stderr)


@pytest.mark.parametrize(
    ("kind", "code", "number", "said"),
    [
        ("return", 0, None, ""),
        ("exit 0", 0, None, ""),
        ("exit 3", 3, None, ""),
        ("exit 259", 3, None, ""),
        ("say too bad", 1, None, "too bad\n"),
        ("raise", 1, None, "RuntimeError: as it was told\n"),
        ("signal 9", None, 9, ""),
        ("signal 11", None, 11, ""),
    ],
)
def test_how_a_worker_ended_is_told(server: Server, kind: str, code: int | None, number: int | None, said: str) -> None:
    pid, channel, stderr = server.spawn("leave", kind)
    assert server.hear() == Exited(pid=pid, code=code, signal=number)
    assert all_of(stderr).endswith(said)
    channel.close()


def test_a_number_stays_taken_until_its_end_is_known(server: Server) -> None:
    pid, channel, stderr = server.spawn("leave", "return")
    server.hear()
    assert process_table()[pid].state == "Z"
    server.say(Reap(pid=pid))
    server.spawn("leave", "return")  # it takes one request after the other
    assert pid not in process_table()
    channel.close()
    os.close(stderr)


def test_a_dead_worker_s_group_and_orphans_are_gone_when_its_end_is_told(server: Server) -> None:
    pid, channel, stderr = server.spawn("stay")
    _, near, far = map(int, line_of(channel).split())
    assert os.getpgid(far) == far
    os.kill(pid, signal.SIGKILL)
    assert server.hear() == Exited(pid=pid, code=None, signal=9)
    assert not process_table().keys() & {near, far}
    channel.close()
    os.close(stderr)


def test_without_its_supervisor_everything_ends_within_a_second(server: Server) -> None:
    pids: list[int] = []
    for _ in range(3):
        _, channel, stderr = server.spawn("stay")
        pids += map(int, line_of(channel).split())
        channel.close()
        os.close(stderr)
    server.control.close()
    assert ended_within(server.process.pid, 1.5)
    assert not process_table().keys() & set(pids)


def test_without_its_supervisor_a_server_does_not_wait_for_nobody(server: Server) -> None:
    server.control.close()
    assert ended_within(server.process.pid, 0.4)


def test_a_request_without_descriptors_is_refused_and_the_next_is_served(server: Server) -> None:
    server.say(Spawn(number=1, entry=f"{ENTRIES}:echo", kind=""))
    assert server.hear() == SpawnFailed(number=1, errno=errno.EMFILE)
    _, channel, stderr = server.spawn("echo")
    channel.close()
    os.close(stderr)


def test_without_descriptors_left_requests_are_refused_until_there_are_some(server: Server) -> None:
    soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (5, hard))
    answer, channel, stderr = server.ask("echo")
    assert answer == SpawnFailed(number=7, errno=errno.EMFILE)
    assert channel.recv(1) == b"", "nobody holds the channel of a worker that never was"
    assert all_of(stderr) == ""
    channel.close()
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
    _, channel, stderr = server.spawn("echo")
    line_of(channel)
    channel.close()
    os.close(stderr)


def test_a_server_dies_with_a_supervisor_that_dies_while_it_imports() -> None:
    """The middle process starts a server whose imports never end, and is killed then."""
    reader, writer = os.pipe()
    program = (
        "import os, signal, socket, sys, types\n"
        f"writer = {writer}\n"
        "preload = types.ModuleType('workers.fork_preload')\n"
        "def hang():\n"
        "    os.write(2, f'{os.getpid()}\\n'.encode())\n"
        "    signal.pause()\n"
        "preload.preload = hang\n"
        "import workers; sys.modules['workers.fork_preload'] = preload\n"
        "from supervisor.early_fork import fork_early\n"
        "assert fork_early()\n"
        "signal.pause()\n"
    )
    middle = subprocess.Popen([sys.executable, "-c", program], stderr=writer, cwd=Path(tests.__path__[0]).parent)
    os.close(writer)
    assert select.select([reader], [], [], SECONDS)[0]
    server_pid = int(os.read(reader, 100))
    middle.kill()
    middle.wait()
    assert ended_within(server_pid, 1.0)
    os.close(reader)
