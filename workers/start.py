"""Where a worker process begins: it makes the process safe to work in, then runs its kind's entry.

The process belongs to the supervisor at the other end of its channel: when that end closes, whatever the worker is
doing, it ends all it started and exits.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import threading
from types import FrameType
from typing import cast

import trio

from protocol.handshake import OUT_OF_MEMORY_EXIT_CODE
from protocol.process_tree import become_subreaper, forbid_inspection, kill_strays, name_process
from workers import kinds

_ORPHANED_EXIT_CODE = 71
"""The supervisor is gone; nobody reads this code."""


def run_worker(kind: str, channel_fd: int) -> None:
    """Run a worker of ``kind`` on the socket ``channel_fd`` until its work is done; nothing it started survives it."""
    _quiet_standard_streams()
    _reset_signals()
    faulthandler.enable()  # where the interpreter itself is ended by a signal, its last words say where
    become_subreaper()
    name_process("corral-worker")
    channel = socket.socket(fileno=channel_fd)
    channel.set_inheritable(False)
    _watch_lifeline(channel)
    entry = kinds.load(kind)
    forbid_inspection()
    try:
        trio.run(_serve, entry, channel)
    except BaseException as error:
        if _is_out_of_memory(error):
            kill_strays()
            os._exit(OUT_OF_MEMORY_EXIT_CODE)
        raise
    finally:
        kill_strays()


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return any(map(_is_out_of_memory, group.exceptions))
    return isinstance(error, MemoryError)


async def _serve(entry: kinds.WorkerEntry, channel: socket.socket) -> None:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(channel))
    async with stream:
        await entry(stream)


def _quiet_standard_streams() -> None:
    """Stray prints go to stderr, which the supervisor reads; no tool inherits a terminal or the stream of a client."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)


def _reset_signals() -> None:
    """Only the supervisor decides: a worker takes no Ctrl-C and no hang-up.

    Handlers that do nothing, and not ``SIG_IGN``: an ignored signal would stay ignored in every tool.
    """
    signal.signal(signal.SIGINT, _do_nothing)
    signal.signal(signal.SIGHUP, _do_nothing)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _do_nothing(_signal: int, _frame: FrameType | None) -> None:
    pass


def _watch_lifeline(channel: socket.socket) -> None:
    """End the process once the supervisor's end of the channel is closed, even while trio's thread is busy."""
    lifeline = channel.dup()
    lifeline.set_inheritable(False)

    def watch() -> None:
        poll = select.poll()
        poll.register(lifeline, getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
        poll.poll()
        kill_strays()
        os._exit(_ORPHANED_EXIT_CODE)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
