"""A project folder with tools that work in it, called in the way a model's calls are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio

from protocol.content import ToolCall
from workers.tools.arguments import parse_arguments
from workers.tools.file_memory import FileMemory
from workers.tools.table import TOOLS_BY_NAME
from workers.tools.tool import ToolContext, ToolError, ToolOutput

LONGEST_CALL = 30.0
"""Seconds after which a call in a test has failed."""


class Project:
    """``lines`` are the live lines of all calls; ``on_line`` is told of each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lines: list[tuple[str, bool]] = []
        self.on_line: Callable[[str], object] = str
        self.delegated: list[tuple[str, str]] = []
        self.context = ToolContext(
            root=root,
            files=FileMemory(),
            emit_line=self._emit_line,
            wait_for_room=trio.lowlevel.checkpoint,
            delegate=self._delegate,
        )

    async def call(self, name: str, **arguments: object) -> ToolOutput:
        """What the tool answers; raises `ToolError`."""
        tool = TOOLS_BY_NAME[name]
        call = ToolCall(id="call", name=name, arguments=msgspec.json.encode(arguments).decode())
        with trio.fail_after(LONGEST_CALL):
            output: ToolOutput = await tool.run(parse_arguments(tool, call), self.context)
        output.output.encode()  # no lone surrogate comes out of any tool
        return output

    async def text(self, name: str, **arguments: object) -> str:
        """What a call that succeeds answers."""
        output = await self.call(name, **arguments)
        assert output.outcome == "success", output
        return output.output

    async def refusal(self, name: str, **arguments: object) -> str:
        """The sentence that a call is refused with."""
        with pytest.raises(ToolError) as refused:
            await self.call(name, **arguments)
        return str(refused.value)

    def write(self, name: str, content: str | bytes = "") -> Path:
        """A file in the project."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def names(self) -> list[str]:
        """All files and folders, sorted."""
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*"))

    def _emit_line(self, line: str, is_stderr: bool) -> None:
        line.encode()
        self.lines.append((line, is_stderr))
        self.on_line(line)

    async def _delegate(self, agent_name: str, prompt: str) -> ToolOutput:
        self.delegated.append((agent_name, prompt))
        return ToolOutput(output=f"{agent_name} is done")


class HeldPipe:
    """A named pipe that processes hold open: it tells whether any of them is left, zombies not counted.

    A command takes hold of it with ``exec 9> NAME``, and its children inherit it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def is_held(self) -> bool:
        """Whether a process holds it now."""
        try:
            return os.read(self._descriptor, 1) != b""
        except BlockingIOError:
            return True

    async def wait_until_let_go(self, limit: float = 10.0) -> None:
        """Wait until no process holds it any more, ``limit`` seconds at most."""
        with trio.fail_after(limit):
            while self.is_held():
                await trio.lowlevel.wait_readable(self._descriptor)

    def close(self) -> None:
        """Close our end."""
        os.close(self._descriptor)
