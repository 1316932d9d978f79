"""A second shell's end of the socket: plain and blocking, so that a command opens as fast as Python does."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from supervisor.live.errors import Ambiguous, ConnectionLost, NotFound
from supervisor.live.folder import LiveSocket
from supervisor.live.messages import TAIL_END_START, Command, CommandError, Reply, TailEnd, line_of, reply_decoder
from supervisor.live.unix_socket import connect, is_same_user

ANSWER_SECONDS = 5.0
"""A run answers within milliseconds; one that has been stopped, or swapped out, is not waited for."""


class LiveConnection:
    """A connection to a run; a context manager that closes it."""

    def __init__(self, live: LiveSocket) -> None:
        """Connect. Raises `NotFound` if the run ended in the meantime, else `ConnectionLost`."""
        self._live = live
        try:
            self._socket = connect(live.path, ANSWER_SECONDS)
        except (FileNotFoundError, ConnectionRefusedError):
            raise NotFound(f"the run {live.session_id} has just ended") from None
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None
        if not is_same_user(self._socket):
            self._socket.close()
            raise self._lost("it is another user's")
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> LiveConnection:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()
        self._socket.close()

    def send(self, command: Command) -> None:
        """Send a command; raises `ConnectionLost`."""
        try:
            self._socket.sendall(line_of(command))
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None

    def reply(self, seconds: float = ANSWER_SECONDS) -> Reply:
        """The next reply. Raises `NotFound` or `Ambiguous` for an agent that is none, else `ConnectionLost`."""
        self._socket.settimeout(seconds)
        line = self._read_line()
        try:
            reply = reply_decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise self._lost("it says what this version of corral does not understand") from None
        if isinstance(reply, CommandError):
            if reply.code == "unknown_agent":
                raise NotFound(reply.message)
            if reply.code == "ambiguous_agent":
                raise Ambiguous(reply.message)
            raise self._lost(reply.message)
        return reply

    def wire_lines(self) -> Iterator[bytes]:
        """The lines that follow a `Tailing`, as they were sent, however long they take.

        Raises `ConnectionLost` if the run goes away in the middle, or does not wait for us any more.
        """
        self._socket.settimeout(None)
        while not (line := self._read_line()).startswith(TAIL_END_START):
            yield line
        end = reply_decoder.decode(line)
        if isinstance(end, TailEnd) and end.reason == "too_slow":
            raise ConnectionLost("the lines were not read fast enough: the run goes on, and what it says now is missed")

    def wait_for_close(self, seconds: float) -> bool:
        """Whether the run closes the connection, which it does with its end, within ``seconds``."""
        deadline = time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left)
                if not self._socket.recv(65536):
                    return True
        except TimeoutError:
            return False
        except OSError:
            return True
        return False

    def _read_line(self) -> bytes:
        try:
            line = self._file.readline()
        except TimeoutError:
            raise self._lost("it does not answer") from None
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None
        if not line.endswith(b"\n"):
            raise self._lost("it went away")
        return line

    def _lost(self, why: str) -> ConnectionLost:
        return ConnectionLost(f"no connection to run {self._live.session_id} (pid {self._live.pid}): {why}")
