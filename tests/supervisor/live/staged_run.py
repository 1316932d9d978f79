"""A run that is told what to show, and keeps what it was asked for; its server and sockets are real."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from protocol.usage import Usage
from supervisor.core.tagger import Tagger
from supervisor.hub import Hub
from supervisor.live.folder import socket_of
from supervisor.live.messages import Command, Reply, line_of, reply_decoder
from supervisor.live.server import LiveServer
from supervisor.live.snapshot import AgentSnapshot, AgentState, CurrentTool, RunSnapshot

SESSION = "20250102-030405-abcdef"
BOUND = 20.0


def agent(
    agent_id: str,
    parent: str | None = "main",
    *,
    name: str = "task",
    state: AgentState = "running",
    tool: CurrentTool | None = None,
    outcome: str | None = None,
) -> AgentSnapshot:
    """An agent; the call that started it is ``to-ID``."""
    return AgentSnapshot(
        agent_id=agent_id,
        parent_agent_id=parent,
        parent_call_id=None if parent is None else f"to-{agent_id}",
        agent_name=name,
        state=state,
        pid=None if state == "ended" else 1000,
        tool=tool,
        age_ms=61_000,
        usage=Usage(prompt_tokens=1200, completion_tokens=34, api_calls=1),
        memory_bytes=None if state == "ended" else 34 * 1024 * 1024,
        restarts=0,
        outcome=outcome,
    )


MAIN = agent("main", None, name="main", state="waiting")


class StagedRun:
    """A `LiveRun` of the given agents. ``on_cancel`` is called with the id of an agent that is cancelled."""

    def __init__(self, *agents: AgentSnapshot, on_cancel: Callable[[str], None] = lambda _agent_id: None) -> None:
        self.agents = agents
        self.cancelled: list[str] = []
        self.run_cancelled = trio.Event()
        self._on_cancel = on_cancel

    def snapshot(self) -> RunSnapshot:
        """What it was given."""
        return RunSnapshot(
            session_id=SESSION,
            pid=os.getpid(),
            project_root="/project",
            model="stub",
            started="2025-01-02T03:04:05Z",
            agents=self.agents,
        )

    def cancel_agent(self, agent_id: str, reason: str) -> bool:
        """Keep it."""
        assert reason
        self.cancelled.append(agent_id)
        self._on_cancel(agent_id)
        return True

    def cancel_run(self, reason: str) -> None:
        """Keep it."""
        assert reason
        self.run_cancelled.set()


def make_hub(run: StagedRun) -> Hub:
    """A hub without sinks that knows the run's agents."""
    hub = Hub(Tagger(SESSION), [])
    for each in run.agents:
        hub.tagger.know_agent(each.agent_id, each.parent_call_id, each.agent_name)
    return hub


@asynccontextmanager
async def serving(
    run: StagedRun, hub: Hub, folder: Path, *, process_goes_on: bool = False
) -> AsyncGenerator[Path, None]:
    """The block has `BOUND` seconds with a server that listens at the path."""
    async with trio.open_nursery() as nursery:
        assert await nursery.start(LiveServer(run, hub, folder, process_goes_on=process_goes_on).serve) is None
        with trio.fail_after(BOUND):
            yield socket_of(folder, SESSION, os.getpid()).path
        nursery.cancel_scope.cancel()


class Shell:
    """A second shell: sends commands, reads lines."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._pending = bytearray()

    async def ask(self, command: Command) -> Reply:
        """Send the command and read its reply."""
        await self.stream.send_all(line_of(command))
        return await self.reply()

    async def reply(self) -> Reply:
        """The next line, as a reply."""
        return reply_decoder.decode(await self.line())

    async def line(self) -> bytes:
        """The next line with its end; empty at the end of the stream, a piece of a line if that ends there."""
        while (end := self._pending.find(b"\n")) < 0:
            data = await self.stream.receive_some(65_536)
            if not data:
                end = len(self._pending) - 1
                break
            self._pending += data
        line = bytes(self._pending[: end + 1])
        del self._pending[: end + 1]
        return line

    async def rest(self) -> list[bytes]:
        """All lines to the end of the stream."""
        lines: list[bytes] = []
        while line := await self.line():
            lines.append(line)
        return lines


@asynccontextmanager
async def shell_at(path: Path) -> AsyncGenerator[Shell, None]:
    """A connection to the server."""
    async with await trio.open_unix_socket(str(path)) as stream:
        yield Shell(stream)
