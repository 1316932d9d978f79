"""Attempts whose runner died: nothing of them may live, and what they used counts."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from protocol.usage import Usage
from supervisor.batch import ledger_schema as schema
from supervisor.batch.core.outcome import AttemptEnd
from supervisor.batch.ledger_schema import StoredAttempt
from supervisor.batch.process_trees import end_tree
from supervisor.errors import StorageFailed, UnknownSession
from supervisor.sinks.notes import write_note
from supervisor.store.database import look_at
from supervisor.store.folder import DATABASE, find_session
from supervisor.store.schema import MAIN_USAGE_NAME, Write
from supervisor.store.stored_session import StoredSession, read_session

REASON = "runner_lost"


def end_lost(attempt: StoredAttempt, state_folder: Path) -> list[Write]:
    """End all that lives of an attempt whose runner died; what is to be written of it.

    ``state_folder`` holds the sessions: what a model call used is in its session first. Blocks for 10 seconds at most.
    """
    if attempt.pid is not None and not end_tree(attempt.pid, attempt.pid_start):
        write_note(f"{attempt.job_id}: process {attempt.pid} of a lost attempt can't be ended")
    attempt = _with_usage_of_session(attempt, state_folder)
    usage = schema.put_usage(attempt.job_id, attempt.n, attempt.usage, attempt.usage_by_agent, attempt.uncertain_calls)
    end = AttemptEnd(outcome="lost", reason=REASON)
    return [usage, schema.end_attempt(attempt.job_id, attempt.n, end, time.time())]


def _with_usage_of_session(attempt: StoredAttempt, state_folder: Path) -> StoredAttempt:
    """What the session knows of the attempt's usage, where it knows more, and the calls of unknown fate."""
    if attempt.session_id is None:
        return attempt
    try:
        folder = find_session(state_folder, attempt.session_id)
        session = read_session(folder, transcripts=False)
        uncertain = sum(calls for _, calls in look_at(folder / DATABASE).uncertain)
    except (StorageFailed, UnknownSession):
        return attempt
    attempt = msgspec.structs.replace(attempt, uncertain_calls=max(uncertain, attempt.uncertain_calls))
    if session.usage.api_calls < attempt.usage.api_calls:
        return attempt
    return msgspec.structs.replace(attempt, usage=session.usage, usage_by_agent=_by_agent(session))


def _by_agent(session: StoredSession) -> dict[str, Usage]:
    sums: dict[str, Usage] = {}
    for agent in session.agents:
        name = MAIN_USAGE_NAME if agent.parent_agent_id is None else agent.agent_name
        sums[name] = sums.get(name, Usage()) + agent.usage
    return sums
