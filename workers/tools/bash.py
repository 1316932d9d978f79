"""Bash: run a command in the project."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Annotated

import trio
from msgspec import Meta
from trio.lowlevel import FdStream

from workers.sandbox.command_output import CommandOutput
from workers.sandbox.environment import command_environment
from workers.sandbox.paths import ProjectGone
from workers.sandbox.process import Child, open_process
from workers.tools.tool import Tool, ToolArguments, ToolContext, ToolError, ToolOutput

DEFAULT_TIMEOUT = 120.0
LONGEST_TIMEOUT = 600.0
TERM_GRACE = 0.5
DRAIN_TIME = 0.2
"""All in seconds. ``DRAIN_TIME`` is how long output is awaited after the command itself has ended."""

_CHUNK = 65_536
_DISCARDED_AT_MOST = 10_000_000


class BashArguments(ToolArguments, frozen=True, kw_only=True):
    """What the model gives."""

    command: str
    timeout: Annotated[
        Annotated[float, Meta(gt=0, extra_json_schema={"maximum": int(LONGEST_TIMEOUT)})] | None,
        Meta(description="Seconds; default 120."),
    ] = None


async def run(arguments: BashArguments, context: ToolContext) -> ToolOutput:
    """Run the command to its end, its timeout or its cancellation; the last two kill its whole process group.

    The call ends with the command, even where a background process holds on to its output.
    """
    if not arguments.command.strip() or "\0" in arguments.command:
        raise ToolError("`command` must be a shell command, not empty and without NUL characters.")
    timeout = min(arguments.timeout or DEFAULT_TIMEOUT, LONGEST_TIMEOUT)
    output = CommandOutput(context.emit_line)
    argv = [_shell(), "-c", arguments.command]
    environment = {**command_environment(os.environ, context.variables), **context.environment}
    try:
        async with open_process(argv, cwd=context.root, env=environment, grace=TERM_GRACE) as child:
            timed_out = await _run_to_end(child, timeout, output, context)
            exit_code = await child.wait()
            held_open = _keep_pipes_open(child)
    except OSError as error:
        raise _start_error(error, context.root) from None
    result = _result(output.text(), exit_code, timeout if timed_out else None, held_open)
    if not context.root.is_dir():
        return ToolOutput(output=f"{result.output}\n{ProjectGone(context.root)}", outcome="error")
    return result


def _shell() -> str:
    return "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"


async def _run_to_end(child: Child, timeout: float, output: CommandOutput, context: ToolContext) -> bool:
    """Wait for the command while its output is read; True if it had to be killed at its timeout."""
    async with trio.open_nursery() as nursery:
        readers = _Readers(child, output, context)
        for stream, is_stderr in readers.streams:
            nursery.start_soon(readers.read, stream, is_stderr)
        with trio.move_on_after(timeout) as limit:
            await child.wait()
        if limit.cancelled_caught:
            await child.end(TERM_GRACE)
        with trio.move_on_after(DRAIN_TIME):
            await readers.done.wait()
        nursery.cancel_scope.cancel()
    readers.read_what_is_there()
    output.finish()
    return limit.cancelled_caught


class _Readers:
    """Reads stdout and stderr at once until both have ended."""

    def __init__(self, child: Child, output: CommandOutput, context: ToolContext) -> None:
        assert child.stdout is not None and child.stderr is not None
        self.streams: list[tuple[FdStream, bool]] = [(child.stdout, False), (child.stderr, True)]
        self.done = trio.Event()
        self._output = output
        self._wait_for_room = context.wait_for_room

    async def read(self, stream: FdStream, is_stderr: bool) -> None:
        while data := await stream.receive_some(_CHUNK):
            if self._output.feed(data, is_stderr):
                await self._wait_for_room()
        stream.close()
        self.streams.remove((stream, is_stderr))
        if not self.streams:
            self.done.set()

    def read_what_is_there(self) -> None:
        """A reader that waited for room when the command ended has left up to a pipe's worth of its output unread."""
        for stream, is_stderr in self.streams:
            for _ in range(16):
                try:
                    data = os.read(stream.fileno(), _CHUNK)
                except BlockingIOError:
                    break
                if not data:
                    stream.close()
                    break
                self._output.feed(data, is_stderr)


def _keep_pipes_open(child: Child) -> bool:
    """Go on reading for background processes, which would die of SIGPIPE otherwise; True if there are any."""
    held_open = [stream for stream in child.take_output() if stream.fileno() != -1]
    for stream in held_open:
        trio.lowlevel.spawn_system_task(_discard, stream)
    return bool(held_open)


async def _discard(stream: FdStream) -> None:
    """Read and drop what comes, up to a bound: a background process that writes without end shall notice."""
    left = _DISCARDED_AT_MOST
    async with stream:
        while left > 0:
            try:
                data = await stream.receive_some(_CHUNK)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if not data:
                return
            left -= len(data)


def _start_error(error: OSError, root: Path) -> ToolError:
    if error.errno == errno.E2BIG:
        return ToolError("The command is too long for one call; write a script with Write and run that.")
    if not root.is_dir():
        return ProjectGone(root)
    return ToolError(f"The command could not be started: {error.strerror or error}.")


def _result(text: str, exit_code: int, timed_out_after: float | None, held_open: bool) -> ToolOutput:
    parts = [text] if text else []
    if held_open:
        parts.append("[A process goes on in the background; what it writes from now on is not shown.]")
    if timed_out_after is not None:
        parts.append(
            f"Timed out after {timed_out_after:g} s: the command was killed, with all it had started in its group."
            f" Give a longer `timeout` ({LONGEST_TIMEOUT:g} s at most), or run it in the background."
        )
    elif exit_code < 0:
        parts.append(f"killed by signal {-exit_code} ({_signal_name(-exit_code)})")
    elif exit_code > 0:
        parts.append(f"exit code {exit_code}")
    failed = timed_out_after is not None or exit_code != 0
    return ToolOutput(output="\n".join(parts) or "(no output)", outcome="error" if failed else "success")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"


TOOL = Tool(
    name="Bash",
    description=(
        "Run a bash command in the project's root, each in a new shell, without terminal and input. "
        "Start what should go on with `&`, its output to a file. For files prefer the other tools."
    ),
    effect="execute",
    arguments=BashArguments,
    run=run,
)
