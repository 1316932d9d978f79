"""Programs whose output is read only while there is room for what becomes of it.

What an agent says is passed on at once, so it waits in its own pipe while the supervisor is behind; otherwise an agent
that floods would fill this worker's memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from trio.abc import ReceiveStream

from workers.sandbox.local_sandbox import LocalProcess, LocalSandbox


class HeldSandbox:
    """``sandbox``, where each read of a program's output waits for ``room`` first."""

    def __init__(self, sandbox: LocalSandbox, room: Callable[[], Awaitable[None]]) -> None:
        self._sandbox = sandbox
        self._room = room

    async def open_stdio(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> LocalProcess:
        """As `LocalSandbox.open_stdio`."""
        process = await self._sandbox.open_stdio(argv, cwd=cwd, env=env)
        process.stdout = _HeldStream(process.stdout, self._room)
        return process


class _HeldStream(ReceiveStream):
    def __init__(self, stream: ReceiveStream, room: Callable[[], Awaitable[None]]) -> None:
        self._stream = stream
        self._room = room

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        await self._room()
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()
