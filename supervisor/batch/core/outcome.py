"""What the end of an attempt means: its outcome, and what becomes of the job.

Source: the batch contract, "Retry classes".
"""

from __future__ import annotations

import errno

import msgspec

from protocol.frames import Finished
from protocol.records import AgentCrashed, CrashCause
from supervisor.batch.core.words import STATUSES, Outcome, RetryClass, Status

LOSSES_FOR_A_VERDICT = 3
"""A job that takes its runner down with it must not do so for ever."""

_TRANSIENT = frozenset({"unreachable", "server_error", "stream_failed"})
_STORAGE = frozenset({"storage_failed", "storage_full", "store_corrupt", "store_newer"})
_BUDGETS = frozenset({"max_tokens_total", "max_turns"})
_OUT_OF_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})

_CRASH_REASONS: dict[CrashCause, str] = {
    "signal": "signal",
    "exited_early": "no_summary",
    "out_of_memory": "oom",
    "unresponsive": "unresponsive",
    "channel_closed": "channel_closed",
    "protocol_error": "broken_wire",
}
_STATUS: dict[Outcome, Status] = {status: status for status in STATUSES}
"""Outcomes that are verdicts; the others are never the job's own doing."""
_RETRY_CLASS: dict[Outcome, RetryClass] = {
    "crashed": "crashed",
    "transient": "transient",
    "setup": "setup",
    "timeout": "timeout",
    "check_failed": "check",
    "failed": "failed",
}


class AttemptEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended. ``reason`` is a word, ``message`` a sentence for a person.

    ``out_of_room`` says that the machine itself is at its end (disk, descriptors): no other attempt would fare better.
    """

    outcome: Outcome
    reason: str = ""
    message: str = ""
    out_of_room: bool = False


def end_of_turn(ending: Finished, crash: AgentCrashed | None, spawn_errno: int | None = None) -> AttemptEnd:
    """The end of an attempt whose turn ended as ``ending``.

    ``crash`` is the last death of the root agent's process, ``spawn_errno`` why a process could not be started.
    """
    outcome, code, message = ending.outcome, ending.code, ending.message
    if outcome == "complete":
        return AttemptEnd(outcome="ok")
    if outcome == "crashed":
        return _end_of_crash(crash, message, spawn_errno)
    if outcome == "cancelled":
        return AttemptEnd(outcome="cancelled", reason=code or "cancelled", message=message)
    if outcome == "limit":
        kind: Outcome = "timeout" if code == "timeout" else "budget" if code in _BUDGETS else "failed"
        return AttemptEnd(outcome=kind, reason=code, message=message)
    if code in _STORAGE:
        return AttemptEnd(outcome="setup", reason=code, message=message, out_of_room=True)
    kind = "failed"
    if code == "rate_limited":
        kind = "throttle"
    elif code == "account_refused":
        kind = "provider"
    elif code in _TRANSIENT:
        kind = "transient"
    return AttemptEnd(outcome=kind, reason=code or "error", message=message)


def _end_of_crash(crash: AgentCrashed | None, message: str, spawn_errno: int | None) -> AttemptEnd:
    cause: CrashCause = crash.cause if crash is not None else "exited_early"
    if cause == "spawn_failed":
        return setup_failed("spawn_failed", message, spawn_errno)
    reason = _CRASH_REASONS[cause]
    if cause == "protocol_error" and crash is not None and "over the limit" in crash.detail:
        reason = "wire_overflow"
    return AttemptEnd(outcome="crashed", reason=reason, message=message)


def setup_failed(reason: str, message: str, number: int | None = None) -> AttemptEnd:
    """The attempt could not begin; ``number`` is the system's errno, if there is one."""
    return AttemptEnd(outcome="setup", reason=reason, message=message, out_of_room=number in _OUT_OF_ROOM)


def storage_failed(reason: str, message: str) -> AttemptEnd:
    """What the attempt is to be kept in can't be written."""
    return AttemptEnd(outcome="setup", reason=reason, message=message, out_of_room=True)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a job came to."""

    status: Status
    reason: str


class Again(msgspec.Struct, frozen=True, kw_only=True):
    """The job is to be tried again in ``delay`` seconds; ``retry`` is None where that is no fault of its own."""

    delay: float
    retry: RetryClass | None


def what_follows(
    end: AttemptEnd, *, retries_left: int, retries_used: int, retry_on: frozenset[RetryClass]
) -> Verdict | Again:
    """What becomes of the job. A verdict comes only from the job: what the runner stopped is tried again."""
    if end.out_of_room:
        return Again(delay=0.0, retry=None)
    kind = _RETRY_CLASS.get(end.outcome)
    if kind is not None and kind in retry_on and retries_left > 0:
        return Again(delay=backoff(retries_used), retry=kind)
    if end.outcome in ("transient", "setup"):
        return Verdict(status="crashed", reason=end.outcome)
    status = _STATUS.get(end.outcome)
    return Again(delay=0.0, retry=None) if status is None else Verdict(status=status, reason=end.reason)


def backoff(failures: int) -> float:
    """Seconds before the next try after so many failures before this one: 1, 2, 4 and so on, 30 at most."""
    return min(2.0 ** min(failures, 10), 30.0)
