"""Hands each event to every sink, in order."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from protocol.records import Record
from supervisor.core.tagger import Tagger
from supervisor.sinks.sink import Event, Sink


class Hub:
    """The one place where a record gets its tags and its number: what is published first is first on every sink."""

    def __init__(self, tagger: Tagger, sinks: Sequence[Sink]) -> None:
        self.tagger = tagger
        # Replaced, never changed: whoever goes through it may be in the middle when a sink comes or goes.
        self._sinks: tuple[tuple[Sink, str | None], ...] = tuple((sink, None) for sink in sinks)

    def add(self, sink: Sink, only: str | None = None) -> None:
        """Hand events to ``sink`` too, from the next one on: all of them, or those of the agent ``only``."""
        self._sinks = (*self._sinks, (sink, only))

    def remove(self, sink: Sink) -> None:
        """Hand nothing to ``sink`` any more; harmless if it was not there."""
        self._sinks = tuple(entry for entry in self._sinks if entry[0] is not sink)

    def publish(self, record: Record, agent_id: str | None = None) -> None:
        """Tag ``record`` as caused by ``agent_id`` (None: by the run) and hand it on; never blocks."""
        name, line = self.tagger.tag(record, agent_id)
        event = Event(record=record, agent_name=name, line=line, agent_id=agent_id or "")
        for sink, only in self._sinks:
            if only is None or only == agent_id:
                sink.take(event)

    async def room(self) -> None:
        """Return once every sink keeps up: whoever publishes much awaits this, and so stops reading its source."""
        for sink, _only in self._sinks:
            await sink.room()

    def release(self) -> None:
        """Push back no more: the run is being ended."""
        for sink, _only in self._sinks:
            sink.release()

    async def finish(self) -> None:
        """Return once all that was published is written, or can't be any more; no sink waits for another."""
        async with trio.open_nursery() as nursery:
            for sink, _only in self._sinks:
                nursery.start_soon(sink.finish)
