"""The output format ``json``: the summary of the run alone."""

from __future__ import annotations

from protocol.records import RunSummary
from supervisor.sinks.sink import Event
from supervisor.sinks.stdout_writer import StdoutWriter


class JsonSink:
    """Writes one object on stdout: the ``run_summary``."""

    def __init__(self, stdout: StdoutWriter) -> None:
        self._stdout = stdout
        self.room = stdout.room
        self.release = stdout.release
        self.finish = stdout.finish

    def take(self, event: Event) -> None:
        """Write the line if it is the summary."""
        if isinstance(event.record, RunSummary):
            self._stdout.write(event.line)
