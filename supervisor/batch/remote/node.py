"""The process that makes one attempt on some machine: the same attempt as anywhere, but that the batch is elsewhere.

It belongs to whoever holds the other end of its channel: when that end closes it ends all it started, removes its
folder, and exits.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import trio

from protocol.errors import ProtocolError
from protocol.frame_stream import FrameStream
from protocol.frames import Finished
from protocol.key_scrubbing import take_out_of_environment
from protocol.process_tree import become_subreaper, forbid_inspection, kill_strays, name_process
from protocol.version import installed_version
from supervisor.batch.attempt import Attempt
from supervisor.batch.attempt_log import AttemptLog
from supervisor.batch.commands import Commands
from supervisor.batch.isolation import Isolation, SetupFailed
from supervisor.batch.remote import grounds
from supervisor.batch.remote.frames import (
    BEAT_SECONDS,
    PIECE_BYTES,
    Beat,
    Begin,
    CallGo,
    DownFrame,
    Halt,
    Here,
    Over,
    PatchPiece,
    Told,
    down_decoder,
)
from supervisor.batch.remote.node_parts import NodeEndpoints, NodeJournal, NodeLog
from supervisor.batch.remote.order import Order, decode_order, encode_report
from supervisor.batch.remote.token import Token, read_token
from supervisor.batch.remote.unpacking import parcel_of, settle
from supervisor.batch.report import AttemptReport, Surroundings
from supervisor.config import SpawnMode
from supervisor.early_fork import fork_early
from supervisor.model_choice import key_variables
from supervisor.provider_table import BUILTIN_PROVIDERS
from supervisor.spawn import Spawner, choose_spawner


def run_node(token: str, folder: str, spawn: str, channel_fd: int) -> None:
    """Make the attempt that ``token`` names in ``folder``, a machine's `grounds` for the batch."""
    found = read_token(token)
    assert found is not None
    _quiet_standard_streams()
    _leave_signals_to_the_batch()
    become_subreaper()
    name_process("corral-attempt")
    _clean_environment()
    forbid_inspection()  # before the fork server is forked
    channel = socket.socket(fileno=channel_fd)
    channel.set_inheritable(False)
    home = Path(tempfile.mkdtemp(prefix=f"{found.job_id}-{found.n}-", dir=folder))
    early = None if spawn == "fresh" else fork_early()
    spawner = choose_spawner(cast("SpawnMode", spawn), early, ends_orphans=True)
    try:
        trio.run(_serve, channel, found, home, spawner)
    finally:
        spawner.close()
        kill_strays()
        grounds.remove(home)


async def _serve(channel: socket.socket, token: Token, home: Path, spawner: Spawner) -> None:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(channel))
    frames = FrameStream(stream, down_decoder)
    async with stream, trio.open_nursery() as nursery:
        nursery.start_soon(frames.run_writer)
        nursery.start_soon(spawner.run)
        nursery.start_soon(_beat, frames)
        frames.put(Here(token=str(token), version=installed_version(), host=socket.gethostname()))
        node = Node(frames, token, home, spawner)
        with suppress(ProtocolError):
            while messages := await frames.receive():
                for message in messages:
                    node.take(message, nursery)
        # The end of the stream: the batch has all it wanted, or is gone.
        nursery.cancel_scope.cancel()


async def _beat(frames: FrameStream[DownFrame]) -> None:
    while True:
        await trio.sleep(BEAT_SECONDS)
        frames.put(Beat())


class Node:
    """One attempt, told what to do and telling what comes of it by frames."""

    def __init__(self, frames: FrameStream[DownFrame], token: Token, home: Path, spawner: Spawner) -> None:
        self._frames = frames
        self._token = token
        self._home = home
        self._spawner = spawner
        self._commands = Commands(spawner)
        self._endpoints = NodeEndpoints(frames)
        self._attempt: Attempt | None = None
        self._stopping: Finished | None = None

    def take(self, message: DownFrame, nursery: trio.Nursery) -> None:
        """Do what the batch says. Raises `ProtocolError` for what it can't mean."""
        match message:
            case Begin(order=body):
                try:
                    order = decode_order(body)
                except msgspec.MsgspecError as error:
                    raise ProtocolError(f"the order can't be read: {error}") from None
                nursery.start_soon(self._make, order, nursery)
            case CallGo(call=call):
                self._endpoints.let_go(call)
            case Halt(ending=ending, kill=kill):
                self._stopping = self._stopping or ending
                if self._attempt is not None:
                    self._attempt.stop(ending, kill=kill)

    async def _make(self, order: Order, nursery: trio.Nursery) -> None:
        report = await self._report(order)
        if report.patch is not None:
            await self._send_patch(report.patch.path)
        if report.must_keep and report.place is not None and report.place.work is not None:
            self._keep(report.place.work)
        self._frames.put(Over(report=encode_report(report)))
        await self._frames.flush()
        nursery.cancel_scope.cancel()

    async def _report(self, order: Order) -> AttemptReport:
        started = time.time()
        try:
            job = await settle(order.job, order.parcel, self._home.parent, self._commands)
        except SetupFailed as error:
            return AttemptReport(n=order.n, end=error.end, started=started, ended=time.time())
        settings = msgspec.structs.replace(job.settings, state_folder=self._home / "state")
        job = msgspec.structs.replace(job, settings=settings)
        self._attempt = Attempt(job, order.n, self._surroundings(order))
        if self._stopping is not None:
            self._attempt.stop(self._stopping)
        return await self._attempt.run()

    def _surroundings(self, order: Order) -> Surroundings:
        return Surroundings(
            batch_id=self._token.batch_id,
            folder=self._home,
            journal=lambda _job_id, _n: NodeJournal(self._frames),
            spawner=self._spawner,
            commands=self._commands,
            isolation=Isolation(self._commands, self._home, copy_max=order.copy_max, lock=parcel_of),
            endpoints=self._endpoints,
            keeps_refs=False,  # the batch makes them of the patch, where the repository is
            on_note=self._tell,
            open_log=self._open_log,
        )

    def _open_log(self, _job_id: str, _n: int, _on_failure: Callable[[OSError], None]) -> AttemptLog:
        return NodeLog(self._frames)

    def _tell(self, text: str) -> None:
        self._frames.put(Told(text=text))

    async def _send_patch(self, path: Path) -> None:
        with path.open("rb") as file:
            for data in iter(partial(file.read, PIECE_BYTES), b""):
                self._frames.put(PatchPiece(data=data))
                await self._frames.room()

    def _keep(self, work: Path) -> None:
        try:
            kept = grounds.keep(work, self._token)
        except OSError as error:
            self._tell(f"{self._token.job_id}: {work} on {socket.gethostname()} is lost: {error.strerror or error}")
        else:
            self._tell(f"{self._token.job_id}: its work folder is now {kept} on {socket.gethostname()}")


def _quiet_standard_streams() -> None:
    """Stray prints go to standard error, which the cluster logs."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)


def _leave_signals_to_the_batch() -> None:
    """Handlers that do nothing, and not ``SIG_IGN``, which every command of an agent would inherit."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _clean_environment() -> None:
    """Nothing of the cluster's own, and no key that this machine may have, is for the agents' commands."""
    take_out_of_environment(key_variables(os.environ, BUILTIN_PROVIDERS))
    for name in [name for name in os.environ if name.startswith("RAY_") or name in ("SPT_NOENV", "PYTHONBREAKPOINT")]:
        del os.environ[name]
