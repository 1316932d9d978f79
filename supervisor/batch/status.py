"""``corral batch status``: where a batch stands. It only reads, and disturbs no run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal, TypeAlias, cast

import msgspec

from protocol.usage import Usage
from supervisor.batch.core.words import STATUSES, EndReason
from supervisor.batch.folder import is_locked
from supervisor.batch.ledger import LedgerState, read_ledger
from supervisor.batch.records import Counts
from supervisor.commands.command_line import CommandParser, help_asked, table, write
from supervisor.errors import WrongUsage
from supervisor.live.figures import duration, tokens

State: TypeAlias = Literal["running", "ended", "stopped", "killed"]
"""``stopped``: some jobs have no verdict; ``killed``: so has the last run no end."""


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that runs; ``pid`` is its root agent's process."""

    id: str
    attempt: int
    pid: int | None
    elapsed_ms: int
    tokens: int


class BatchStatus(msgspec.Struct, frozen=True, kw_only=True, tag="batch_status"):
    """What ``--json`` writes; ``exit_code`` and ``reason`` are those of the last run that ended."""

    batch_id: str
    state: State
    epoch: int
    counts: Counts
    usage: Usage
    uncertain_calls: int
    running: tuple[RunningJob, ...]
    exit_code: int | None
    reason: EndReason | None


def status(arguments: list[str]) -> int:
    """``corral batch status DIR [--json]``; raises `WrongUsage` and `StorageFailed`."""
    parser = CommandParser("batch status", "DIR [--json]", "Say where the batch in DIR stands, while it runs too.")
    parser.add_argument("folder", metavar="DIR", help="the batch's folder")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    if help_asked(arguments):
        return write(parser.format_help())
    options = parser.parse_args(arguments)
    folder = Path(options.folder)
    state = read_ledger(folder)
    if state is None:
        raise WrongUsage(f"there is no batch in {folder}")
    found = status_of(state, is_running=is_locked(folder), now=time.time())
    return write(msgspec.json.encode(found) + b"\n" if options.json else _text(found))


def status_of(state: LedgerState, *, is_running: bool, now: float) -> BatchStatus:
    """Where the batch stands, by its ledger; jobs that are not in its file any more count too."""
    counts = {status: sum(result.status == status for result in state.results.values()) for status in STATUSES}
    pending = len(state.jobs) - len(state.results)
    attempts = [attempt for found in state.attempts.values() for attempt in found]
    last = state.runs[-1]
    stands: State = "ended" if not pending else "stopped" if last.ended is not None else "killed"
    live = [attempt for attempt in attempts if attempt.outcome is None] if is_running else []
    return BatchStatus(
        batch_id=state.batch_id,
        state="running" if is_running else stands,
        epoch=state.epoch,
        counts=Counts(total=len(state.jobs), pending=pending, **counts),
        usage=sum((attempt.usage for attempt in attempts), Usage()),
        uncertain_calls=sum(attempt.uncertain_calls for attempt in attempts),
        running=tuple(
            RunningJob(
                id=attempt.job_id,
                attempt=attempt.n,
                pid=attempt.pid,
                elapsed_ms=round(1000 * (now - attempt.started)),
                tokens=attempt.usage.total_tokens,
            )
            for attempt in live
        ),
        exit_code=last.exit_code,
        reason=cast("EndReason | None", last.reason),
    )


def _text(found: BatchStatus) -> str:
    counts = found.counts
    verdicts = [f"{getattr(counts, status)} {status}" for status in STATUSES if getattr(counts, status)]
    ended = f" ({found.reason}, exit {found.exit_code})" if found.state != "running" and found.reason else ""
    head = [
        ("batch", f"{found.batch_id}, run {found.epoch}"),
        ("state", f"{found.state}{ended}"),
        ("jobs", f"{counts.total}: {', '.join([*verdicts, f'{counts.pending} without a verdict'])}"),
        ("used", f"{tokens(found.usage.total_tokens)} tokens in {found.usage.api_calls} model calls"),
    ]
    rows = [
        (job.id, str(job.attempt), str(job.pid or "-"), duration(job.elapsed_ms), tokens(job.tokens))
        for job in found.running
    ]
    running = f"\n{table([('RUNNING', 'ATTEMPT', 'PID', 'TIME', 'TOKENS'), *rows])}" if rows else ""
    return f"{table(head)}{running}"
