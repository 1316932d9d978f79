"""The sessions of a client: those that are open here, and all that are stored."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import msgspec
import trio

from protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST
from supervisor.acp_agent.connection import Connection
from supervisor.acp_agent.core.messages import ListRequest, ListResponse, SessionInfo, SessionPlace, SessionReopen
from supervisor.acp_agent.core.translation import Features
from supervisor.acp_agent.refusal import RESOURCE_NOT_FOUND, Refusal
from supervisor.acp_agent.session import ClientSession
from supervisor.config import OneShotSettings
from supervisor.conversation import open_store
from supervisor.errors import UnknownSession
from supervisor.sinks.notes import write_note
from supervisor.spawn import Spawner
from supervisor.store.folder import find_session, session_folders
from supervisor.store.stored_session import SessionLine, read_line

SettingsReader: TypeAlias = Callable[[Path], OneShotSettings]
"""Reads the settings of a session in a folder; blocks, raises `WrongUsage`."""

PAGE = 50
"""Sessions in one answer to ``session/list``."""

LONGEST_TITLE = 80


class Sessions:
    """Opens, finds and closes sessions."""

    def __init__(
        self,
        read_settings: SettingsReader,
        state_folder: Path,
        connection: Connection,
        spawner: Spawner,
    ) -> None:
        self._read_settings = read_settings
        self._state_folder = state_folder
        self._connection = connection
        self._spawner = spawner
        self._open: dict[str, ClientSession] = {}
        self.features = Features()

    def get(self, session_id: str) -> ClientSession:
        """The open session; raises `Refusal`."""
        session = self._open.get(session_id)
        if session is None:
            raise Refusal(
                RESOURCE_NOT_FOUND, f"no session {session_id!r} is open: session/load or session/new opens one"
            )
        return session

    def all(self) -> tuple[ClientSession, ...]:
        """The open sessions."""
        return tuple(self._open.values())

    async def new(self, place: SessionPlace) -> ClientSession:
        """Begin a session; raises `Refusal` and `SupervisorError`."""
        return await self._begin(place, None)

    async def reopen(self, place: SessionReopen) -> ClientSession:
        """The session of that very id, opened if it isn't yet; raises `Refusal` and `SupervisorError`."""
        _check_place(place)
        session = self._open.get(place.session_id)
        if session is None:
            return await self._begin(place, place.session_id)
        if session.turns.is_open:
            raise Refusal(INVALID_REQUEST, "a prompt runs in this session: wait for its end, or cancel it")
        return session

    async def close(self, session_id: str) -> None:
        """Close an open session, its turn cancelled; raises `Refusal`."""
        session = self.get(session_id)
        del self._open[session_id]
        await session.close()

    async def close_all(self) -> None:
        """Close every session."""
        async with trio.open_nursery() as nursery:
            for session_id in tuple(self._open):
                nursery.start_soon(self.close, session_id)

    async def list(self, request: ListRequest) -> ListResponse:
        """The stored sessions, the newest first; those that can't be read are left out. Raises `SupervisorError`."""
        return await trio.to_thread.run_sync(_list, self._state_folder, request)

    async def _begin(self, place: SessionPlace, session_id: str | None) -> ClientSession:
        cwd = _check_place(place)
        settings = await trio.to_thread.run_sync(self._read_settings, cwd)
        if session_id is not None:
            if find_session(self._state_folder, session_id).name != session_id:  # the beginning of an id will not do
                raise UnknownSession(f"there is no session {session_id!r}")
            settings = msgspec.structs.replace(settings, session_id=session_id)
        store = await trio.to_thread.run_sync(open_store, settings)
        session = ClientSession(settings, store, self._connection, self._spawner, self.features)
        self._open[session.session_id] = session
        if not settings.quiet:
            for note in (*settings.notes, *_notes(place)):
                write_note(note)
        return session


def _check_place(place: SessionPlace) -> Path:
    cwd = Path(place.cwd)
    if not cwd.is_absolute():
        raise Refusal(INVALID_PARAMS, f"cwd must be an absolute path, not {place.cwd!r}")
    if place.additional_directories:
        raise Refusal(INVALID_PARAMS, "corral works in one folder: additionalDirectories must be empty")
    return cwd


def _notes(place: SessionPlace) -> tuple[str, ...]:
    count = len(place.mcp_servers)
    return (f"MCP is not supported: {count} servers of the client are left alone",) if count else ()


def _list(state_folder: Path, request: ListRequest) -> ListResponse:
    if request.cwd is not None and not Path(request.cwd).is_absolute():
        raise Refusal(INVALID_PARAMS, f"cwd must be an absolute path, not {request.cwd!r}")
    wanted = _resolved(request.cwd) if request.cwd is not None else None
    found: list[SessionInfo] = []
    for folder in reversed(session_folders(state_folder)):
        if request.cursor is not None and folder.name >= request.cursor:
            continue
        if len(found) == PAGE:
            return ListResponse(sessions=tuple(found), next_cursor=found[-1].session_id)
        line = read_line(folder)
        if line.project_root and (wanted is None or line.project_root == wanted):
            found.append(_info(line))
    return ListResponse(sessions=tuple(found))


def _info(line: SessionLine) -> SessionInfo:
    return SessionInfo(
        session_id=line.session_id,
        cwd=line.project_root,
        title=" ".join(line.prompt.split())[:LONGEST_TITLE] or None,
        updated_at=datetime.fromtimestamp(line.started, UTC).isoformat(timespec="seconds"),
    )


def _resolved(path: str) -> str:
    """As a session's folder is stored."""
    with suppress(OSError, ValueError):
        return str(Path(path).resolve())
    return path
