"""An attempt that is made on another machine, as the batch sees it."""

from __future__ import annotations

import time

import msgspec
import trio

from protocol.errors import FrameCutOff, HandshakeMismatch, ProtocolError
from protocol.frame_stream import FrameStream
from protocol.frames import Finished
from supervisor.batch import git
from supervisor.batch.attempt_log import AttemptLog
from supervisor.batch.core.outcome import AttemptEnd, setup_failed, storage_failed
from supervisor.batch.folder import attempt_folder
from supervisor.batch.isolation import PATCH, SetupFailed
from supervisor.batch.plan import PlannedJob
from supervisor.batch.remote.frames import SILENCE_SECONDS, Begin, Halt, UpFrame, up_decoder
from supervisor.batch.remote.hearing import Hearing
from supervisor.batch.remote.nodes import Nodes, NodeStream
from supervisor.batch.remote.order import Order, encode_order
from supervisor.batch.remote.parcels import Parcel, Parcels
from supervisor.batch.remote.token import Token
from supervisor.batch.report import AttemptReport, Findings, Surroundings
from supervisor.batch.stopping import Stopping
from supervisor.errors import StorageFailed

NODE_LOST = "node_lost"


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """Where attempts are made, and what is brought there. ``epoch`` is the run of the batch, from 1."""

    nodes: Nodes
    parcels: Parcels
    epoch: int
    copy_max: int


class RemoteAttempt:
    """Has one attempt made elsewhere. See `RunningAttempt`."""

    def __init__(self, job: PlannedJob, n: int, around: Surroundings, elsewhere: Elsewhere) -> None:
        self._job = job
        self._n = n
        self._around = around
        self._elsewhere = elsewhere
        self._journal = around.journal(job.id, n)
        self._folder = attempt_folder(around.folder, job.id, n)
        self._token = Token(batch_id=around.batch_id, epoch=elsewhere.epoch, job_id=job.id, n=n)
        self._stopping = Stopping()
        self._frames: FrameStream[UpFrame] | None = None
        self._log: AttemptLog | None = None
        self._findings = Findings(n, time.time())

    async def run(self) -> AttemptReport:
        """See `RunningAttempt.run`."""
        try:
            try:
                end = await self._live()
            except SetupFailed as error:
                end = error.end
            except Exception as error:  # a defect of ours in one attempt must not end the others
                self._around.on_note(f"{self._job.id}: a defect of corral ended the attempt: {error!r}")
                end = AttemptEnd(outcome="crashed", reason="defect", message=repr(error))
            if self._log is not None and end.outcome in ("crashed", "setup"):
                self._log.note(end.message)
            return self._findings.report(end, time.time())
        finally:
            log, self._log = self._log, None
            if log is not None:
                log.close()

    def stop(self, ending: Finished, *, kill: bool = False) -> None:
        """See `RunningAttempt.stop`."""
        ending = self._stopping.stop(ending)
        if self._frames is not None:
            self._frames.put(Halt(ending=ending, kill=kill))

    async def _live(self) -> AttemptEnd:
        try:
            await self._journal.begin(None, self._findings.started).wait()
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._log = self._around.open_log(self._job.id, self._n, self._log_failed)
        except StorageFailed as error:
            return storage_failed(error.code, str(error))
        except OSError as error:
            message = f"{self._folder} can't be made: {error.strerror or error}"
            return setup_failed("folder", message, error.errno)
        self._findings.note(log=self._log.path)
        with self._stopping.leavable():
            parcel = await self._elsewhere.parcels.of(self._job)
            stream = await self._start(parcel)
            return await self._converse(stream, parcel, self._log)
        return self._stopping.as_end()

    async def _start(self, parcel: Parcel | None) -> NodeStream:
        try:
            return await self._elsewhere.nodes.start(self._token, parcel, self._job.settings.spawn)
        except OSError as error:
            raise SetupFailed(setup_failed("cluster", f"the cluster takes no job: {error}")) from None

    # -- while it runs ------------------------------------------------------------------------------------------------

    async def _converse(self, stream: NodeStream, parcel: Parcel | None, log: AttemptLog) -> AttemptEnd:
        frames = FrameStream(stream, up_decoder)
        hearing = Hearing(
            self._token,
            frames,
            folder=self._folder,
            journal=self._journal,
            endpoints=self._around.endpoints,
            log=log,
            findings=self._findings,
            on_note=self._around.on_note,
        )
        frames.put(Begin(order=self._order(parcel)))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(frames.run_writer)
                end = await self._hear(frames, hearing, log)
                nursery.cancel_scope.cancel()
        finally:
            self._frames = None
            hearing.close()
            with trio.CancelScope(shield=True):
                await stream.aclose()
        if hearing.report is None:
            return end or self._end_of_lost(stream.why_ended)
        if hearing.report.patch is not None and self._around.keeps_refs:
            await self._keep_ref()
        return hearing.report.end

    async def _hear(self, frames: FrameStream[UpFrame], hearing: Hearing, log: AttemptLog) -> AttemptEnd | None:
        """Hear the other side out; how the attempt ends if that went wrong."""
        limit = float("inf")  # until a machine takes it: a cluster may have no room for long
        try:
            while hearing.report is None:
                messages: list[UpFrame] | None = None
                with trio.move_on_after(limit):
                    messages = await frames.receive()
                if messages is None:
                    return self._end_of_lost(f"its machine said nothing for {SILENCE_SECONDS:g} s")
                if not messages:
                    break
                self._is_taken(frames)
                limit = SILENCE_SECONDS
                for message in messages:
                    hearing.take(message)
                await log.room()
        except HandshakeMismatch as error:
            return setup_failed("version", str(error))
        except FrameCutOff:
            return None  # the stream knows why it ended
        except ProtocolError as error:
            return AttemptEnd(outcome="crashed", reason="broken_wire", message=str(error))
        except OSError as error:
            return setup_failed("patch", f"its patch can't be written: {error.strerror or error}", error.errno)
        return None

    def _is_taken(self, frames: FrameStream[UpFrame]) -> None:
        """A machine has the attempt: from now on it is asked to stop, not left."""
        if not self._stopping.stay():
            return
        self._frames = frames
        if self._stopping.ending is not None:
            frames.put(Halt(ending=self._stopping.ending, kill=False))

    def _order(self, parcel: Parcel | None) -> bytes:
        name = None if parcel is None else parcel.name
        return encode_order(Order(job=self._job, n=self._n, parcel=name, copy_max=self._elsewhere.copy_max))

    def _end_of_lost(self, why: str) -> AttemptEnd:
        """No report will come: the other machine is gone, or was told to go."""
        if self._stopping.ending is not None:
            return self._stopping.as_end()
        message = why or "its process ended without a word"
        return AttemptEnd(outcome="crashed", reason=NODE_LOST, message=message)

    def _log_failed(self, error: OSError) -> None:
        message = f"its log can't be written: {error.strerror}"
        self.stop(Finished(outcome="error", code="storage_failed", message=message))

    async def _keep_ref(self) -> None:
        """Make a commit of the patch, under the name that the job has."""
        repository, base = self._job.repository, self._job.base
        assert repository is not None and base is not None
        name = f"refs/corral/{self._around.batch_id}/{self._job.id}"
        command = git.ref_of_patch_command(base, self._folder / PATCH, name, f"corral: {self._job.id}")
        environment = git.bare_environment(repository, self._folder / "index.tmp")
        try:
            ended = await self._around.commands.run(command, self._folder, environment)
            problem = "" if ended.exit_code == 0 else ended.stderr.decode(errors="replace").strip()
        except OSError as error:
            problem = str(error)
        (self._folder / "index.tmp").unlink(missing_ok=True)
        if problem:
            self._around.on_note(f"{self._job.id}: its ref could not be made: {problem}")
