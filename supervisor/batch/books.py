"""The books of a run: what the ledger, ``results.jsonl``, ``summary.json`` and whoever watches are told.

The ledger comes first, always: what it does not have, nobody has been told.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping

import msgspec
import trio

from protocol.codec import encode_json
from protocol.usage import Usage
from supervisor.batch import ledger_schema as schema
from supervisor.batch.core.outcome import Again, Verdict
from supervisor.batch.core.words import EndReason, RetryClass
from supervisor.batch.flags import BatchOptions
from supervisor.batch.folder import SUMMARY, ResultsFile, write_whole
from supervisor.batch.history import History
from supervisor.batch.ledger import Ledger, LedgerState
from supervisor.batch.output import Output
from supervisor.batch.plan import Plan, PlannedJob
from supervisor.batch.progress import Snapshot, make_progress
from supervisor.batch.records import (
    BatchProgress,
    BatchStart,
    BatchSummary,
    JobResult,
    JobRetry,
    JobStart,
    StoredSummary,
)
from supervisor.batch.report import AttemptReport
from supervisor.batch.tally import Tally
from supervisor.store.schema import Write


class Books:
    """Keeps them. ``on_full`` is told, with a sentence, when a file can't be written."""

    def __init__(
        self,
        options: BatchOptions,
        plan: Plan,
        state: LedgerState,
        ledger: Ledger,
        orphaned: tuple[str, ...],
        on_full: Callable[[str], None],
    ) -> None:
        """To be made within a trio run."""
        self._options = options
        self._ledger = ledger
        self._orphaned = orphaned
        self._on_full = on_full
        self._history = History(plan.jobs, state, ledger.epoch, options.folder)
        self._results: ResultsFile | None = None
        self._summary_lock = threading.Lock()
        self._in_turn = trio.Lock()
        self._has_last_summary = False
        self.tally = Tally(len(plan.jobs))
        self._history.fill(self.tally)
        self.output = Output(plan.plain.output_format, include_events=options.include_events)
        self.progress = make_progress(options.progress, quiet=plan.plain.quiet)

    def open(self, *, total: int, pending: int, resumed: bool) -> None:
        """Make ``results.jsonl`` anew and write the first lines."""
        try:
            self._results = ResultsFile(self._options.folder, self._history.lines())
        except OSError as error:
            self._on_full(f"results.jsonl can't be written: {error.strerror or error}")
        self.output.begin()
        batch_id = self._ledger.batch_id
        self.output.emit(BatchStart(batch_id=batch_id, total=total, pending=pending, resumed=resumed))

    def started(self, job_id: str) -> None:
        """An attempt of the job begins."""
        self._history.started(job_id)

    def has_process(self, job_id: str, n: int, pid: int) -> None:
        """The attempt has its process."""
        self.output.emit(JobStart(id=job_id, attempt=n, pid=pid))

    def ended(self, job_id: str, report: AttemptReport) -> None:
        """An attempt has ended."""
        self.tally.end_attempt(job_id, report.n, report.usage, report.uncertain_calls)
        self._history.add(job_id, report)

    async def give_verdict(
        self, job: PlannedJob, verdict: Verdict, retries_used: int, report: AttemptReport | None, now: Snapshot
    ) -> JobResult:
        """Commit the verdict, with the end of its attempt, then tell of it. Raises `StorageFailed`.

        ``report`` is None where no attempt of this run led to it. ``now`` is what runs, for whoever watches.
        """
        result = self._history.result(job, verdict, retries_used, self._ledger.batch_id, report)
        line = encode_json(result)
        writes = schema.put_verdict(job.id, verdict.status, line, retries_used)
        if report is not None:
            writes += _end_rows(job, report)
        # One at a time, in turn: the lines of the file are in the ledger's order, also where they are made anew.
        async with self._in_turn:
            await self._ledger.write(*writes).wait()
            self._append(line)
        self._history.have_result(result)
        self.tally.take_verdict(result.status, 0.0 if report is None else report.ended - report.started)
        self.output.result(line)
        self.progress.verdict(result, msgspec.structs.replace(now, counts=self.tally.counts()))
        return result

    def _append(self, line: bytes) -> None:
        if self._results is None:
            return
        try:
            self._results.append(line)
        except OSError as error:
            self._on_full(f"results.jsonl can't be written: {error.strerror or error}")

    async def put_back(self, job: PlannedJob, again: Again, retries_used: int, report: AttemptReport) -> None:
        """Commit that the job is pending again, with the end of its attempt. Raises `StorageFailed`."""
        not_before = time.time() + again.delay if again.delay else None
        back = schema.put_back(job.id, retries_used, None, not_before)
        await self._ledger.write(*_end_rows(job, report), back).wait()
        kind: RetryClass | str | None = "throttle" if report.end.outcome == "throttle" else again.retry
        if kind is not None:
            self.tally.retries += 1
            self.output.emit(JobRetry(id=job.id, attempt=report.n, kind=kind, delay_ms=round(again.delay * 1000)))

    # -- what is told now and then ------------------------------------------------------------------------------------

    def snapshot(self, running: Mapping[str, float]) -> Snapshot:
        """The batch as it is now; ``running`` are the seconds that each job has run."""
        return Snapshot(
            counts=self.tally.counts(),
            running=tuple(sorted(running.items(), key=lambda each: -each[1])),
            retries=self.tally.retries,
            tokens=self.tally.usage.total_tokens,
            eta_seconds=self.tally.eta_seconds(self._options.slots),
        )

    def beat(self, snapshot: Snapshot) -> None:
        """Tell where the batch stands; not any more once it has ended, while the last lines wait for their reader."""
        if self._has_last_summary:
            return
        self.progress.heartbeat(snapshot)
        eta = snapshot.eta_seconds
        self.output.emit(
            BatchProgress(
                counts=snapshot.counts,
                running=len(snapshot.running),
                retries=snapshot.retries,
                usage=self.tally.usage,
                eta_ms=None if eta is None else round(eta * 1000),
            )
        )

    def write_summary(self, code: int | None = None, reason: EndReason | None = None) -> None:
        """Write ``summary.json``; may be called from a thread. Blocks until it is on the disk.

        The one with a code is the last: none that comes late takes its place.
        """
        summary = self._summary(code, reason)
        stored = StoredSummary(**msgspec.structs.asdict(summary), orphaned=self._orphaned)
        with self._summary_lock:
            if self._has_last_summary:
                return
            self._has_last_summary = code is not None
            try:
                write_whole(self._options.folder / SUMMARY, encode_json(stored) + b"\n")
            except OSError as error:
                self.progress.note(f"{SUMMARY} can't be written: {error.strerror or error}")

    async def close(self, code: int, reason: EndReason, stdout_seconds: float | None) -> None:
        """Write the end everywhere; whoever reads standard output has so long for it, None: as long as it takes."""
        await self._ledger.write(schema.end_run(self._ledger.epoch, code, reason, time.time())).wait_quietly()
        self.write_summary(code, reason)
        self.progress.close()
        self.output.end(self._summary(code, reason), self._history.results())
        await self.output.finish(math.inf if stdout_seconds is None else stdout_seconds)
        if self._results is not None:
            self._results.close()

    def used(self, job_id: str, n: int, used: Usage) -> None:
        """What an attempt has used so far."""
        self.tally.take_usage(job_id, n, used)

    def _summary(self, code: int | None, reason: EndReason | None) -> BatchSummary:
        return BatchSummary(
            batch_id=self._ledger.batch_id,
            counts=self.tally.counts(),
            usage=self.tally.usage,
            uncertain_calls=self.tally.uncertain_calls,
            cost_usd=None,
            not_run=self.tally.pending,
            exit_code=code,
            reason=reason,
        )


def _end_rows(job: PlannedJob, report: AttemptReport) -> list[Write]:
    rows = [schema.end_attempt(job.id, report.n, report.end, report.ended, report.exit_code, report.signal)]
    if report.patch is not None:
        rows.append(schema.put_patch(job.id, report.n, report.patch.sha256))
    return rows
