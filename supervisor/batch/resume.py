"""What the ledger and the job file say of each other: which jobs run now, which have changed, which are gone."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

import msgspec

from supervisor.batch import ledger_schema as schema
from supervisor.batch.core.outcome import LOSSES_FOR_A_VERDICT
from supervisor.batch.core.schedule import ScheduledJob
from supervisor.batch.core.words import STATUSES
from supervisor.batch.flags import OnChanged
from supervisor.batch.ledger import LedgerState
from supervisor.batch.ledger_schema import StoredAttempt
from supervisor.batch.plan import PlannedJob
from supervisor.errors import WrongUsage
from supervisor.store.schema import Write

NAMED_AT_MOST = 10


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """How a run takes the batch up.

    ``writes`` bring the ledger up to date. ``lost`` are the attempts whose runner died, ``given_up`` the jobs that were
    lost too often and get their verdict now, ``orphaned`` those that are not in the file any more.
    """

    writes: tuple[Write, ...]
    lost: tuple[StoredAttempt, ...] = ()
    given_up: tuple[str, ...] = ()
    orphaned: tuple[str, ...] = ()


def changed_jobs(jobs: Iterable[PlannedJob], state: LedgerState) -> list[PlannedJob]:
    """The jobs that are known with another spec."""
    known = state.jobs
    return [job for job in jobs if job.id in known and known[job.id].spec_sha != job.spec_sha]


def refuse_changes(changed: list[PlannedJob], file: str, on_changed: OnChanged, state: LedgerState) -> None:
    """Raise `WrongUsage`, naming the jobs and what of them is new, where changes are not allowed."""
    if not changed or on_changed != "refuse":
        return
    hints = [f"{file}:{job.line.line}: {job.id}: {_difference(job, state)}" for job in changed[:NAMED_AT_MOST]]
    if len(changed) > NAMED_AT_MOST:
        hints.append(f"and {len(changed) - NAMED_AT_MOST} more")
    message = f"{len(changed)} known jobs have changed; --on-changed rerun runs them anew, keep keeps what they came to"
    raise WrongUsage(message, hints=tuple(hints))


def _difference(job: PlannedJob, state: LedgerState) -> str:
    """The fields of the spec that are others now."""
    old = msgspec.json.decode(state.jobs[job.id].spec_json, type=dict[str, msgspec.Raw])
    new = msgspec.json.decode(job.spec.canonical(), type=dict[str, msgspec.Raw])
    names = [name for name in new if bytes(new[name]) != bytes(old.get(name, msgspec.Raw()))]
    return f"{', '.join(names)} changed"


def dropped_verdicts(words: Iterable[str], state: LedgerState) -> set[str]:
    """The jobs with a verdict that ``--rerun`` names, by status or id; raises `WrongUsage` for other words."""
    dropped: set[str] = set()
    for word in words:
        if word in STATUSES:
            dropped.update(result.job_id for result in state.results.values() if result.status == word)
        elif word in state.jobs:
            dropped.update({word} & state.results.keys())
        else:
            raise WrongUsage(f"--rerun takes {', '.join(STATUSES)} or the id of a known job, not {word!r}")
    return dropped


def take_up(
    jobs: tuple[PlannedJob, ...], state: LedgerState | None, *, rerun: tuple[str, ...], on_changed: OnChanged, file: str
) -> Resumption:
    """Compare the jobs of the file with the ledger's; raises `WrongUsage`."""
    if state is None:
        if rerun:
            raise WrongUsage("there is no verdict yet that --rerun could drop")
        return Resumption(writes=tuple(map(_put, jobs)))
    changed = changed_jobs(jobs, state)
    refuse_changes(changed, file, on_changed, state)
    dropped = dropped_verdicts(rerun, state)
    if on_changed == "rerun":
        dropped.update(job.id for job in changed)
    kept = {job.id for job in changed if job.id in state.results} if on_changed == "keep" else set[str]()
    writes: list[Write] = [_put(job) for job in jobs if job.id not in kept]
    for job_id in sorted(dropped):
        writes += schema.drop_verdict(job_id)
    present = {job.id for job in jobs}
    lost, given_up, put_back = _losses(state, dropped, present)
    return Resumption(
        writes=(*writes, *put_back),
        lost=lost,
        given_up=given_up,
        orphaned=tuple(job_id for job_id in state.jobs if job_id not in present),
    )


def _losses(
    state: LedgerState, dropped: Collection[str], present: Collection[str]
) -> tuple[tuple[StoredAttempt, ...], tuple[str, ...], list[Write]]:
    """The attempts whose runner died, the jobs that were lost too often, and what is written of both."""
    lost = tuple(each for attempts in state.attempts.values() for each in attempts if each.outcome is None)
    given_up: list[str] = []
    writes: list[Write] = []
    for attempt in lost:
        stored = state.jobs[attempt.job_id]
        losses = 1 if stored.id in dropped else stored.lost_count + 1
        writes.append(schema.put_back(stored.id, stored.retries_used, losses, None))
        if losses >= LOSSES_FOR_A_VERDICT and stored.id in present:
            given_up.append(stored.id)
    return lost, tuple(given_up), writes


def scheduled(job: PlannedJob, state: LedgerState) -> ScheduledJob:
    """The job as the schedule takes it; ``state`` is the ledger once it was brought up to date."""
    stored = state.jobs[job.id]
    return ScheduledJob(
        id=job.id,
        index=job.line.index,
        priority=job.line.priority,
        retries=job.retries,
        retries_used=stored.retries_used,
        attempts=max((attempt.n for attempt in state.attempts.get(job.id, ())), default=0),
        delay=max(0.0, stored.not_before - time.time()) if stored.not_before is not None else 0.0,
        lane=job.lane,
    )


def _put(job: PlannedJob) -> Write:
    return schema.put_job(job.id, job.line.index, job.spec.canonical(), job.spec_sha)
