"""Workers that misbehave on the level of frames, without an agent: one function for each way.

They run as real processes, started by a real spawner whose entry is `run`; the name of the function stands in for the
kind of worker. Only the standard library, msgspec and `protocol` are imported, so that they start quickly.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import time

import msgspec

from protocol.codec import encode_frame_body
from protocol.frames import FRAMES_VERSION, Finished, Heartbeat, Ready
from protocol.framing import frame
from protocol.records import TextDelta

ENTRY = "tests.stubs.raw_worker:run"
FLOOD = 50_000
"""Frames of a flood."""


def run(name: str, channel_fd: int) -> None:
    """Misbehave as the function ``name`` says."""
    with socket.socket(fileno=channel_fd) as channel:
        globals()[name](channel)


def say(channel: socket.socket, *messages: msgspec.Struct) -> None:
    """Send whole frames."""
    channel.sendall(b"".join(frame(encode_frame_body(message)) for message in messages))


def greet(channel: socket.socket) -> None:
    """Say what a worker says first."""
    say(channel, Ready(version=FRAMES_VERSION, pid=os.getpid()))


def live_on() -> None:
    """Do nothing until a signal ends the process."""
    while True:
        signal.pause()


def finishes(channel: socket.socket) -> None:
    """Well behaved."""
    greet(channel)
    say(channel, TextDelta(text="all"), Finished(outcome="complete", response="all"))


def finishes_and_lives_on(channel: socket.socket) -> None:
    """Says that it is done and does not go."""
    finishes(channel)
    live_on()


def says_more_after_the_end(channel: socket.socket) -> None:
    """Sends a record behind its last frame."""
    greet(channel)
    say(channel, Finished(outcome="complete", response="all"), TextDelta(text="more"))


def is_killed(channel: socket.socket) -> None:
    """SIGKILL in the middle of a reply."""
    greet(channel)
    say(channel, TextDelta(text="half"))
    os.kill(os.getpid(), signal.SIGKILL)


def reads_where_nothing_is(channel: socket.socket) -> None:
    """A real SIGSEGV, with the report that a worker writes of it."""
    faulthandler.enable()
    greet(channel)
    ctypes.string_at(0)


def is_killed_before_it_greets(channel: socket.socket) -> None:
    """SIGKILL before the first frame."""
    os.kill(os.getpid(), signal.SIGKILL)


def exits_early(channel: socket.socket) -> None:
    """An exit code of 0 does not make it a success."""
    greet(channel)
    sys.exit(0)


def fails(channel: socket.socket) -> None:
    """An error of its own."""
    greet(channel)
    raise RuntimeError("the reason why")


def ends_the_channel_and_lives_on(channel: socket.socket) -> None:
    """Closes its channel, but stays."""
    greet(channel)
    channel.close()
    live_on()


def sends_garbage(channel: socket.socket) -> None:
    """A whole frame that is no message, and one behind it that would be."""
    greet(channel)
    channel.sendall(frame(b"\xc1 no message"))
    say(channel, TextDelta(text="after"))
    live_on()


def sends_a_command(channel: socket.socket) -> None:
    """A message that travels downward only."""
    greet(channel)
    channel.sendall(frame(msgspec.msgpack.encode({"type": "cancel", "reason": "no"})))
    live_on()


def announces_too_much(channel: socket.socket) -> None:
    """A length prefix of 4 GiB."""
    greet(channel)
    channel.sendall(b"\xff\xff\xff\xff" + bytes(1000))
    live_on()


def dies_inside_a_frame(channel: socket.socket) -> None:
    """Half a frame, then SIGKILL."""
    greet(channel)
    whole = frame(encode_frame_body(TextDelta(text="x" * 1000)))
    channel.sendall(frame(encode_frame_body(TextDelta(text="whole"))) + whole[:500])
    os.kill(os.getpid(), signal.SIGKILL)


def stops_inside_a_frame(channel: socket.socket) -> None:
    """Half a frame, then the end of the channel, but not of the process."""
    greet(channel)
    channel.sendall(frame(encode_frame_body(TextDelta(text="x" * 1000)))[:500])
    channel.close()
    live_on()


def leaves_the_channel_to_another(channel: socket.socket) -> None:
    """Dies, while a process that it started, in a session of its own, holds the channel open."""
    greet(channel)
    subprocess.Popen(["sleep", "600"], pass_fds=(channel.fileno(),), start_new_session=True)
    say(channel, TextDelta(text="last words"))
    os.kill(os.getpid(), signal.SIGKILL)


def is_stopped(channel: socket.socket) -> None:
    """SIGSTOP."""
    greet(channel)
    os.kill(os.getpid(), signal.SIGSTOP)


def never_greets(channel: socket.socket) -> None:
    """Lives and says nothing."""
    live_on()


def ignores_sigterm(channel: socket.socket) -> None:
    """Says nothing and can't be asked to go."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    greet(channel)
    while True:
        pass


def is_deaf(channel: socket.socket) -> None:
    """Gives signs of life for ever, and reads nothing."""
    greet(channel)
    while True:
        say(channel, Heartbeat(memory_bytes=1, taken=0))
        time.sleep(0.02)  # its pulse: many in the time after which silence counts


def greets_as_another_version(channel: socket.socket) -> None:
    """Of a version that does not exist."""
    say(channel, Ready(version=FRAMES_VERSION + 1, pid=os.getpid()))
    live_on()


def does_not_greet_first(channel: socket.socket) -> None:
    """Begins in the middle."""
    say(channel, TextDelta(text="hello"))
    live_on()


def floods(channel: socket.socket) -> None:
    """Sends as fast as it can, then finishes."""
    greet(channel)
    piece = frame(encode_frame_body(TextDelta(text="f" * 100))) * 100
    for _ in range(FLOOD // 100):
        channel.sendall(piece)
    say(channel, Finished(outcome="complete"))
