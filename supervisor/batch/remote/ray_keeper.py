"""A Ray of this machine's own, and the process that keeps it: when the batch is gone it ends all that belongs to it.

Ray's processes take seconds to notice that the one which started them has died, and some stay. So they are started by
the keeper, to which their orphans come, and whose lifeline is the batch. Source: prctl(2), PR_SET_CHILD_SUBREAPER.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import supervisor
from protocol.process_tree import become_subreaper, kill_strays, name_process
from supervisor.batch.remote.grounds import PLACE_VARIABLE, remove
from supervisor.batch.remote.ray_api import load_ray
from supervisor.child_processes import Family, end_process
from supervisor.errors import WrongUsage

KEEPER_ENTRY = "supervisor.batch.remote.ray_keeper:keep_ray"
START_SECONDS = 120.0
END_SECONDS = 10.0
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray listens on 127.0.0.1 alone, as it does by default on systems for which it has no clusters."""
_LONGEST_FOLDER = 40
"""Ray's sockets lie deep below its folder, and their paths may have 107 bytes. Source: unix(7)."""
_READY, _FAILED = b"+", b"!"


class RayKeeper:
    """The batch's side of it. ``address`` is where its Ray listens.

    ``variables`` are to be set where Ray is imported to connect to it.
    """

    def __init__(self) -> None:
        """Start it; blocks until it is ready. Raises `WrongUsage` where there is no Ray, or it can't be started."""
        self._ours, theirs = socket.socketpair()
        with theirs:
            family = Family("", [Path(supervisor.__path__[0])], ends_orphans=False)
            self._process = family.start(KEEPER_ENTRY, (), theirs.fileno(), None)
        try:
            self.address, token = self._await_address()
        except BaseException:
            self.close()
            raise
        self.variables = _variables(token)

    def _await_address(self) -> tuple[str, str]:
        self._ours.settimeout(START_SECONDS)
        told = b""
        with suppress(TimeoutError, ConnectionError):
            while not told.endswith(b"\n") and (data := self._ours.recv(4096)):
                told += data
        text = told[1:].decode(errors="replace").strip()
        if not told.startswith(_READY):
            raise WrongUsage(f"Ray can't be started: {text or 'it did not say why'}")
        address, _, token = text.partition(" ")
        return address, token

    def close(self) -> None:
        """End it with all that it started; blocks for 10 seconds at most."""
        self._ours.close()
        self._process.returncode = end_process(self._process.pid, END_SECONDS)


def keep_ray(channel_fd: int) -> None:
    """Start a Ray, say where it listens, and end it when the other end of the channel closes."""
    channel = socket.socket(fileno=channel_fd)
    channel.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    become_subreaper()
    name_process("corral-ray")
    folder = _make_folder()
    threading.Thread(target=_watch_lifeline, args=(channel, folder), daemon=True).start()
    token = secrets.token_hex(32)
    os.environ.update({**_variables(token), PLACE_VARIABLE: str(folder)})
    try:
        found = load_ray().init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            configure_logging=True,
            _temp_dir=str(folder),
        )
        address = getattr(found, "address_info", {})["gcs_address"]
    except Exception as error:  # whatever Ray raises: the batch can't begin
        channel.sendall(_FAILED + " ".join(str(error).split()).encode()[:2000] + b"\n")
    else:
        channel.sendall(_READY + f"{address} {token}\n".encode())
    while True:  # only the lifeline ends this process
        signal.pause()


def _watch_lifeline(channel: socket.socket, folder: Path) -> None:
    with suppress(OSError):
        while channel.recv(1):
            pass
    kill_strays()
    remove(folder)
    os._exit(0)


def _variables(token: str) -> dict[str, str]:
    """Ray listens here alone, and answers only who has the token; it makes no file of it in the person's home."""
    return {**_LOOPBACK, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


def _make_folder() -> Path:
    usual = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="corral-ray-", dir=usual if len(usual) <= _LONGEST_FOLDER else "/tmp"))
