"""Real agents that misbehave at a moment: the agent of `workers.agent`, behind a stream that follows a plan.

A `Plan` says which agent does what, and when. Each `Fault` happens as often as its ``times`` says over all processes of
a run, so that a restarted worker does not do again what its predecessor did. `tests.stubs.faulty_corral` runs the
command with such workers.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
from pathlib import Path
from typing import Literal, TypeAlias, cast

import msgspec
import trio

from protocol.codec import downward_decoder, encode_frame_body, upward_decoder
from protocol.content import UserMessage
from protocol.frames import Finished, GrantAnswer, History, Prompt, Ready, Start, UpwardFrame
from protocol.framing import FrameSplitter, frame
from protocol.records import TextDelta, ThinkingDelta, ToolOutputLine
from workers import kinds, start
from workers.agent import run_agent

ENTRY = "tests.stubs.faulty_worker:run"
FLOOD = 20_000
"""Records of a flood, which are small; a torrent is fewer and large ones."""
TORRENT = 8_000
TORRENT_TEXT = 2_000
LATE = 1.0
"""Seconds that a late worker takes longer than others: enough for most of what is to happen meanwhile."""

Moment: TypeAlias = Literal["start", "stream", "tool", "shutdown", "end"]
"""Before the first frame; while a reply comes; after a tool's first line; instead of the last frame; after it."""

FaultKind: TypeAlias = Literal[
    "kill",
    "segfault",
    "memory",
    "exit",
    "loop",
    "stop",
    "stuck",
    "garbage",
    "oversize",
    "close",
    "hold",
    "cut",
    "flood",
    "torrent",
    "late",
]
"""``late`` and the two floods are no end: the agent goes on behind them."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """``agent`` is ``main``, a sub-agent's prompt, or for the moment ``start`` the number of the worker, from 0."""

    agent: str
    moment: Moment
    kind: FaultKind
    times: int = 1


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong in a run. ``refused`` are the numbers of the workers that the system can't start."""

    faults: tuple[Fault, ...] = ()
    refused: tuple[int, ...] = ()


class _Faults:
    """The plan in ``file``, as one process sees it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._faults = msgspec.json.decode(file.read_bytes(), type=Plan).faults

    def has(self, kind: FaultKind) -> bool:
        return any(fault.kind == kind for fault in self._faults)

    def claim(self, agent: str, moment: Moment) -> FaultKind | None:
        """The fault of this agent at this moment, unless it has happened often enough."""
        for index, fault in enumerate(self._faults):
            if (fault.agent, fault.moment) == (agent, moment):
                for number in range(fault.times):
                    if _is_first(self._file.with_name(f"{self._file.name}.{index}.{number}")):
                        return fault.kind
        return None


def _is_first(token: Path) -> bool:
    try:
        token.open("x").close()
    except FileExistsError:
        return False
    return True


_present: tuple[int, _Faults]


def run(kind: str, channel_fd: int) -> None:
    """The entry: ``kind`` is the worker's number and the file of the plan."""
    global _present
    number, _, file = kind.partition(":")
    faults = _Faults(Path(file))
    _present = (int(number), faults)
    kinds.KINDS["agent"] = "tests.stubs.faulty_worker:run_faulty_agent"
    if faults.has("close"):
        # The thread that watches the channel would end a process that closes it itself.
        setattr(start, "_watch_lifeline", _watch_nothing)  # noqa: B010 - it is private, and has no other way
    start.run_worker("agent", channel_fd)


def _watch_nothing(_channel: socket.socket) -> None:
    pass


async def run_faulty_agent(stream: trio.SocketStream) -> None:
    """The agent, on a stream that misbehaves."""
    await run_agent(cast("trio.SocketStream", FaultyStream(stream, *_present)))


class FaultyStream(trio.abc.Stream):
    """Passes everything on in both directions until the moment of a fault has come."""

    def __init__(self, stream: trio.SocketStream, number: int, faults: _Faults) -> None:
        self._stream = stream
        self._number = number
        self._faults = faults
        self._agent = ""
        self._upward = FrameSplitter()
        self._downward = FrameSplitter()
        self._sending = trio.Lock()
        self._is_closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send frames one by one, or misbehave."""
        async with self._sending:
            for offset, body in self._upward.feed(bytes(data)):
                assert offset >= 0
                message = upward_decoder.decode(body)
                await self._misbehave(self._before(message))
                await self._stream.send_all(frame(body))
                await self._misbehave(self._after(message))

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Take frames in, or misbehave."""
        data = await self._stream.receive_some(max_bytes)
        if self._is_closed:
            await trio.sleep_forever()  # the agent would go
        for _offset, body in self._downward.feed(data):
            match downward_decoder.decode(body):
                case Start(is_main=True):
                    self._agent = "main"
                case Prompt(text=text) | History(message=UserMessage(text=text)) if not self._agent:
                    self._agent = text
                case GrantAnswer(decision="go") if self._agent != "main":
                    # A sub-agent's reply does not stream: its call is under way from here on.
                    async with self._sending:
                        await self._misbehave(self._faults.claim(self._agent, "stream"))
                case _:
                    pass
        return data

    async def wait_send_all_might_not_block(self) -> None:
        """Not used."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def _before(self, message: UpwardFrame) -> FaultKind | None:
        if isinstance(message, Ready):
            return self._faults.claim(str(self._number), "start")
        return self._faults.claim(self._agent, "shutdown") if isinstance(message, Finished) else None

    def _after(self, message: UpwardFrame) -> FaultKind | None:
        match message:
            case TextDelta() if self._agent == "main":
                return self._faults.claim(self._agent, "stream")
            case ToolOutputLine():
                return self._faults.claim(self._agent, "tool")
            case Finished():
                return self._faults.claim(self._agent, "end")
            case _:
                return None

    async def _misbehave(self, kind: FaultKind | None) -> None:
        """Do it; returns only where nothing is to be done, after a flood, and from being late."""
        if kind is None:
            return
        if kind == "late":
            await trio.sleep(LATE)  # the fault itself
            return
        if kind in ("flood", "torrent"):
            count, size = (FLOOD, 50) if kind == "flood" else (TORRENT, TORRENT_TEXT)
            record = frame(encode_frame_body(ThinkingDelta(text="f" * size)))
            for _ in range(count // 100):
                await self._stream.send_all(record * 100)
            return
        if kind in _DEADLY:
            _DEADLY[kind](self._stream.socket.fileno())
        await self._stream.send_all(_BYTES.get(kind, b""))
        if kind == "cut":
            _kill(0)
        if kind == "close":
            self._is_closed = True
            self._stream.socket.shutdown(trio.socket.SHUT_RDWR)
        await trio.sleep_forever()


def _kill(_channel: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault(_channel: int) -> None:
    ctypes.string_at(0)


def _use_up_memory(_channel: int) -> None:
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        bytearray(1 << 46)
    held: list[bytearray] = []
    while True:
        held.append(bytearray(16 << 20))


def _exit(_channel: int) -> None:
    os._exit(0)


def _loop(_channel: int) -> None:
    while True:
        pass


def _stop(_channel: int) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _be_stuck(_channel: int) -> None:
    ctypes.PyDLL(None).sleep(600)  # in C, without letting any other thread of the interpreter run


def _leave_the_channel_to_another(channel: int) -> None:
    subprocess.Popen(["sleep", "600"], pass_fds=(channel,), start_new_session=True)
    _kill(channel)


_DEADLY = {
    "kill": _kill,
    "segfault": _segfault,
    "memory": _use_up_memory,
    "exit": _exit,
    "loop": _loop,
    "stop": _stop,
    "stuck": _be_stuck,
    "hold": _leave_the_channel_to_another,
}
_BYTES = {
    "garbage": frame(b"\xc1 no message"),
    "oversize": b"\xff\xff\xff\xff" + bytes(100),
    "cut": frame(encode_frame_body(TextDelta(text="never whole")))[:20],
}
