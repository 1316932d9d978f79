"""Stored sessions, looked at from outside: nothing is written, a run under way is not disturbed."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from protocol.content import Message, UserMessage
from protocol.records import AgentOutcome
from protocol.usage import Usage
from supervisor.errors import StorageFailed, StoreNewer
from supervisor.store import schema
from supervisor.store.database import check_kind, reading
from supervisor.store.folder import DATABASE, LOCK

State: TypeAlias = Literal["running", "complete", "error", "limit", "cancelled", "crashed", "damaged", "newer"]
"""How the last run of a session ended; ``damaged`` and ``newer`` say why nobody can tell."""

_STATES: dict[int, State] = {0: "complete", 3: "limit", 129: "cancelled", 130: "cancelled", 143: "cancelled"}

_SESSION = "SELECT session_id, created, project_root, provider, model, agent_name FROM session"
_RUNS = "SELECT epoch, pid, started, ended, exit_code, crashed FROM runs ORDER BY epoch"
_AGENTS = """SELECT agent_id, epoch, parent_agent_id, parent_call_id, agent_name, prompt, outcome FROM agents
    ORDER BY rowid"""
_USAGE = """SELECT sum(prompt_tokens), sum(completion_tokens), sum(cache_read_tokens), sum(cache_creation_tokens),
    sum(thinking_tokens), sum(api_calls) FROM model_calls WHERE agent_id = ?"""
_FIRST = "SELECT body FROM messages WHERE agent_id = ? ORDER BY number LIMIT 1"


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """One process's part of a session; times in seconds since 1970. ``ended`` is null for one that did not end."""

    epoch: int
    pid: int
    started: float
    ended: float | None
    exit_code: int | None
    state: State


class StoredAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent; ``usage`` is that of its own calls, ``messages`` its transcript (empty where it was not asked for)."""

    agent_id: str
    epoch: int
    parent_agent_id: str | None
    parent_call_id: str | None
    agent_name: str
    prompt: str
    outcome: AgentOutcome | None
    usage: Usage
    messages: tuple[Message, ...] = ()


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session. ``usage`` is that of all its agents; ``uncertain_calls`` may have been billed without an answer."""

    session_id: str
    created: float
    project_root: str
    provider: str
    model: str
    agent_name: str
    state: State
    usage: Usage
    uncertain_calls: int
    runs: tuple[StoredRun, ...]
    agents: tuple[StoredAgent, ...]


class SessionLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a list says of a session; all but the first two are empty for one that can't be read."""

    session_id: str
    state: State
    started: float = 0.0
    project_root: str = ""
    model: str = ""
    prompt: str = ""
    tokens: int = 0


def read_line(folder: Path) -> SessionLine:
    """A session for a list. Never fails: ``damaged`` is said of what can't be read."""
    try:
        session = read_session(folder, transcripts=False)
        return SessionLine(
            session_id=session.session_id,
            state=session.state,
            started=session.runs[-1].started,
            project_root=session.project_root,
            model=session.model,
            prompt=_first_prompt(folder),
            tokens=session.usage.total_tokens,
        )
    except StoreNewer:
        return SessionLine(session_id=folder.name, state="newer")
    except StorageFailed:
        return SessionLine(session_id=folder.name, state="damaged")


def read_session(folder: Path, *, transcripts: bool = True) -> StoredSession:
    """The session in ``folder``; raises `StorageFailed`."""
    with reading(folder / DATABASE) as connection:
        check_kind(connection, folder / DATABASE)
        row = connection.execute(_SESSION).fetchone()
        runs = tuple(_run(folder, *run) for run in connection.execute(_RUNS))
        if row is None or not runs:
            raise StorageFailed(f"{folder / DATABASE} holds no run of a session")
        agents = tuple(_agent(connection, transcripts, *agent) for agent in connection.execute(_AGENTS).fetchall())
        (uncertain,) = connection.execute("SELECT coalesce(sum(calls), 0) FROM uncertain_calls").fetchone()
    return StoredSession(
        session_id=row[0],
        created=row[1],
        project_root=row[2],
        provider=row[3],
        model=row[4],
        agent_name=row[5],
        state=runs[-1].state,
        usage=sum((agent.usage for agent in agents), Usage()),
        uncertain_calls=uncertain,
        runs=runs,
        agents=agents,
    )


def _run(
    folder: Path, epoch: int, pid: int, started: float, ended: float | None, exit_code: int | None, crashed: int
) -> StoredRun:
    state = _STATES.get(exit_code or 0, "error")
    if ended is None:
        state = "running" if not crashed and _is_running(folder, pid) else "crashed"
    return StoredRun(epoch=epoch, pid=pid, started=started, ended=ended, exit_code=exit_code, state=state)


def _is_running(folder: Path, pid: int) -> bool:
    """Whether the process that did not write its end still has the session.

    The lock tells. It is tried only where a process of that number lives, so a run that begins is not in the way.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _agent(
    connection: sqlite3.Connection,
    transcripts: bool,
    agent_id: str,
    epoch: int,
    parent_agent_id: str | None,
    parent_call_id: str | None,
    agent_name: str,
    prompt: str,
    outcome: AgentOutcome | None,
) -> StoredAgent:
    prompts, completions, cache_reads, cache_creations, thinking, calls = (
        number or 0 for number in connection.execute(_USAGE, (agent_id,)).fetchone()
    )
    history = schema.read_history(connection.execute(schema.SELECT_HISTORY, (agent_id,))) if transcripts else ()
    return StoredAgent(
        agent_id=agent_id,
        epoch=epoch,
        parent_agent_id=parent_agent_id,
        parent_call_id=parent_call_id,
        agent_name=agent_name,
        prompt=prompt,
        outcome=outcome,
        usage=Usage(
            prompt_tokens=prompts,
            completion_tokens=completions,
            cache_read_tokens=cache_reads,
            cache_creation_tokens=cache_creations,
            thinking_tokens=thinking,
            api_calls=calls,
        ),
        messages=history,
    )


def _first_prompt(folder: Path) -> str:
    with suppress(StorageFailed), reading(folder / DATABASE) as connection:
        history = schema.read_history(connection.execute(_FIRST, (schema.MAIN_AGENT_ID,)))
        if history and isinstance(history[0], UserMessage):
            return history[0].text
    return ""
