"""The socket on which a run answers a second shell.

Live control looks on: whatever comes in on the socket, or doesn't, the run goes on as if nobody had connected, but for
a command to end an agent or itself.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import trio

from protocol.records import SubAgentEnd
from supervisor.errors import SupervisorError
from supervisor.hub import Hub
from supervisor.live import unix_socket
from supervisor.live.choice import choose_agent
from supervisor.live.errors import Ambiguous, NotFound
from supervisor.live.folder import LiveSocket, live_folder, live_sockets, make_folder, socket_of
from supervisor.live.messages import (
    MAX_COMMAND_BYTES,
    Command,
    CommandError,
    Kill,
    Killed,
    Ps,
    Reply,
    Shown,
    Tail,
    Tailing,
    command_decoder,
    line_of,
)
from supervisor.live.snapshot import AgentSnapshot, LiveRun, RunSnapshot
from supervisor.live.tail_sink import TailSink
from supervisor.sinks.sink import Event

MAX_CONNECTIONS = 32
COMMAND_SECONDS = 10.0
"""How long a connection may be without a command, and a reply without being read."""
PARTING_SECONDS = 1.0
"""How long a peer that is turned away has to read why."""
KILL_SECONDS = 10.0
"""How long the answer to a `Kill` waits for the end of the agent."""
REASON = "ended by corral kill"


class LiveServer:
    """Answers the commands of `supervisor.live.messages` for one run; ``folder`` is by default the environment's.

    ``process_goes_on`` says that the process is there for more than this run, and does not end with it.
    """

    def __init__(self, run: LiveRun, hub: Hub, folder: Path | None = None, *, process_goes_on: bool = False) -> None:
        self._run = run
        self._hub = hub
        self._folder = folder
        self._process_goes_on = process_goes_on
        self._connections = 0

    async def serve(self, *, task_status: trio.TaskStatus[str | None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and answer until cancelled; then the socket is removed.

        Started once somebody can connect. Where the run can't listen it goes on without: then the value of the start is
        a sentence that says why, and this returns.
        """
        try:
            live, listener = self._listen()
        except (OSError, SupervisorError) as error:
            task_status.started(f"corral ps, tail and kill can't reach this run: {error}")
            return
        try:
            async with trio.open_nursery() as nursery:
                task_status.started(None)
                await self._accept(listener, nursery)
        finally:
            listener.close()
            with suppress(OSError):
                live.path.unlink()

    def _listen(self) -> tuple[LiveSocket, trio.socket.SocketType]:
        folder = live_folder(os.environ) if self._folder is None else self._folder
        make_folder(folder)
        live_sockets(folder)  # those of runs that are gone go
        run = self._run.snapshot()
        live = socket_of(folder, run.session_id, run.pid)
        return live, trio.socket.from_stdlib_socket(unix_socket.listen(live.path))

    async def _accept(self, listener: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        while True:
            try:
                connection, _address = await listener.accept()
            except OSError as error:
                if error.errno not in _PASSING:
                    raise
                await trio.sleep(0.1)
                continue
            nursery.start_soon(self._serve_connection, trio.SocketStream(connection))

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        self._connections += 1
        try:
            async with stream:
                refusal = self._refusal(stream)
                if refusal is not None:
                    await _send_last(stream, refusal)
                    return
                async for line in _lines(stream):
                    if not await self._answer(line, stream):
                        return
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass  # it has gone, or doesn't read its answer: nobody is left to tell
        finally:
            self._connections -= 1

    def _refusal(self, stream: trio.SocketStream) -> CommandError | None:
        if not unix_socket.is_same_user(stream.socket):
            return CommandError(code="forbidden", message="the run is another user's")
        if self._connections > MAX_CONNECTIONS:
            return CommandError(code="busy", message=f"the run has {MAX_CONNECTIONS} connections already")
        return None

    async def _answer(self, line: bytes | None, stream: trio.SocketStream) -> bool:
        """Answer one command; False if it was the last one of its connection."""
        if line is None:
            message = f"a command has at most {MAX_COMMAND_BYTES} bytes"
            await _send_last(stream, CommandError(code="too_large", message=message))
            return False
        try:
            command = command_decoder.decode(line)
            run = self._run.snapshot()
            asked = None if isinstance(command, Ps) else command.agent
            agent = None if asked is None else choose_agent(asked, run)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            await _send(stream, CommandError(code="bad_command", message="that is no command that this run knows"))
        except NotFound as error:
            await _send(stream, CommandError(code="unknown_agent", message=str(error)))
        except Ambiguous as error:
            await _send(stream, CommandError(code="ambiguous_agent", message=str(error)))
        else:
            return await self._obey(command, run, agent, stream)
        return True

    async def _obey(
        self, command: Command, run: RunSnapshot, agent: AgentSnapshot | None, stream: trio.SocketStream
    ) -> bool:
        match command:
            case Ps():
                await _send(stream, Shown(run=run))
            case Kill():
                killed = await self._kill(run, agent)
                await _send(stream, killed)
                if killed.agent_id is None:
                    await _until_closed(stream)  # the end of the run closes it, unless the peer does before
                    return False
            case Tail():
                await self._tail(run, agent, stream)
                return False
        return True

    # -- kill ---------------------------------------------------------------------------------------------------------

    async def _kill(self, run: RunSnapshot, agent: AgentSnapshot | None) -> Killed:
        if agent is not None and not agent.is_live:
            return Killed(agent_id=agent.agent_id, already_ended=True, outcome=agent.outcome)
        # The run is no longer than its main agent.
        if agent is None or agent.parent_agent_id is None:
            self._run.cancel_run(REASON)
            live = tuple(each.agent_id for each in run.agents if each.is_live)
            return Killed(agent_id=None, below=live, process_goes_on=self._process_goes_on)
        end = _EndOfAgent(agent.agent_id)
        self._hub.add(end, agent.agent_id)
        try:
            self._run.cancel_agent(agent.agent_id, REASON)
            with trio.move_on_after(KILL_SECONDS):
                await end.came.wait()
        finally:
            self._hub.remove(end)
        return Killed(agent_id=agent.agent_id, below=_live_below(agent.agent_id, run), outcome=end.outcome)

    # -- tail ---------------------------------------------------------------------------------------------------------

    async def _tail(self, run: RunSnapshot, agent: AgentSnapshot | None, stream: trio.SocketStream) -> None:
        """Send lines until there are no more, the reader has gone, or it is too slow.

        Between the snapshot and the place in the stream from which the reader gets the lines nothing is awaited: what
        the snapshot does not show yet, the lines do.
        """
        if agent is not None and not agent.is_live:
            message = f"agent {agent.agent_id} has ended ({agent.outcome})"
            await _send(stream, CommandError(code="unknown_agent", message=message))
            return
        only = None if agent is None else agent.agent_id
        sink = TailSink(stream, Tailing(run=run, agent_id=only))
        self._hub.add(sink, only)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_once_closed, stream, nursery.cancel_scope)
                await sink.run_writer()
                nursery.cancel_scope.cancel()
        finally:
            self._hub.remove(sink)


class _EndOfAgent:
    """A sink that waits for the end of an agent."""

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self.came = trio.Event()
        self.outcome: str | None = None

    def take(self, event: Event) -> None:
        """Look whether this is it."""
        if isinstance(event.record, SubAgentEnd) and event.record.agent_id == self._agent_id:
            self.outcome = event.record.outcome
            self.came.set()

    async def room(self) -> None:
        """Nothing is kept."""

    def release(self) -> None:
        """Nothing was pushed back."""

    async def finish(self) -> None:
        """Nothing is kept."""


_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED})
"""What keeps one connection from being taken, and not all to come. Source: accept(2)."""


def _live_below(agent_id: str, run: RunSnapshot) -> tuple[str, ...]:
    """The live descendants; in a snapshot parents come before their children."""
    below = {agent_id}
    for agent in run.agents:
        if agent.parent_agent_id in below:
            below.add(agent.agent_id)
    return tuple(agent.agent_id for agent in run.agents if agent.agent_id in below - {agent_id} and agent.is_live)


async def _lines(stream: trio.SocketStream) -> AsyncIterator[bytes | None]:
    """Lines without their ends; None for one that is too long, after which nothing can be read any more."""
    pending = bytearray()
    while True:
        end = pending.find(b"\n")
        if end >= 0:
            yield bytes(pending[:end])
            del pending[: end + 1]
        elif len(pending) > MAX_COMMAND_BYTES:
            yield None
        else:
            with trio.fail_after(COMMAND_SECONDS):
                data = await stream.receive_some(MAX_COMMAND_BYTES)
            if not data:
                return
            pending += data


async def _until_closed(stream: trio.SocketStream) -> None:
    """Return once the peer has closed its end; what it says until then is not looked at."""
    with suppress(trio.BrokenResourceError):
        while await stream.receive_some(MAX_COMMAND_BYTES):
            pass


async def _cancel_once_closed(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    await _until_closed(stream)
    scope.cancel()


async def _send(stream: trio.SocketStream, reply: Reply) -> None:
    """Raises TooSlowError for a peer that does not read."""
    with trio.fail_after(COMMAND_SECONDS):
        await stream.send_all(line_of(reply))


async def _send_last(stream: trio.SocketStream, reply: Reply) -> None:
    """Send what nothing follows upon, and let it arrive: to close before all is read would take it back."""
    await _send(stream, reply)
    with trio.move_on_after(PARTING_SECONDS):
        await stream.send_eof()
        await _until_closed(stream)
