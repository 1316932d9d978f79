"""Where the sockets are, whose they are, and which of them are stale."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.live import unix_socket
from supervisor.live.connection import LiveConnection
from supervisor.live.errors import ConnectionLost, FolderUnsafe, NotFound
from supervisor.live.folder import LiveSocket, live_folder, live_sockets, make_folder, socket_of

SESSION = "20250102-030405-abcdef"


@pytest.fixture
def ended_pid() -> int:
    """The number of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(20)
    return process.pid


def leave_behind(live: LiveSocket) -> None:
    """A socket file that nobody listens at, as a killed run leaves it."""
    make_folder(live.path.parent)
    unix_socket.listen(live.path).close()


# -- the folder -------------------------------------------------------------------------------------------------------


def test_the_runtime_folder_is_taken_if_it_is_ours(tmp_path: Path) -> None:
    environ = {"HOME": "/h", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert live_folder(environ) == tmp_path / "corral"


@pytest.mark.parametrize("value", ["", "relative", "/no/such/folder", "/dev/null"])
def test_without_a_usable_runtime_folder_it_is_in_the_state_folder(value: str) -> None:
    environ = {"HOME": "/h", "XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": value}
    assert live_folder(environ) == Path("/s/corral/run")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_user_s_runtime_folder_is_not_taken(tmp_path: Path) -> None:
    os.chown(tmp_path, 65_534, -1)
    environ = {"XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert live_folder(environ) == Path("/s/corral/run")


def test_the_folder_is_made_for_this_user_alone_and_an_open_one_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    make_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_is_open_to_others_or_a_link_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_folder(folder)
    link = tmp_path / "link"
    link.symlink_to(folder)
    folder.chmod(0o770)
    for each in (folder, link):
        with pytest.raises(FolderUnsafe, match="closed to others"):
            live_sockets(each)
    with pytest.raises(FolderUnsafe):
        make_folder(link)


def test_no_folder_means_no_runs(tmp_path: Path) -> None:
    assert live_sockets(tmp_path / "run") == []


# -- stale sockets ----------------------------------------------------------------------------------------------------


def test_the_socket_of_a_run_that_is_gone_is_removed_and_others_are_left(tmp_path: Path, ended_pid: int) -> None:
    folder = tmp_path / "run"
    stale = socket_of(folder, SESSION, ended_pid)
    unfinished = LiveSocket(path=folder / f".{stale.path.name}", session_id=SESSION, pid=ended_pid)
    for each in (stale, unfinished):
        leave_behind(each)
    foreign = folder / "notes.txt"
    foreign.touch()
    live = socket_of(folder, SESSION, os.getpid())
    with unix_socket.listen(live.path):
        assert live_sockets(folder) == [live]
        assert sorted(folder.iterdir()) == sorted([foreign, live.path])


def test_a_socket_that_is_listened_at_stays_though_no_process_of_its_number_is_seen(
    tmp_path: Path, ended_pid: int
) -> None:
    """As one of a run in another namespace of process ids."""
    live = socket_of(tmp_path / "run", SESSION, ended_pid)
    make_folder(live.path.parent)
    with unix_socket.listen(live.path):
        assert live_sockets(live.path.parent) == [live]


def test_a_socket_that_nobody_listens_at_stays_while_a_process_has_its_number(tmp_path: Path) -> None:
    live = socket_of(tmp_path / "run", SESSION, os.getpid())
    leave_behind(live)
    assert live_sockets(live.path.parent) == [live]
    with pytest.raises(NotFound, match="has just ended"):
        LiveConnection(live)


# -- sockets ----------------------------------------------------------------------------------------------------------


def test_a_path_of_any_length_will_do_and_leaves_nothing_else_behind(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30) / ("deeper" * 20)
    make_folder(folder)
    path = folder / f"{SESSION}.1.sock"
    with unix_socket.listen(path) as listener, unix_socket.connect(path, 10) as connection:
        accepted, _address = listener.accept()
        with accepted:
            connection.sendall(b"x")
            assert accepted.recv(1) == b"x"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert list(folder.iterdir()) == [path]


def test_a_socket_that_can_t_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    in_the_way = tmp_path / "a.sock"
    in_the_way.mkdir()
    with pytest.raises(OSError, match="directory"):
        unix_socket.listen(in_the_way)
    assert list(tmp_path.iterdir()) == [in_the_way]


def test_the_peer_of_a_connection_of_our_own_is_the_same_user() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert unix_socket.is_same_user(ours)


AS_OTHER_USER = """
import os, socket, sys
folder, name = sys.argv[1:]
os.chdir(folder)
os.setuid(65534)
listener = socket.socket(socket.AF_UNIX)
listener.bind(name)
listener.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_socket_that_another_user_listens_at_is_told_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_folder(folder)
    folder.chmod(0o777)
    live = socket_of(folder, SESSION, os.getpid())
    command = [sys.executable, "-c", AS_OTHER_USER, str(folder), live.path.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"listening\n"
        folder.chmod(0o700)
        with pytest.raises(ConnectionLost, match="another user"):
            LiveConnection(live)
        other.communicate(timeout=10)


def test_a_run_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    live = socket_of(tmp_path, SESSION, os.getpid())
    with (
        unix_socket.listen(live.path),
        LiveConnection(live) as connection,
        pytest.raises(ConnectionLost, match=rf"run {SESSION} \(pid \d+\): it does not answer"),
    ):
        connection.reply(0.05)
