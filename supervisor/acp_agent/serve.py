"""Serves one client from its first message to the end of its stream."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path

import trio

from protocol.jsonrpc import MAX_LINE_BYTES, PARSE_ERROR, ErrorObject, LineSplitter, Malformed, read_message
from supervisor import exit_codes
from supervisor.acp_agent.agent import AcpAgent
from supervisor.acp_agent.connection import Connection
from supervisor.acp_agent.sessions import Sessions, SettingsReader
from supervisor.acp_agent.stdin_reader import StdinReader
from supervisor.sinks.stdout_writer import StdoutWriter
from supervisor.spawn import Spawner

LAST_WRITES_SECONDS = 5.0
"""What the client has to read the rest, once all is over."""


async def serve(streams: tuple[int, int], spawner: Spawner, read_settings: SettingsReader, state_folder: Path) -> int:
    """Serve the client at the descriptors ``streams``, input and output; return the exit code.

    The end of the input, a signal or a closed output end it: turns are cancelled and answered, sessions stored.
    """
    output = StdoutWriter(streams[1])
    connection = Connection(output)
    sessions = Sessions(read_settings, state_folder, connection, spawner)
    ways_out = _WaysOut(output)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spawner.run)
        with _signal_receiver() as signals:
            async with trio.open_nursery() as tasks:
                agent = AcpAgent(connection, sessions, tasks)
                nursery.start_soon(ways_out.obey_signals, signals, agent)
                nursery.start_soon(ways_out.watch_output)
                with ways_out.listening:
                    await _listen(StdinReader(streams[0]), agent)
                output.release()  # a client that reads nothing must not keep anything from ending
                agent.cancel_all()
            await sessions.close_all()
            with trio.move_on_after(LAST_WRITES_SECONDS):
                await output.finish()
        nursery.cancel_scope.cancel()
    return ways_out.exit_code


async def _listen(reader: StdinReader, agent: AcpAgent) -> None:
    """Take messages until the input ends. A line that the client did not end is taken too."""
    splitter = LineSplitter()
    while data := await reader.receive():
        for line in splitter.feed(data):
            _take(line, agent)
    _take(splitter.finish(), agent)


def _take(line: bytes | None, agent: AcpAgent) -> None:
    if line is None:
        error = ErrorObject(code=PARSE_ERROR, message=f"a line of more than {MAX_LINE_BYTES} bytes was dropped")
        agent.take(Malformed(id=None, error=error))
    elif line.strip():
        agent.take(read_message(line))


class _WaysOut:
    """What ends the listening beside the end of the input. ``exit_code`` says what did."""

    def __init__(self, output: StdoutWriter) -> None:
        self.listening = trio.CancelScope()
        self.exit_code = exit_codes.COMPLETE
        self._output = output

    async def obey_signals(self, signals: AsyncIterator[int], agent: AcpAgent) -> None:
        """The first signal ends the listening; a second one kills all workers."""
        async for number in signals:
            if self._is_ending:
                agent.kill_all()
            self._end(exit_codes.of_signal(number))

    async def watch_output(self) -> None:
        """A client that has closed its end is gone."""
        await self._output.broken.wait()
        self._end(exit_codes.STDOUT_CLOSED)

    @property
    def _is_ending(self) -> bool:
        return self.exit_code != exit_codes.COMPLETE

    def _end(self, exit_code: int) -> None:
        if not self._is_ending:
            self.exit_code = exit_code
        self.listening.cancel()


@contextmanager
def _signal_receiver() -> Generator[AsyncIterator[int], None, None]:
    """The signals that end the process. A SIGHUP that is ignored (nohup) stays ignored."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    with trio.open_signal_receiver(*numbers) as signals:
        yield signals
