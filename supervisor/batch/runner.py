"""One run of a batch: one supervisor, one spawner, all jobs.

The pure machines decide (`schedule`, `halting`, `outcome`); this shell starts attempts, hands what they came to to the
books, and obeys signals.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager

import msgspec
import trio

from protocol.usage import Usage
from supervisor.admission import available_memory
from supervisor.batch.attempt_maker import AttemptMaker
from supervisor.batch.books import Books
from supervisor.batch.cleaning import Cleaning, Leftover
from supervisor.batch.core.ending import end_reason, exit_code
from supervisor.batch.core.halting import Breaker, HaltJudge
from supervisor.batch.core.outcome import Verdict
from supervisor.batch.core.schedule import Schedule
from supervisor.batch.core.words import HaltReason
from supervisor.batch.flags import BatchOptions
from supervisor.batch.ledger import Ledger, LedgerState
from supervisor.batch.plan import Plan, PlannedJob
from supervisor.batch.progress import Snapshot
from supervisor.batch.records import JobResult
from supervisor.batch.remote.ray_cluster import RayCluster
from supervisor.batch.report import AttemptReport, RunningAttempt
from supervisor.batch.resume import Resumption, scheduled
from supervisor.batch.watches import Watches
from supervisor.batch.ways_out import WaysOut
from supervisor.endpoints import Endpoints
from supervisor.errors import StorageFailed
from supervisor.grant_gate import endpoint_name
from supervisor.spawn import Spawner

LOOK_AGAIN_SECONDS = 0.25
"""How soon a start that waits for memory, or for the endpoint's queue, is thought of again."""
STDOUT_SECONDS_AFTER_SIGNAL = 5.0


class BatchSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a run begins with: checked, locked, and the ledger open. ``state`` is the ledger as it is now."""

    options: BatchOptions
    plan: Plan
    resumption: Resumption
    is_resumed: bool
    state: LedgerState
    ledger: Ledger
    leftovers: tuple[Leftover, ...]
    cluster: RayCluster | None = None
    """What makes the attempts; None: this process."""


async def run_batch(setup: BatchSetup, spawner: Spawner) -> int:
    """Run the batch to its end, whatever that is; return the exit code."""
    return await BatchRun(setup, spawner).run()


class BatchRun:
    """The state of one run, and the tasks that share it."""

    def __init__(self, setup: BatchSetup, spawner: Spawner) -> None:
        options, plan, state = setup.options, setup.plan, setup.state
        self._setup = setup
        self._options = options
        self._spawner = spawner
        self._jobs = {job.id: job for job in plan.jobs if job.id not in state.results}
        given_up = setup.resumption.given_up
        self._schedule = Schedule(
            [scheduled(job, state) for job in self._jobs.values() if job.id not in given_up],
            retry_on=options.retry_on,
            started_at=trio.current_time(),
        )
        self._live: dict[str, tuple[RunningAttempt, float]] = {}
        self._changed = trio.Event()
        self._books = Books(options, plan, state, setup.ledger, setup.resumption.orphaned, self._storage_failed)
        self._ways_out = WaysOut(self._schedule, self._books, self._live, lambda: self._changed.set())
        self._judge = HaltJudge(options.halt, len(plan.jobs))
        self._breaker = Breaker(options.breaker)
        self._endpoints = Endpoints()
        self._maker = AttemptMaker(
            options, setup.ledger, self._books, spawner, self._endpoints, setup.cluster, self._take_usage
        )
        self._cleaning = Cleaning(self._maker.isolation, setup.ledger, options.keep, self._books.progress.note)

    # -- the run ------------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Run to the end; return the exit code."""
        with _signal_receiver() as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._spawner.run)
                attempts_scope = trio.CancelScope()
                nursery.start_soon(self._ways_out.obey_signals, signals, self._options.drain, attempts_scope, nursery)
                self._begin(nursery)
                repositories = {job.repository.common for job in self._jobs.values() if job.repository is not None}
                await self._cleaning.before(self._setup.leftovers, repositories)
                await self._maker.begin()
                with attempts_scope:
                    async with trio.open_nursery() as attempts:
                        await self._give_up_lost()
                        self._check_budget()
                        await self._dispatch(attempts)
                await self._maker.end(at_once=bool(self._ways_out.signals))
                code = await self._end()
                nursery.cancel_scope.cancel()
        return code

    def _begin(self, nursery: trio.Nursery) -> None:
        total = len(self._setup.plan.jobs)
        self._books.open(total=total, pending=len(self._jobs), resumed=self._setup.is_resumed)
        watches = Watches(self._books, self._snapshot)
        nursery.start_soon(watches.keep_summary)
        nursery.start_soon(watches.beat, self._options.heartbeat)
        nursery.start_soon(watches.draw)
        nursery.start_soon(watches.be_patient, self._options.patience, self._endpoints, self._ways_out.halt)
        if self._options.batch_timeout is not None:
            nursery.start_soon(self._ways_out.watch_time, self._options.batch_timeout)

    async def _dispatch(self, attempts: trio.Nursery) -> None:
        """Start jobs until nothing runs and nothing will start."""
        while not self._schedule.is_over:
            self._changed = trio.Event()
            slots = self._slots()
            while (found := self._schedule.start_next(trio.current_time(), slots=slots)) is not None:
                self._start(attempts, *found)
                slots = self._slots()
            now = trio.current_time()
            deadline = self._schedule.next_deadline(now)
            if slots < self._options.slots:
                deadline = min(deadline, now + LOOK_AGAIN_SECONDS)
            with trio.move_on_at(deadline):
                await self._changed.wait()

    def _slots(self) -> int:
        """How many jobs may run at once as things are: fewer where memory is short or calls queue already."""
        available = available_memory() if self._setup.cluster is None else None  # elsewhere, elsewhere's counts
        if available is not None and available < self._setup.plan.plain.memory.free:
            return 1
        return self._options.least_slots if self._endpoints.has_queue else self._options.slots

    def _start(self, attempts: trio.Nursery, job_id: str, n: int) -> None:
        attempt = self._maker.make(self._jobs[job_id], n)
        self._live[job_id] = (attempt, trio.current_time())
        self._books.started(job_id)
        attempts.start_soon(self._see_through, self._jobs[job_id], attempt)

    async def _see_through(self, job: PlannedJob, attempt: RunningAttempt) -> None:
        report = await attempt.run()
        del self._live[job.id]
        self._books.ended(job.id, report)
        follows = self._schedule.end(trio.current_time(), job.id, report.end)
        retries = self._schedule.retries_used(job.id)
        try:
            if isinstance(follows, Verdict):
                self._judged(await self._books.give_verdict(job, follows, retries, report, self._snapshot()))
            else:
                self._heed(job, report)
                await self._books.put_back(job, follows, retries, report)
        except StorageFailed as error:
            self._ways_out.storage_failed(self._setup.ledger.explain(error))
        finally:
            self._changed.set()
        if not self._ways_out.storage_failure:
            await self._cleaning.after(job, report, follows)

    def _judged(self, result: JobResult) -> None:
        """There is a new verdict: it may be one too many of its kind."""
        if (when := self._judge.take(result.status)) is not None:
            self._ways_out.halt(when, "halt")
        if self._breaker.take(result.status, result.reason):
            self._books.progress.note(f"the first {self._options.breaker} verdicts are all {result.status}: halting")
            self._ways_out.halt("soon", "breaker")

    def _heed(self, job: PlannedJob, report: AttemptReport) -> None:
        """An attempt ended through no fault of the job: that may concern all."""
        if report.end.out_of_room:
            self._ways_out.storage_failed(report.end.message)
        elif report.end.outcome == "provider":
            self._books.progress.note(f"{job.id}: {report.end.message}")
            self._ways_out.halt("soon", "provider")
        elif report.end.outcome == "throttle":
            self._endpoints.gave_up(endpoint_name(job.settings.model))

    async def _give_up_lost(self) -> None:
        """Jobs that took their runner down with them too often get their verdict."""
        verdict = Verdict(status="crashed", reason="runner_lost")
        for job_id in self._setup.resumption.given_up:
            job, retries = self._jobs[job_id], self._setup.state.jobs[job_id].retries_used
            try:
                self._judged(await self._books.give_verdict(job, verdict, retries, None, self._snapshot()))
            except StorageFailed as error:
                self._ways_out.storage_failed(self._setup.ledger.explain(error))

    def _take_usage(self, job_id: str, n: int, used: Usage) -> None:
        self._books.used(job_id, n, used)
        self._check_budget()

    def _check_budget(self) -> None:
        self._ways_out.check_budget(self._options.max_tokens_total, self._options.on_budget)

    def _storage_failed(self, message: str) -> None:
        self._ways_out.storage_failed(message)

    async def _end(self) -> int:
        """Write the end everywhere; return the exit code."""
        failure, ways_out = self._setup.ledger.failure, self._ways_out
        if failure is not None:
            ways_out.storage_failed(self._setup.ledger.explain(failure))
        halt, tally = self._schedule.halt, self._books.tally
        why: HaltReason | None = "storage" if ways_out.storage_failure else "signal" if ways_out.signals else None
        reason = end_reason(why or (halt.reason if halt is not None else None), tally.statuses, tally.pending)
        code = exit_code(
            reason,
            tally.statuses,
            tally.pending,
            signal=ways_out.signals[0] if ways_out.signals else None,
            no_fail=self._options.no_fail,
        )
        await self._books.close(code, reason, STDOUT_SECONDS_AFTER_SIGNAL if ways_out.signals else None)
        return code

    def _snapshot(self) -> Snapshot:
        now = trio.current_time()
        return self._books.snapshot({job_id: now - since for job_id, (_, since) in self._live.items()})


@contextmanager
def _signal_receiver() -> Generator[AsyncIterator[int], None, None]:
    """The signals that end a run. A SIGHUP that is ignored (nohup) stays ignored."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    with trio.open_signal_receiver(*numbers) as signals:
        yield signals
