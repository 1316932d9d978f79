"""The output formats. One line for each."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.sinks.json import JsonSink
from supervisor.sinks.ndjson import NdjsonSink
from supervisor.sinks.sink import Sink
from supervisor.sinks.stdout_writer import StdoutWriter
from supervisor.sinks.text import TextSink

FORMATS: dict[str, Callable[[StdoutWriter], Sink]] = {
    "stream-json": NdjsonSink,
    "json": JsonSink,
    "text": TextSink,
}
