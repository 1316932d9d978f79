"""Makes the attempts of a run: in this process's own workers, or on the machines of a cluster."""

from __future__ import annotations

from collections.abc import Callable

import trio

from protocol.usage import Usage
from supervisor.batch.attempt import Attempt
from supervisor.batch.attempt_log import FileLog
from supervisor.batch.books import Books
from supervisor.batch.commands import Commands
from supervisor.batch.flags import BatchOptions
from supervisor.batch.folder import attempt_folder
from supervisor.batch.isolation import Isolation
from supervisor.batch.journal import LedgerJournal
from supervisor.batch.ledger import Ledger
from supervisor.batch.plan import PlannedJob
from supervisor.batch.remote.attempt import Elsewhere, RemoteAttempt
from supervisor.batch.remote.parcels import Parcels
from supervisor.batch.remote.ray_cluster import RayCluster
from supervisor.batch.report import RunningAttempt, Surroundings
from supervisor.endpoints import Endpoints
from supervisor.spawn import Spawner

LEAVE_SECONDS_AFTER_SIGNAL = 1.0


class AttemptMaker:
    """Makes them, all alike. ``on_usage`` is told what each attempt has used so far."""

    def __init__(
        self,
        options: BatchOptions,
        ledger: Ledger,
        books: Books,
        spawner: Spawner,
        endpoints: Endpoints,
        cluster: RayCluster | None,
        on_usage: Callable[[str, int, Usage], None],
    ) -> None:
        """``cluster`` None: they are made here."""
        self._options = options
        self._ledger = ledger
        self._books = books
        self._cluster = cluster
        self._on_usage = on_usage
        commands = Commands(spawner)
        self.isolation = Isolation(commands, options.folder, copy_max=options.copy_max)
        self._around = Surroundings(
            batch_id=ledger.batch_id,
            folder=options.folder,
            journal=self._journal,
            spawner=spawner,
            commands=commands,
            isolation=self.isolation,
            endpoints=endpoints,
            keeps_refs=options.ref,
            on_note=books.progress.note,
            open_log=self._open_log,
        )
        self._elsewhere: Elsewhere | None = None
        if cluster is not None:
            parcels = Parcels(cluster.store, options.folder, copy_max=options.copy_max)
            self._elsewhere = Elsewhere(nodes=cluster, parcels=parcels, epoch=ledger.epoch, copy_max=options.copy_max)

    def make(self, job: PlannedJob, n: int) -> RunningAttempt:
        """The attempt ``n`` of a job, ready to run."""
        if self._elsewhere is None:
            return Attempt(job, n, self._around)
        return RemoteAttempt(job, n, self._around, self._elsewhere)

    async def begin(self) -> None:
        """Nothing of an earlier run lives on other machines when this returns. Source: the batch contract, rule L3."""
        if self._cluster is not None:
            await self._cluster.clear(self._ledger.batch_id, self._ledger.epoch)

    async def end(self, *, at_once: bool) -> None:
        """Leave nothing behind on other machines; ``at_once``: if that is quick."""
        if self._cluster is not None:
            with trio.move_on_after(LEAVE_SECONDS_AFTER_SIGNAL if at_once else float("inf")):
                await self._cluster.leave(self._ledger.batch_id, self._ledger.epoch)

    def _journal(self, job_id: str, n: int) -> LedgerJournal:
        return LedgerJournal(
            self._ledger,
            job_id,
            n,
            on_process=self._books.has_process,
            on_usage=self._on_usage,
            is_elsewhere=self._cluster is not None,
        )

    def _open_log(self, job_id: str, n: int, on_failure: Callable[[OSError], None]) -> FileLog:
        log, output = FileLog(attempt_folder(self._options.folder, job_id, n), on_failure), self._books.output
        if output.passes_events:
            log.pass_on(job_id, n, output.pass_on, output.room)
        return log
