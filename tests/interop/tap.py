"""A program that stands between a client and an agent and keeps what they say: ``tap.py RECORD COMMAND...``.

Each line of the record is a line of theirs behind ``>`` where the client said it, behind ``<`` where the agent did.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any, TypeAlias

Json: TypeAlias = dict[str, Any]


def conversation(record: Path) -> tuple[list[Json], list[Json]]:
    """What the client and what the agent said, each in order."""
    lines = record.read_bytes().splitlines()
    sides = [[json.loads(line[1:]) for line in lines if line.startswith(mark)] for mark in (b">", b"<")]
    return sides[0], sides[1]


def main(record: str, *command: str) -> int:
    """Relay until the agent is gone; returns its exit code."""
    with (
        Path(record).open("ab", buffering=0) as kept,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent,
    ):
        assert agent.stdin is not None
        assert agent.stdout is not None
        arguments = (b">", sys.stdin.buffer, agent.stdin, kept)
        threading.Thread(target=_relay, args=arguments, daemon=True).start()
        _relay(b"<", agent.stdout, sys.stdout.buffer, kept)
        return agent.wait()


def _relay(mark: bytes, source: IO[bytes], sink: IO[bytes], kept: IO[bytes]) -> None:
    with contextlib.suppress(OSError):
        for line in source:
            if line.endswith(b"\n"):  # else whoever said it was ended in the middle of it
                kept.write(mark + line)
            sink.write(line)
            sink.flush()
        sink.close()


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]) & 0xFF)
