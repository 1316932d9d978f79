"""What each output format writes on stdout of the same events."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from protocol.records import Record, RunSummary, TextDelta, TurnStart
from protocol.usage import Usage
from supervisor.config import OutputFormat
from supervisor.core.tagger import Tagger
from supervisor.sinks.sink import Event
from supervisor.sinks.table import FORMATS
from tests.supervisor.sinks.output_pipe import OutputPipe

SUMMARY = RunSummary(
    success=True,
    response="Done. é",
    usage=Usage(),
    usage_by_agent={},
    model="m",
    provider="p",
    elapsed_ms=0,
    exit_code=0,
    error=None,
    uncertain_calls=0,
    agents=(),
)


def events(response: str = SUMMARY.response) -> list[Event]:
    tagger = Tagger("s")
    summary = msgspec.structs.replace(SUMMARY, response=response)
    records: list[Record] = [TurnStart(), TextDelta(text="Do"), TextDelta(text="ne."), summary]
    return [Event(record=record, agent_name="main", line=tagger.tag(record)[1]) for record in records]


async def written(pipe: OutputPipe, form: str, taken: list[Event]) -> bytes:
    sink = FORMATS[form](pipe.writer)
    for event in taken:
        sink.take(event)
    await sink.room()
    return await pipe.read_to_end()


def test_there_is_a_sink_for_every_format_that_the_command_line_takes() -> None:
    assert set(FORMATS) == set(get_args(OutputFormat))


async def test_stream_json_writes_every_line_as_it_is(pipe: OutputPipe) -> None:
    assert await written(pipe, "stream-json", events()) == b"".join(event.line for event in events())


async def test_json_writes_the_summary_alone(pipe: OutputPipe) -> None:
    assert await written(pipe, "json", events()) == events()[-1].line


@pytest.mark.parametrize(("response", "shown"), [("Done. é", "Done. é\n"), ("a\nb\n", "a\nb\n"), ("", "")])
async def test_text_writes_the_reply_once_with_one_line_end(pipe: OutputPipe, response: str, shown: str) -> None:
    assert await written(pipe, "text", events(response)) == shown.encode()
