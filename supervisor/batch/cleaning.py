"""Which work folders go, and when. Source: the batch contract, "Isolation" and ``--keep``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from supervisor.batch import ledger_schema as schema
from supervisor.batch.core.outcome import Again, Verdict
from supervisor.batch.core.words import Keep
from supervisor.batch.folder import JOBS
from supervisor.batch.isolation import Isolation
from supervisor.batch.ledger import Ledger, LedgerState
from supervisor.batch.ledger_schema import StoredAttempt
from supervisor.batch.plan import PlannedJob
from supervisor.batch.report import AttemptReport

_CAME_TO_NOTHING = frozenset({"lost", "cancelled", "throttle", "provider"})


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """A work folder that nobody needs and that is still there."""

    job_id: str
    n: int
    work: Path


class _Isolated(msgspec.Struct):
    """Of a stored spec, how the job was isolated."""

    isolation: str


def leftovers(state: LedgerState, folder: Path, keep: Keep) -> tuple[Leftover, ...]:
    """What earlier runs left in the batch's ``folder``, whether their jobs or their runners ended.

    Nothing outside of it, whatever the ledger says.
    """
    jobs = folder.resolve() / JOBS
    return tuple(
        Leftover(job_id=attempt.job_id, n=attempt.n, work=folder / attempt.workdir)
        for attempts in state.attempts.values()
        for attempt in attempts
        if attempt.workdir is not None
        and _may_go(attempt, attempt is attempts[-1], state, keep)
        and (folder / attempt.workdir).parent.resolve().is_relative_to(jobs)
    )


def _may_go(attempt: StoredAttempt, is_last: bool, state: LedgerState, keep: Keep) -> bool:
    if attempt.outcome in _CAME_TO_NOTHING:
        return True
    spec = msgspec.json.decode(state.jobs[attempt.job_id].spec_json, type=_Isolated)
    if keep == "all" or (spec.isolation == "worktree" and attempt.patch_sha is None):
        return False
    is_verdict = is_last and attempt.job_id in state.results
    return not is_verdict or attempt.outcome == "ok" or keep == "none"


class Cleaning:
    """Removes work folders and lets the ledger know; tells ``on_note`` of those that could not go."""

    def __init__(self, isolation: Isolation, ledger: Ledger, keep: Keep, on_note: Callable[[str], None]) -> None:
        self._isolation = isolation
        self._ledger = ledger
        self._keep = keep
        self._on_note = on_note

    async def after(self, job: PlannedJob, report: AttemptReport, follows: Verdict | Again) -> None:
        """Remove the folder of an attempt that has ended, where it need not stay.

        What the runner stopped stays as it is: there may be no time, and the next start removes it.
        """
        work = report.place.work if report.place is not None else None
        if work is None or report.must_keep or self._keep == "all":
            return
        if isinstance(follows, Again) and follows.retry is None:
            return
        if isinstance(follows, Verdict) and follows.status != "ok" and self._keep == "failed":
            return
        await self._remove(job.id, report.n, work, job.repository.common if job.repository is not None else None)

    async def before(self, found: Iterable[Leftover], repositories: Iterable[str]) -> None:
        """Remove what earlier runs left, then let git forget it."""
        has_removed = False
        for leftover in found:
            has_removed = True
            await self._remove(leftover.job_id, leftover.n, leftover.work, None)
        for common in sorted(repositories) if has_removed else ():
            await self._isolation.prune(common)

    async def _remove(self, job_id: str, n: int, work: Path, common: str | None) -> None:
        why = ""
        try:
            is_gone = await self._isolation.remove(work, common)
        except OSError as error:
            is_gone, why = False, f": {error.strerror or error}"
        if is_gone:
            self._ledger.write(schema.forget_workdir(job_id, n))
        else:
            self._on_note(f"{job_id}: cleanup_incomplete, {work} is kept{why}")
