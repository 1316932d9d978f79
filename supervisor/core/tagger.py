"""Tags a record with who caused it and makes it a line of the wire.

Identity comes from here, never from a worker's payload: the caller passes the agent whose channel the record came in
on. Source: the wire contract, "Framing".
"""

from __future__ import annotations

from protocol.codec import encode_json
from protocol.records import Hello, Record


class Tagger:
    """Numbers the lines of one process's part of a session (``epoch``): ``seq`` is 1, 2, 3, ... without holes."""

    def __init__(self, session_id: str) -> None:
        self._session = b',"session_id":' + encode_json(session_id)
        self._turn = b""
        self._agents: dict[str, tuple[str, bytes]] = {}
        self._tags: dict[str | None, tuple[str, bytes]] = {}
        self._sequence = 0

    def begin_turn(self, turn_id: str) -> None:
        """Lines carry ``turn_id`` from here on."""
        self._turn = b',"turn_id":' + encode_json(turn_id)
        self._tags.clear()

    def end_turn(self) -> None:
        """Lines carry no ``turn_id`` any more."""
        self._turn = b""
        self._tags.clear()

    def know_agent(self, agent_id: str, parent_call_id: str | None, name: str) -> None:
        """Lines of ``agent_id`` carry ``parent_call_id``, the call that started it; the main agent has none."""
        parent = b"" if parent_call_id is None else b',"parent_id":' + encode_json(parent_call_id)
        self._agents[agent_id] = (name, parent)
        self._tags.pop(agent_id, None)

    def tag(self, record: Record, agent_id: str | None = None) -> tuple[str, bytes]:
        """The name of the agent that caused ``record`` and the whole line, its line end included.

        With None for what belongs to the run: its name is "".
        """
        body = encode_json(record)
        if isinstance(record, Hello):
            return "", body + b"\n"
        self._sequence += 1
        tags = self._tags.get(agent_id)
        if tags is None:
            tags = self._tags[agent_id] = self._tags_of(agent_id)
        # Every record has at least its type, so there is always something before the comma.
        return tags[0], b"%s%s%d}\n" % (body[:-1], tags[1], self._sequence)

    def _tags_of(self, agent_id: str | None) -> tuple[str, bytes]:
        """The name, and what the lines of an agent have in common up to their number."""
        name, parent = ("", b"") if agent_id is None else self._agents[agent_id]
        return name, b'%s%s%s,"seq":' % (self._session, self._turn, parent)
