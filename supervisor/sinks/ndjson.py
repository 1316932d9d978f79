"""The output format ``stream-json``: every line as it is."""

from __future__ import annotations

from supervisor.sinks.sink import Event
from supervisor.sinks.stdout_writer import StdoutWriter


class NdjsonSink:
    """Writes the wire's lines on stdout."""

    def __init__(self, stdout: StdoutWriter) -> None:
        self._write = stdout.write
        self.room = stdout.room
        self.release = stdout.release
        self.finish = stdout.finish

    def take(self, event: Event) -> None:
        """Write the line."""
        self._write(event.line)
