"""The turn of an attempt: a session of its own, the one prompt, the tree of agents that works on it."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import msgspec
import trio

from protocol.frames import Finished
from supervisor import exit_codes
from supervisor.batch.attempt_log import AttemptLog
from supervisor.batch.attempt_sink import AttemptSink
from supervisor.batch.core.outcome import AttemptEnd, end_of_turn, setup_failed, storage_failed
from supervisor.batch.journal import Journal
from supervisor.batch.plan import PlannedJob
from supervisor.batch.report import Findings, Surroundings
from supervisor.conversation import Conversation, open_store
from supervisor.core.tagger import Tagger
from supervisor.errors import StorageFailed
from supervisor.hub import Hub
from supervisor.oneshot import CAPABILITIES
from supervisor.run import Run
from supervisor.spawn import Spawner, WorkerProcess
from supervisor.store.session_store import Ticket

_EXIT_CODES = {"sighup": 129, "sigint": 130, "sigterm": 143}
"""Of a turn that a signal to the batch ended."""


class AttemptTurn:
    """Runs it once; what becomes known goes into ``findings``."""

    def __init__(
        self, job: PlannedJob, n: int, around: Surroundings, journal: Journal, begun: Ticket, findings: Findings
    ) -> None:
        """``begun`` is done when the ledger knows of the attempt: no process starts before that."""
        self._job = job
        self._n = n
        self._around = around
        self._journal = journal
        self._begun = begun
        self._findings = findings
        self._stopping: Finished | None = None
        self._run: Run | None = None
        self._log: AttemptLog | None = None
        self._spawn_errno: int | None = None

    async def run(self, root: Path) -> AttemptEnd:
        """Run the turn in ``root``."""
        settings = msgspec.structs.replace(self._job.settings, project_root=root.resolve())
        try:
            store = await trio.to_thread.run_sync(open_store, settings)
        except StorageFailed as error:
            return storage_failed(error.code, str(error))
        try:
            self._journal.has_session(store.session_id)
            self._findings.note(session_id=store.session_id)
            try:
                self._log = log = self._around.open_log(self._job.id, self._n, self._log_failed)
            except OSError as error:
                return setup_failed("log", f"its log can't be written: {error.strerror or error}", error.errno)
            self._findings.note(log=log.path)
            sink = AttemptSink(log, store.main_agent_id, self._take_usage)
            hub, spawner = Hub(Tagger(store.session_id), [sink]), _TurnSpawner(self._around.spawner, self)
            return await self._converse(Conversation(settings, store, hub, spawner), settings.prompt, sink)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(store.close)

    def stop(self, ending: Finished, *, kill: bool = False) -> None:
        """End the turn as ``ending`` says; the first ending counts."""
        self._stopping = self._stopping or ending
        if self._run is not None:
            self._run.stop(self._stopping)
            if kill:
                self._run.kill_all()

    def log(self, text: str) -> None:
        """Lines for ``stderr.log``."""
        if self._log is not None:
            self._log.note(text)

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()

    async def _converse(self, conversation: Conversation, prompt: str, sink: AttemptSink) -> AttemptEnd:
        conversation.open(CAPABILITIES)
        async with trio.open_nursery() as nursery:
            ending = await conversation.run_turn(prompt, partial(self._watch, nursery, sink))
            nursery.cancel_scope.cancel()
        run, self._run = self._run, None
        assert run is not None
        code = _EXIT_CODES.get(ending.code) or exit_codes.of_ending(ending)
        await conversation.close(ending, code)
        self._take_usage(run)
        crash = sink.crash if ending.outcome == "crashed" else None
        self._findings.note(
            response=ending.response,
            exit_code=code if crash is None else crash.exit_code,
            signal=None if crash is None else crash.signal,
        )
        return end_of_turn(ending, crash, self._spawn_errno)

    async def _watch(self, nursery: trio.Nursery, sink: AttemptSink, run: Run) -> None:
        """The turn has begun and can be stopped."""
        run.grants.share(self._around.endpoints)
        self._run = run
        sink.watch(run)
        if self._stopping is not None:
            run.stop(self._stopping)
        elif self._job.timeout is not None:
            nursery.start_soon(self._watch_time, self._job.timeout, run)

    async def _watch_time(self, seconds: float, run: Run) -> None:
        await trio.sleep(seconds)
        message = f"the time limit of {seconds:g} s was reached"
        run.stop(Finished(outcome="limit", code="timeout", message=message))

    # -- what is told on the way --------------------------------------------------------------------------------------

    async def committed(self) -> None:
        """Return when the ledger knows of the attempt. Raises `OSError` where it never will."""
        try:
            await self._begun.wait()
        except StorageFailed as error:
            self._spawn_errno = errno.ENOSPC
            raise OSError(errno.ENOSPC, str(error)) from None

    def has_process(self, process: WorkerProcess) -> None:
        """The root agent has its process."""
        self._journal.has_process(process.pid)

    def spawn_failed(self, error: OSError) -> None:
        """A process of the attempt could not be started."""
        self._spawn_errno = error.errno

    def _take_usage(self, run: Run) -> None:
        used, by_agent, uncertain = run.usage.run_total(), run.usage.by_name(), run.uncertain_calls
        self._findings.note(usage=used, usage_by_agent=by_agent, uncertain_calls=uncertain)
        self._journal.has_used(used, by_agent, uncertain)

    def _log_failed(self, error: OSError) -> None:
        message = f"its log can't be written: {error.strerror}"
        self.stop(Finished(outcome="error", code="storage_failed", message=message))


class _TurnSpawner:
    """Starts the workers of one turn: none before the ledger knows of the attempt; the first is the root's."""

    def __init__(self, spawner: Spawner, turn: AttemptTurn) -> None:
        self._spawner = spawner
        self._turn = turn
        self._has_root = False

    async def spawn(self, kind: str) -> WorkerProcess:
        """See `Spawner.spawn`."""
        await self._turn.committed()
        try:
            process = await self._spawner.spawn(kind)
        except OSError as error:
            self._turn.spawn_failed(error)
            raise
        if not self._has_root:
            self._has_root = True
            self._turn.has_process(process)
        return process

    async def run(self) -> None:
        """The batch runs the spawner that all attempts share."""

    def close(self) -> None:
        """The batch closes it."""
