"""The thin shell around an agent's process: bytes in and out, its exit, its end.

Four tasks, none of which waits for another: a writer in the reader's loop would deadlock with an agent that floods its
output while we write.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Protocol

import trio
from trio.abc import ReceiveStream

from workers.acp.jsonrpc import LineSplitter, LineTooLong
from workers.acp.redact import TailBuffer
from workers.sandbox.sandbox import GroupOwner, StdioProcess

VOLUNTARY_EXIT = 0.1
"""Seconds that an agent that has answered has to exit by itself; what it leaves in its group is killed at once then."""
TERMINATE_GRACE = 2.0
"""Seconds from the request to end to the kill."""
KILL_PATIENCE = 1.0
"""Seconds in which a killed program that is no process of ours must be gone; after them it is given up."""
STDERR_DRAIN = 0.5
"""Seconds after the end of the process in which its standard error may still come in."""
MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""What we keep for an agent that asks and does not read our answers."""

_CHUNK = 256 * 1024
_CLOSED = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class AgentListener(Protocol):
    """Is told what happens; must not raise."""

    def line_came(self, line: bytes) -> None:
        """The agent wrote a line; its end is cut off."""

    def output_is_unusable(self, reason: str) -> None:
        """What the agent writes from now on is thrown away."""

    def output_ended(self) -> None:
        """The agent's standard output is closed; all its lines were told."""

    def input_lost(self) -> None:
        """A request could not be written."""

    def process_exited(self, exit_code: int) -> None:
        """The process is gone."""


class AgentProcess:
    """One agent's process: `pump` runs it, `end` ends it, whatever state it is in."""

    def __init__(self, process: StdioProcess, listener: AgentListener) -> None:
        self._process = process
        self._listener = listener
        self._unsent: deque[tuple[bytes, bool]] = deque()
        self._unsent_bytes = 0
        self._has_unsent = trio.Event()
        self._writing = trio.CancelScope()
        self._pumping = trio.CancelScope()
        self._discards = False
        self._exited = trio.Event()
        self._stderr_ended = trio.Event()
        self.stderr = TailBuffer()

    def send(self, line: bytes, *, is_request: bool) -> None:
        """Write ``line`` after all that was given before; returns at once."""
        if self._unsent_bytes > MAX_UNSENT_BYTES and not is_request:
            self._listener.output_is_unusable("the agent asks but does not read the answers")
            return
        self._unsent.append((line, is_request))
        self._unsent_bytes += len(line)
        self._has_unsent.set()

    async def pump(self) -> None:
        """Carry bytes both ways until `end` is done."""
        with self._pumping:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_output)
                nursery.start_soon(self._read_stderr)
                nursery.start_soon(self._write)
                nursery.start_soon(self._wait)

    async def end(self, *, is_done: bool) -> None:
        """Close the agent's input, end it and all of its group, and stop pumping; not cancellable, takes seconds.

        ``is_done`` says that it may be about to exit by itself. Output is read and thrown away meanwhile, so that an
        agent that is writing can end.
        """
        with trio.CancelScope(shield=True):
            self._discards = True
            self._writing.cancel()
            await _close(self._process.stdin)
            if is_done:
                with trio.move_on_after(VOLUNTARY_EXIT):
                    await self._exited.wait()
            if isinstance(self._process, GroupOwner):
                await self._process.end_group(TERMINATE_GRACE)
            else:
                await self._end_foreign(self._process)
            with trio.move_on_after(STDERR_DRAIN):
                await self._stderr_ended.wait()
            self._pumping.cancel()
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    await _close(stream)
            if isinstance(self._process, GroupOwner):
                self._process.release()

    async def _end_foreign(self, process: StdioProcess) -> None:
        """End a program of which we know no group; it may do as it likes."""
        with suppress(OSError):
            process.terminate()
        with trio.move_on_after(TERMINATE_GRACE):
            await self._exited.wait()
        with suppress(OSError):
            process.kill()
        with trio.move_on_after(KILL_PATIENCE):
            await self._exited.wait()

    # -- the four tasks -----------------------------------------------------------------------------------------------

    async def _read_output(self) -> None:
        splitter = LineSplitter()
        try:
            while data := await self._process.stdout.receive_some(_CHUNK):
                if not self._discards:
                    self._tell_lines(splitter, bytes(data))
        except _CLOSED:
            pass  # as good as its end
        if not self._discards and (rest := splitter.finish()) is not None:
            self._listener.line_came(rest)
        self._listener.output_ended()

    def _tell_lines(self, splitter: LineSplitter, data: bytes) -> None:
        try:
            for line in splitter.feed(data):
                self._listener.line_came(line)
        except LineTooLong as error:
            self._discards = True
            self._listener.output_is_unusable(str(error))

    async def _read_stderr(self) -> None:
        stream: ReceiveStream | None = self._process.stderr
        try:
            while stream is not None and (data := await stream.receive_some(_CHUNK)):
                self.stderr.add(bytes(data))
        except _CLOSED:
            pass
        self._stderr_ended.set()

    async def _write(self) -> None:
        with self._writing:
            while True:
                while not self._unsent:
                    self._has_unsent = trio.Event()
                    await self._has_unsent.wait()
                line, _ = self._unsent[0]
                try:
                    await self._process.stdin.send_all(line)
                except _CLOSED:
                    break
                self._unsent.popleft()
                self._unsent_bytes -= len(line)
            await self._tell_lost_requests()

    async def _tell_lost_requests(self) -> None:
        """The input is closed: answers may get lost, the agent's own exit will say more; requests may not."""
        while True:
            if any(is_request for _, is_request in self._unsent):
                self._listener.input_lost()
            self._unsent.clear()
            self._has_unsent = trio.Event()
            await self._has_unsent.wait()

    async def _wait(self) -> None:
        exit_code = await self._process.wait()
        self._exited.set()
        self._listener.process_exited(exit_code)


async def _close(stream: trio.abc.AsyncResource) -> None:
    """Close without waiting, also where the other end is gone already."""
    with suppress(*_CLOSED):
        await trio.aclose_forcefully(stream)
