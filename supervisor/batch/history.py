"""What is known of the jobs over all runs of the batch, and the result lines that are made of it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from protocol.usage import Usage
from supervisor.batch.core.outcome import Verdict
from supervisor.batch.core.result_line import cut, iso, summed
from supervisor.batch.ledger import LedgerState
from supervisor.batch.ledger_schema import StoredAttempt
from supervisor.batch.plan import PlannedJob
from supervisor.batch.records import AttemptLine, JobResult, result_decoder
from supervisor.batch.report import AttemptReport
from supervisor.batch.tally import Tally


class PastAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that has ended, as the result line needs it."""

    line: AttemptLine
    usage_by_agent: dict[str, Usage]
    uncertain_calls: int
    seconds: float


class History:
    """The attempts of every job, of earlier runs and of this one; the results that there are."""

    def __init__(self, jobs: Iterable[PlannedJob], state: LedgerState, epoch: int, folder: Path) -> None:
        """``state`` is the ledger as this run has taken it up; ``folder`` is the batch's."""
        ids = [job.id for job in jobs]
        self._folder = folder
        self._epoch = epoch
        self._begun = time.time()
        self._first_start: dict[str, float] = {}
        self._attempts = {job_id: [*map(_past, attempts)] for job_id, attempts in state.attempts.items()}
        self._lines = [result.line for result in state.results.values()]
        self._stored = [attempt for job_id in ids for attempt in state.attempts.get(job_id, ())]
        self._results: dict[str, JobResult] = {
            job_id: result_decoder.decode(state.results[job_id].line) for job_id in ids if job_id in state.results
        }

    def fill(self, tally: Tally) -> None:
        """Tell ``tally`` of the runs before this one."""
        tally.take_history((result.status for result in self._results.values()), self._stored)

    def lines(self) -> list[bytes]:
        """The lines of the verdicts before this run, in the order in which they came; of jobs that are gone too."""
        return self._lines

    def results(self) -> list[JobResult]:
        """The verdicts of the jobs that are in the file."""
        return list(self._results.values())

    def started(self, job_id: str) -> None:
        """An attempt of the job begins."""
        self._first_start.setdefault(job_id, time.time())

    def add(self, job_id: str, report: AttemptReport) -> None:
        """An attempt of the job has ended."""
        line = AttemptLine(
            n=report.n,
            epoch=self._epoch,
            outcome=report.end.outcome,
            reason=report.end.reason,
            exit_code=report.exit_code,
            signal=report.signal,
            started_at=iso(report.started),
            ended_at=iso(report.ended),
            usage=report.usage,
        )
        self._attempts.setdefault(job_id, []).append(
            PastAttempt(
                line=line,
                usage_by_agent=report.usage_by_agent,
                uncertain_calls=report.uncertain_calls,
                seconds=report.ended - report.started,
            )
        )

    def have_result(self, result: JobResult) -> None:
        """The job has its verdict."""
        self._results[result.id] = result

    def result(
        self, job: PlannedJob, verdict: Verdict, retries_used: int, batch_id: str, report: AttemptReport | None
    ) -> JobResult:
        """The line of a verdict; ``report`` is that of the attempt that it comes from, None: no attempt of this run."""
        bare = self._bare(job, verdict, batch_id, retries_used)
        if report is None:
            return bare
        response, is_cut = cut(report.response)
        patch = report.patch
        return msgspec.structs.replace(
            bare,
            response=response,
            response_truncated=is_cut,
            session_id=report.session_id,
            patch=None if patch is None else os.path.relpath(patch.path, self._folder),
            changes=None if patch is None else patch.changes,
            check=report.check,
            log=None if report.log is None else os.path.relpath(report.log, self._folder),
            host=report.host or bare.host,
        )

    def _bare(self, job: PlannedJob, verdict: Verdict, batch_id: str, retries_used: int) -> JobResult:
        past = self._attempts.get(job.id, [])
        now = iso(time.time())
        return JobResult(
            batch_id=batch_id,
            id=job.id,
            index=job.line.index,
            status=verdict.status,
            reason=verdict.reason,
            success=verdict.status == "ok",
            response="",
            response_truncated=False,
            session_id=None,
            provider=job.settings.model.provider,
            model=job.settings.model.model,
            attempt=past[-1].line.n if past else 0,
            retries_used=retries_used,
            attempts=tuple(attempt.line for attempt in past),
            usage=sum((attempt.line.usage for attempt in past), Usage()),
            usage_by_agent=summed(attempt.usage_by_agent for attempt in past),
            uncertain_calls=sum(attempt.uncertain_calls for attempt in past),
            cost_usd=None,
            wall_ms=round(1000 * sum(attempt.seconds for attempt in past)),
            queue_ms=round(1000 * (self._first_start.get(job.id, self._begun) - self._begun)),
            started_at=past[0].line.started_at if past else now,
            ended_at=past[-1].line.ended_at if past else now,
            cwd=str(job.source),
            isolation=job.isolation,
            base=job.base,
            patch=None,
            changes=None,
            check=None,
            log=None,
            host=socket.gethostname(),
            spec_sha256=job.spec_sha,
            tags=job.line.tags,
            metadata=job.line.metadata,
        )


def _past(attempt: StoredAttempt) -> PastAttempt:
    ended = attempt.ended if attempt.ended is not None else attempt.started
    line = AttemptLine(
        n=attempt.n,
        epoch=attempt.epoch,
        outcome=attempt.outcome or "lost",
        reason=attempt.reason,
        exit_code=attempt.exit_code,
        signal=attempt.signal,
        started_at=iso(attempt.started),
        ended_at=iso(ended),
        usage=attempt.usage,
    )
    return PastAttempt(
        line=line,
        usage_by_agent=attempt.usage_by_agent,
        uncertain_calls=attempt.uncertain_calls,
        seconds=ended - attempt.started,
    )
