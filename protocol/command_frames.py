"""The messages between the supervisor and a worker of the kind ``command``, which runs one command and ends.

``RunCommand`` down; ``CommandEnded`` up and the end of the stream. The command and all it started end with the worker,
and the worker with its supervisor.
"""

from __future__ import annotations

import msgspec

MOST_STDOUT_BYTES = 1024 * 1024
MOST_STDERR_BYTES = 16 * 1024
"""Of each stream the end is kept, so much of it at most."""

COMMAND_KIND = "command"


class RunCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Run ``argv`` in the folder ``cwd`` with exactly this ``environment``, without standard input.

    It is killed after ``timeout`` seconds, None: never.
    """

    argv: tuple[str, ...]
    cwd: str
    environment: dict[str, str]
    timeout: float | None = None


class CommandEnded(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended. ``exit_code`` is the negative number of a signal that ended it, None if it was killed at its time.

    ``errno`` says why it could not be started; None: it was.
    """

    exit_code: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    errno: int | None = None


run_decoder: msgspec.msgpack.Decoder[RunCommand] = msgspec.msgpack.Decoder(RunCommand)
ended_decoder: msgspec.msgpack.Decoder[CommandEnded] = msgspec.msgpack.Decoder(CommandEnded)
