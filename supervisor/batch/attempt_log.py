"""The log of an attempt: its run's stream, and what would have stood on standard error."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from protocol.codec import encode_json
from supervisor.terminal_text import printable

WIRE = "wire.ndjson"
STDERR = "stderr.log"


class AttemptLog(Protocol):
    """Takes the lines; `room` pushes back. ``path`` is the file of the stream, None: it is not written here."""

    @property
    def path(self) -> Path | None:
        """See the class."""
        ...

    def line(self, line: bytes) -> None:
        """A line of the run's stream, with its line end."""
        ...

    def note(self, text: str) -> None:
        """A line, or several, for ``stderr.log``."""
        ...

    async def room(self) -> None:
        """Wait while whoever takes the lines is behind."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


async def _at_once() -> None:
    """Nothing is waited for."""


class FileLog:
    """Writes ``wire.ndjson`` and ``stderr.log``. See `AttemptLog`.

    ``on_failure`` is called once when they can't be written. With `pass_on` each line goes elsewhere too.
    """

    def __init__(self, folder: Path, on_failure: Callable[[OSError], None]) -> None:
        """Raises `OSError`."""
        self.path = folder / WIRE
        self._on_failure = on_failure
        self._has_failed = False
        self._marks = b""
        self._pass_on: Callable[[bytes], None] | None = None
        self._wait: Callable[[], Awaitable[None]] = _at_once
        self._wire = _open(self.path)
        self._stderr = _open(folder / STDERR)

    def pass_on(
        self, job_id: str, attempt: int, write: Callable[[bytes], None], room: Callable[[], Awaitable[None]]
    ) -> None:
        """Give each line to ``write`` too, with ``job_id`` and ``attempt`` in it, and wait for ``room``."""
        self._marks = b',"job_id":%s,"attempt":%d}\n' % (encode_json(job_id), attempt)
        self._pass_on = write
        self._wait = room

    def line(self, line: bytes) -> None:
        """See `AttemptLog.line`."""
        self._write(self._wire, line)
        if self._pass_on is not None:
            self._pass_on(line[:-2] + self._marks)

    def note(self, text: str) -> None:
        """See `AttemptLog.note`."""
        self._write(self._stderr, (printable(text).rstrip("\n") + "\n").encode(errors="replace"))

    async def room(self) -> None:
        """Files take each line at once; who reads the lines elsewhere may push back."""
        await self._wait()

    def close(self) -> None:
        """Close the files."""
        os.close(self._wire)
        os.close(self._stderr)

    def _write(self, descriptor: int, data: bytes) -> None:
        if self._has_failed:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError as error:
            self._has_failed = True
            self._on_failure(error)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
