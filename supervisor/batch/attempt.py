"""One attempt of a job: a folder to work in, a turn, a check, a patch."""

from __future__ import annotations

import time
from pathlib import Path

import trio

from protocol.command_frames import CommandEnded
from protocol.frames import Finished
from supervisor.batch.attempt_turn import AttemptTurn
from supervisor.batch.commands import plain_environment
from supervisor.batch.core.job_file import Check
from supervisor.batch.core.outcome import AttemptEnd, setup_failed, storage_failed
from supervisor.batch.folder import attempt_folder
from supervisor.batch.isolation import WORK, PatchFailed, SetupFailed, WorkPlace
from supervisor.batch.plan import PlannedJob
from supervisor.batch.records import CheckResult
from supervisor.batch.report import AttemptReport, Findings, Surroundings
from supervisor.batch.stopping import Stopping
from supervisor.errors import StorageFailed
from supervisor.store.session_store import Ticket

PATCH_SECONDS = 120.0


class Attempt:
    """Makes one attempt; `stop` ends it early."""

    def __init__(self, job: PlannedJob, n: int, around: Surroundings) -> None:
        self._job = job
        self._n = n
        self._around = around
        self._journal = around.journal(job.id, n)
        self._folder = attempt_folder(around.folder, job.id, n)
        self._stopping = Stopping()
        self._last_scope = trio.CancelScope()
        """Of the patch, which only a kill ends early."""
        self._turn: AttemptTurn | None = None
        self._findings = Findings(n, time.time())

    async def run(self) -> AttemptReport:
        """See the attempt to its end; its start is in the ledger then, its end is the caller's to write."""
        try:
            end = await self._live()
        except Exception as error:  # a defect of ours in one attempt must not end the others
            self._around.on_note(f"{self._job.id}: a defect of corral ended the attempt: {error!r}")
            end = AttemptEnd(outcome="crashed", reason="defect", message=repr(error))
        if self._turn is not None:
            self._turn.close()
        return self._findings.report(end, time.time())

    def stop(self, ending: Finished, *, kill: bool = False) -> None:
        """End the attempt as ``ending`` says; the first ending counts. ``kill``: at once, whatever is under way."""
        ending = self._stopping.stop(ending)
        if self._turn is not None:
            self._turn.stop(ending, kill=kill)
        if kill:
            self._last_scope.cancel()

    async def _live(self) -> AttemptEnd:
        try:
            place, begun = await self._prepare()
        except SetupFailed as error:
            return error.end
        if place is None:
            return self._stopping.as_end()
        self._findings.note(place=place)
        self._turn = AttemptTurn(self._job, self._n, self._around, self._journal, begun, self._findings)
        if self._stopping.ending is not None:
            self._turn.stop(self._stopping.ending)
        end = await self._turn.run(place.root)
        if end.outcome == "ok" and self._job.line.check is not None:
            end = await self._check(place)
        if place.admin is not None:
            await self._write_patch(place)
        return end

    # -- the folder ---------------------------------------------------------------------------------------------------

    async def _prepare(self) -> tuple[WorkPlace | None, Ticket]:
        """The folder to work in, None if the attempt was stopped meanwhile, and when the ledger knows of the attempt.

        Raises `SetupFailed`.
        """
        job = self._job
        workdir = None if job.isolation == "none" else str((self._folder / WORK).relative_to(self._around.folder))
        begun = self._journal.begin(workdir, self._findings.started)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if workdir is not None:
                await begun.wait()  # a folder that the ledger does not know would never be removed
                self._findings.note(place=WorkPlace(root=self._folder, work=self._folder / WORK))
        except OSError as error:
            message = f"{self._folder} can't be made: {error.strerror or error}"
            raise SetupFailed(setup_failed("folder", message, error.errno)) from None
        except StorageFailed as error:
            raise SetupFailed(storage_failed(error.code, str(error))) from None
        place: WorkPlace | None = None
        with self._stopping.leavable():
            place = await self._around.isolation.prepare(job, self._folder)
        return (place if self._stopping.ending is None else None), begun

    # -- after the turn -----------------------------------------------------------------------------------------------

    async def _check(self, place: WorkPlace) -> AttemptEnd:
        check = self._job.line.check
        assert check is not None and self._turn is not None
        try:
            ended = await self._run_check(check, place.root)
        except OSError as error:
            return setup_failed("check", f"its check could not be started: {error.strerror}", error.errno)
        if ended is None:
            return self._stopping.as_end()
        self._findings.note(check=CheckResult(exit_code=ended.exit_code))
        if ended.stdout or ended.stderr:
            self._turn.log((ended.stdout + ended.stderr).decode(errors="replace"))
        if ended.exit_code == 0:
            return AttemptEnd(outcome="ok")
        if ended.exit_code is None:
            message = f"its check took longer than {check.timeout_s:g} s"
            return AttemptEnd(outcome="check_failed", reason="check_timeout", message=message)
        message = f"its check ended with {ended.exit_code}"
        return AttemptEnd(outcome="check_failed", reason="check_exit", message=message)

    async def _run_check(self, check: Check, root: Path) -> CommandEnded | None:
        """How the check ended; None if the attempt was stopped meanwhile. Raises `OSError`."""
        with self._stopping.leavable():
            command, environment = ("sh", "-c", check.cmd), plain_environment(self._job.line.env)
            return await self._around.commands.run(command, root, environment, check.timeout_s)
        return None

    async def _write_patch(self, place: WorkPlace) -> None:
        """Write down what was changed; where that fails the work folder stays."""
        base, isolation = self._job.base, self._around.isolation
        assert base is not None
        self._findings.note(must_keep=True)
        with self._last_scope, trio.move_on_after(PATCH_SECONDS):
            try:
                patch = await isolation.patch(place, base, self._folder)
                problem = await self._keep_ref(place) if self._around.keeps_refs else ""
            except (PatchFailed, OSError) as error:
                self._around.on_note(f"{self._job.id}: {place.work} is kept, its patch could not be made: {error}")
                return
            self._findings.note(patch=patch, must_keep=False)
            if problem:
                self._around.on_note(f"{self._job.id}: its ref could not be made: {problem}")
        (self._folder / "index.tmp").unlink(missing_ok=True)

    async def _keep_ref(self, place: WorkPlace) -> str:
        name = f"refs/corral/{self._around.batch_id}/{self._job.id}"
        return await self._around.isolation.keep_as_ref(place, self._folder, name, f"corral: {self._job.id}")
