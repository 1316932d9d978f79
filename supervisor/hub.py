"""Hands each event to every sink, in order."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.records import Record
from supervisor.core.tagger import Tagger
from supervisor.sinks.sink import Event, Sink


class Hub:
    """The one place where a record gets its tags and its number: what is published first is first on every sink."""

    def __init__(self, tagger: Tagger, sinks: Sequence[Sink]) -> None:
        self.tagger = tagger
        self._sinks = sinks

    def publish(self, record: Record, agent_id: str | None = None) -> None:
        """Tag ``record`` as caused by ``agent_id`` (None: by the run) and hand it on; never blocks."""
        name = "" if agent_id is None else self.tagger.agent_name(agent_id)
        event = Event(record=record, agent_name=name, line=self.tagger.line(record, agent_id))
        for sink in self._sinks:
            sink.take(event)

    async def room(self) -> None:
        """Return once every sink keeps up: whoever publishes much awaits this, and so stops reading its source."""
        for sink in self._sinks:
            await sink.room()

    def release(self) -> None:
        """Push back no more: the run is being ended."""
        for sink in self._sinks:
            sink.release()

    async def finish(self) -> None:
        """Return once all that was published is written, or can't be any more."""
        for sink in self._sinks:
            await sink.finish()
