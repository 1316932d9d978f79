"""Standard output of a batch: a table, one object, or a line for each event."""

from __future__ import annotations

import trio

from protocol.codec import encode_json
from protocol.records import Hello, Record
from protocol.version import installed_version
from supervisor.batch.core.words import STATUSES
from supervisor.batch.records import BatchSummary, JobResult
from supervisor.config import OutputFormat
from supervisor.live.figures import duration, tokens
from supervisor.sinks.stdout_writer import StdoutWriter
from supervisor.terminal_text import printable

MOST_ROWS = 100
"""Of more jobs only those that are not ok have a row."""
_HEAD = ("JOB", "STATUS", "REASON", "TRIES", "TIME", "TOKENS", "REPLY, OR THE LOG")
_LONGEST_REPLY = 48


class Output:
    """Writes what the format wants; a reader that has gone is no error: the batch goes on."""

    def __init__(self, kind: OutputFormat, *, include_events: bool) -> None:
        """To be made within a trio run."""
        self._kind = kind
        self._stdout = StdoutWriter()
        self.passes_events = include_events and kind == "stream-json"

    def begin(self) -> None:
        """Write ``hello``."""
        self.emit(Hello(koda_version=installed_version(), capabilities=("batch",)))

    def emit(self, record: Record) -> None:
        """An event of the batch."""
        if self._kind == "stream-json":
            self._stdout.write(encode_json(record) + b"\n")

    def result(self, line: bytes) -> None:
        """A verdict's line, as it is in the ledger."""
        if self._kind == "stream-json":
            self._stdout.write(line + b"\n")

    def pass_on(self, line: bytes) -> None:
        """A line of an agent."""
        self._stdout.write(line)

    async def room(self) -> None:
        """Wait for the reader, while it is slow."""
        await self._stdout.room()

    def release(self) -> None:
        """Wait for the reader no more: the batch is being stopped."""
        self._stdout.release()

    def end(self, summary: BatchSummary, results: list[JobResult]) -> None:
        """The last of all."""
        if self._kind == "text":
            self._stdout.write(report(summary, results).encode(errors="replace"))
        else:
            self._stdout.write(encode_json(summary) + b"\n")

    async def finish(self, seconds: float) -> None:
        """Return once all is written, the reader has gone, or ``seconds`` are over."""
        with trio.move_on_after(seconds):
            await self._stdout.finish()


def report(summary: BatchSummary, results: list[JobResult]) -> str:
    """The table for a person, and what it comes to."""
    shown = results if len(results) <= MOST_ROWS else [result for result in results if result.status != "ok"]
    rows = [_row(result) for result in sorted(shown, key=lambda result: result.index)]
    table = _table([_HEAD, *rows]) if rows else ""
    return f"{table}{total(summary)}\n"


def total(summary: BatchSummary) -> str:
    """One sentence: the jobs by verdict, and what they used."""
    counts = summary.counts
    parts = [f"{getattr(counts, status)} {status}" for status in STATUSES if getattr(counts, status)]
    if counts.pending:
        parts.append(f"{counts.pending} not run")
    jobs = f"{counts.total} job{'' if counts.total == 1 else 's'}"
    used = f"{tokens(summary.usage.total_tokens)} tokens in {summary.usage.api_calls} model calls"
    ended = f" ({summary.reason})" if summary.reason not in (None, "complete", "failed") else ""
    return f"{jobs}: {', '.join(parts) or 'nothing to do'}; {used}{ended}"


def _row(result: JobResult) -> tuple[str, ...]:
    return (
        result.id,
        result.status,
        result.reason or "-",
        str(len(result.attempts)),
        duration(result.wall_ms),
        tokens(result.usage.total_tokens),
        _shortened(result.response) if result.success else result.log or "-",
    )


def _shortened(reply: str) -> str:
    line = " ".join(reply.split())
    return line if len(line) <= _LONGEST_REPLY else f"{line[: _LONGEST_REPLY - 3]}..."


def _table(rows: list[tuple[str, ...]]) -> str:
    clean = [[" ".join(printable(cell).split()) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in clean) for column in range(len(clean[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in clean)
    return "".join(f"{line}\n" for line in lines)
