"""The sink of one session: each event becomes updates for the client."""

from __future__ import annotations

import trio

from protocol.records import SubAgentStart
from supervisor.acp_agent.connection import Connection
from supervisor.acp_agent.core.translation import Translator
from supervisor.core.agent_tree import AgentTree
from supervisor.sinks.sink import Event
from supervisor.store.schema import MAIN_AGENT_ID

LIVE_SECONDS = 0.25
"""Between two updates of what running calls show: an update repeats all of it."""


class ClientSink:
    """Implements `supervisor.sinks.sink.Sink`. All sessions share the client's stream; each is released by itself."""

    def __init__(self, session_id: str, translator: Translator, connection: Connection) -> None:
        self._session_id = session_id
        self._translator = translator
        self._connection = connection
        self._tree = AgentTree()
        self._is_released = False
        self._waits: set[trio.CancelScope] = set()

    def begin_turn(self, tree: AgentTree) -> None:
        """A turn begins, whose agents are in ``tree``: push back again."""
        self._tree = tree
        self._is_released = False

    def take(self, event: Event) -> None:
        """Tell the client of the event, if it is anything to it."""
        if isinstance(event.record, SubAgentStart):
            node = self._tree[event.record.agent_id]
            if node.parent_agent_id is not None and node.parent_call_id is not None:
                self._translator.know_sub_agent(node.agent_id, node.parent_agent_id, node.parent_call_id)
        for update in self._translator.translate(event.record, event.agent_id or MAIN_AGENT_ID):
            self._connection.update(self._session_id, update)

    async def show_live_output(self) -> None:
        """Tell the client now and then what running calls show, until cancelled."""
        while True:
            await trio.sleep(LIVE_SECONDS)
            for update in self._translator.live_output():
                self._connection.update(self._session_id, update)

    async def room(self) -> None:
        """See `Sink.room`."""
        if self._is_released:
            return
        with trio.CancelScope() as scope:
            self._waits.add(scope)
            try:
                await self._connection.output.room()
            finally:
                self._waits.discard(scope)

    def release(self) -> None:
        """See `Sink.release`; holds until the next turn begins."""
        self._is_released = True
        for scope in self._waits:
            scope.cancel()

    async def finish(self) -> None:
        """Nothing: the stream goes on for other sessions."""
