"""What a session's database holds: tables, statements, and the way from rows to structs and back.

Nothing here opens, waits or knows threads; a `Write` is carried out by `supervisor.store.writer`.

runs          one row for each process that took the session up; its number is the ``epoch``
agents        every agent, the main one included; ``outcome`` is null while it lives
messages      the transcripts, in the order in which they were stored
model_calls   what each answered call used
uncertain_calls   calls in flight when their process died or their agent was cancelled: they may have been billed
external_sessions   what an external agent keeps on its own side, by the agent that it was kept for and its name;
              it came later than the others, and is made where a stored session has none
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from protocol.codec import encode_json, message_decoder
from protocol.content import AssistantMessage, Message
from protocol.frames import ExternalSession
from protocol.records import AgentOutcome
from protocol.usage import Usage

APPLICATION_ID = 0x434F5241
"""``CORA``; in the header of the file, so that another program's database is not taken for a session."""

SCHEMA_VERSION = 1
MAIN_AGENT_ID = "main"
MAIN_USAGE_NAME = "main"

Value: TypeAlias = str | int | float | bytes | None
Write: TypeAlias = tuple[str, tuple[Value, ...]]
"""A statement and its parameters."""

ADDED_LATER = (
    """CREATE TABLE IF NOT EXISTS external_sessions (
        agent_id TEXT NOT NULL REFERENCES agents, agent_name TEXT NOT NULL, session_id TEXT NOT NULL,
        cwd TEXT NOT NULL, known INTEGER NOT NULL, PRIMARY KEY (agent_id, agent_name))""",
)
"""What a session of an earlier corral may lack, which that corral would not miss: no other format for its sake."""

SCHEMA = (
    """CREATE TABLE session (
        session_id TEXT NOT NULL, created REAL NOT NULL, project_root TEXT NOT NULL,
        provider TEXT NOT NULL, model TEXT NOT NULL, agent_name TEXT NOT NULL)""",
    """CREATE TABLE runs (
        epoch INTEGER PRIMARY KEY, pid INTEGER NOT NULL, started REAL NOT NULL, ended REAL, exit_code INTEGER,
        crashed INTEGER NOT NULL DEFAULT 0)""",
    """CREATE TABLE agents (
        agent_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL REFERENCES runs, parent_agent_id TEXT REFERENCES agents,
        parent_call_id TEXT, agent_name TEXT NOT NULL, prompt TEXT NOT NULL, iterations INTEGER NOT NULL DEFAULT 0,
        outcome TEXT)""",
    """CREATE TABLE messages (
        number INTEGER PRIMARY KEY, agent_id TEXT NOT NULL REFERENCES agents, epoch INTEGER NOT NULL REFERENCES runs,
        body BLOB NOT NULL)""",
    "CREATE INDEX messages_of_agent ON messages (agent_id, number)",
    """CREATE TABLE model_calls (
        number INTEGER PRIMARY KEY, agent_id TEXT NOT NULL REFERENCES agents, epoch INTEGER NOT NULL REFERENCES runs,
        prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, cache_read_tokens INTEGER NOT NULL,
        cache_creation_tokens INTEGER NOT NULL, thinking_tokens INTEGER NOT NULL, api_calls INTEGER NOT NULL)""",
    """CREATE TABLE uncertain_calls (
        agent_id TEXT NOT NULL REFERENCES agents, epoch INTEGER NOT NULL REFERENCES runs, calls INTEGER NOT NULL)""",
    *ADDED_LATER,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
"""What makes an empty file a session; to be run in one transaction."""

SELECT_LAST_RUN = "SELECT epoch, ended FROM runs ORDER BY epoch DESC LIMIT 1"
SELECT_HISTORY = "SELECT body FROM messages WHERE agent_id = ? ORDER BY number"
SELECT_ITERATIONS = "SELECT iterations FROM agents WHERE agent_id = ?"
SELECT_LAST_MESSAGE = "SELECT body FROM messages WHERE agent_id = ? AND epoch = ? ORDER BY number DESC LIMIT 1"
SELECT_LIVING_AGENTS = "SELECT agent_id FROM agents WHERE outcome IS NULL"
SELECT_EXTERNAL_SESSION = """SELECT session_id, cwd, known FROM external_sessions
    WHERE agent_id = ? AND agent_name = ?"""
SELECT_UNCERTAIN_CALLS = "SELECT coalesce(sum(calls), 0) FROM uncertain_calls WHERE epoch < ?"
SELECT_USAGE = """SELECT CASE WHEN parent_agent_id IS NULL THEN ? ELSE agent_name END,
    sum(prompt_tokens), sum(completion_tokens), sum(cache_read_tokens), sum(cache_creation_tokens),
    sum(thinking_tokens), sum(api_calls)
    FROM model_calls JOIN agents USING (agent_id) WHERE model_calls.epoch < ? GROUP BY 1"""


def begin_session(
    session_id: str, now: float, *, project_root: str, provider: str, model: str, agent_name: str
) -> list[Write]:
    """The one row of a new session. ``now`` is the wall clock in seconds, here and below."""
    row = (session_id, now, project_root, provider, model, agent_name)
    return [("INSERT INTO session VALUES (?, ?, ?, ?, ?, ?)", row)]


def begin_run(epoch: int, pid: int, now: float) -> list[Write]:
    """A process takes the session up."""
    return [("INSERT INTO runs (epoch, pid, started) VALUES (?, ?, ?)", (epoch, pid, now))]


def end_run(epoch: int, exit_code: int, now: float) -> list[Write]:
    """The process ends as it should."""
    return [("UPDATE runs SET ended = ?, exit_code = ? WHERE epoch = ?", (now, exit_code, epoch))]


def mark_crashed(epoch: int, uncertain: Iterable[tuple[str, int]]) -> list[Write]:
    """The process of ``epoch`` died, and with it its agents; for each its id and its calls of unknown fate."""
    writes: list[Write] = [("UPDATE runs SET crashed = 1 WHERE epoch = ?", (epoch,))]
    for agent_id, calls in uncertain:
        writes += end_agent(agent_id, epoch, "crashed", calls)
    return writes


def revive_main_agent() -> list[Write]:
    """The main agent lives again in a new run; its iterations count by the turn."""
    return [("UPDATE agents SET outcome = NULL, iterations = 0 WHERE agent_id = ?", (MAIN_AGENT_ID,))]


def add_agent(
    agent_id: str, epoch: int, parent_agent_id: str | None, parent_call_id: str | None, agent_name: str, prompt: str
) -> list[Write]:
    """An agent begins."""
    sql = """INSERT INTO agents (agent_id, epoch, parent_agent_id, parent_call_id, agent_name, prompt)
        VALUES (?, ?, ?, ?, ?, ?)"""
    return [(sql, (agent_id, epoch, parent_agent_id, parent_call_id, agent_name, prompt))]


def append(agent_id: str, epoch: int, messages: Iterable[Message], usage: Usage | None, iterations: int) -> list[Write]:
    """Items of a transcript, and what the call that they came of used."""
    sql = "INSERT INTO messages (agent_id, epoch, body) VALUES (?, ?, ?)"
    writes: list[Write] = [(sql, (agent_id, epoch, encode_json(message))) for message in messages]
    if usage is not None:
        sql = f"INSERT INTO model_calls (agent_id, epoch, {_USAGE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        writes.append((sql, (agent_id, epoch, *_usage_row(usage))))
    writes.append(("UPDATE agents SET iterations = max(iterations, ?) WHERE agent_id = ?", (iterations, agent_id)))
    return writes


def keep_external_session(agent_id: str, agent_name: str, session: ExternalSession) -> list[Write]:
    """The session that the external agent ``agent_name`` has for ``agent_id``, in the place of the one before it."""
    row = (agent_id, agent_name, session.session_id, session.cwd, session.known)
    return [("INSERT OR REPLACE INTO external_sessions VALUES (?, ?, ?, ?, ?)", row)]


def end_agent(agent_id: str, epoch: int, outcome: AgentOutcome, uncertain_calls: int) -> list[Write]:
    """An agent ends; ``uncertain_calls`` of its calls were in flight when its process died or it was cancelled."""
    writes: list[Write] = [("UPDATE agents SET outcome = ? WHERE agent_id = ?", (outcome, agent_id))]
    if uncertain_calls:
        writes.append(("INSERT INTO uncertain_calls VALUES (?, ?, ?)", (agent_id, epoch, uncertain_calls)))
    return writes


def read_history(rows: Iterable[Sequence[bytes]]) -> tuple[Message, ...]:
    """The rows of `SELECT_HISTORY` as messages; raises `msgspec.MsgspecError` for a row that is none."""
    return tuple(message_decoder.decode(body) for (body,) in rows)


def read_usage(rows: Iterable[Sequence[str | int]]) -> dict[str, Usage]:
    """The rows of `SELECT_USAGE`: own calls by agent name, the main agent's under ``main``."""
    totals: dict[str, Usage] = {}
    for name, *numbers in rows:
        prompt, completion, cache_read, cache_creation, thinking, calls = map(int, numbers)
        totals[str(name)] = Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cache_read_tokens=cache_read,
            cache_creation_tokens=cache_creation,
            thinking_tokens=thinking,
            api_calls=calls,
        )
    return totals


def calls_in_flight(last: Message | None) -> int:
    """How many model calls an agent may have had open when it died, by the last item of its transcript.

    It waited for the model unless the last thing stored is a reply: that either ended its turn or had its tools run.
    An agent of which nothing is stored may have been asking for its first reply.
    """
    return 0 if isinstance(last, AssistantMessage) else 1


_USAGE_COLUMNS = (
    "prompt_tokens, completion_tokens, cache_read_tokens, cache_creation_tokens, thinking_tokens, api_calls"
)


def _usage_row(usage: Usage) -> tuple[int, ...]:
    return (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cache_read_tokens,
        usage.cache_creation_tokens,
        usage.thinking_tokens,
        usage.api_calls,
    )
