"""The output format ``text``: the final reply on stdout."""

from __future__ import annotations

from protocol.records import RunSummary
from supervisor.sinks.sink import Event
from supervisor.sinks.stdout_writer import StdoutWriter
from supervisor.terminal_text import printable


class TextSink:
    """Writes the reply of a run that is complete, or what there was of it, once it is over.

    A terminal gets it without what could steer it; a file or a pipe gets what the model wrote.
    """

    def __init__(self, stdout: StdoutWriter) -> None:
        self._stdout = stdout
        self.room = stdout.room
        self.release = stdout.release
        self.finish = stdout.finish

    def take(self, event: Event) -> None:
        """Write the response of the summary, ended by a line end."""
        record = event.record
        if isinstance(record, RunSummary) and record.response:
            text = record.response if record.response.endswith("\n") else record.response + "\n"
            if self._stdout.is_terminal:
                text = printable(text)
            self._stdout.write(text.encode())
