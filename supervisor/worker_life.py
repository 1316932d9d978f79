"""One worker's life: from its process's start to its end, whatever that is.

The worker is an adversary as far as its frames go: it may send garbage, flood, fall silent, stop reading, close its
channel and live on. Each of these ends in a `WorkerEnd` with its cause, within bounded time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
import trio

from protocol.codec import upward_decoder
from protocol.errors import FrameCutOff, ProtocolError
from protocol.frame_stream import FrameStream
from protocol.frames import Cancel, DownwardFrame, Finished, Heartbeat, UpwardFrame
from protocol.handshake import OUT_OF_MEMORY_EXIT_CODE, check_ready
from protocol.records import AgentCrashed, CrashCause
from supervisor.core.worker_times import WorkerTimes
from supervisor.spawn import ExitStatus, Spawner, WorkerProcess
from supervisor.vital_signs import VitalSigns

DRAIN_SECONDS = 0.2
"""For what a dead worker had still sent, where something of its own holds its end of the channel open."""

_FAULT_REPORT = "Fatal Python error"


class WorkerEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker ended: with ``finished``, or with the ``cause`` of its death; None for both after a cancel."""

    finished: Finished | None = None
    cause: CrashCause | None = None
    status: ExitStatus | None = None
    detail: str = ""

    def as_record(self, agent_name: str, agent_id: str, restart: int | None) -> AgentCrashed:
        """The line that tells of a death; ``restart`` as it says."""
        assert self.cause is not None, "it did not die"
        return AgentCrashed(
            agent_name=agent_name,
            agent_id=agent_id,
            cause=self.cause,
            restart=restart,
            signal=self.status.signal if self.status else None,
            exit_code=self.status.code if self.status else None,
            detail=self.detail,
        )

    def in_words(self) -> str:
        """One line: a report of where the interpreter was is for `AgentCrashed` alone."""
        detail = self.detail.partition("\n")[0]
        if self.status is None:
            return detail
        if self.cause in ("signal", "exited_early"):
            signal, code = self.status.signal, self.status.code
            how = f"signal {signal}" if signal is not None else f"exit code {code}"
            return f"its process ended early with {how}{': ' if detail else ''}{detail}"
        return f"its process had to be given up ({self.cause}): {detail}"


class WorkerLife:
    """Runs one worker process. ``handle`` takes each frame of it, in order, and may raise `ProtocolError`."""

    def __init__(
        self,
        handle: Callable[[UpwardFrame], None],
        room: Callable[[], Awaitable[None]],
        times: WorkerTimes,
        kind: str = "agent",
    ) -> None:
        """``kind`` is a key of the table of kinds of worker."""
        self._kind = kind
        self._handle = handle
        self._room = room
        self._times = times
        self._process: WorkerProcess | None = None
        self._channel: FrameStream[UpwardFrame] | None = None
        self._cancelled = trio.Event()
        self._starting = trio.CancelScope()
        self._listening = trio.CancelScope()
        self._is_dead = False
        self._is_greeted = False
        self._early: list[DownwardFrame] = []
        self._finished: Finished | None = None
        self._signs = VitalSigns(times.silence)
        self._judged: tuple[CrashCause, str] | None = None
        self._cut_off = ""
        self._has_all_stderr = trio.Event()

    @property
    def pid(self) -> int | None:
        """The process, once there is one."""
        return None if self._process is None else self._process.pid

    def tell(self, message: DownwardFrame) -> None:
        """Send ``message``: behind the assignment, where the worker has not taken that yet."""
        if self._is_greeted and self._channel is not None:
            self._channel.put(message)
        else:
            self._early.append(message)

    def cancel(self, reason: str) -> None:
        """Tell the worker to stop; it is killed if it has not in time, and at once if it has not begun."""
        self._cancelled.set()
        self._starting.cancel()
        if self._is_greeted:
            self.tell(Cancel(reason=reason))
        else:
            self.kill()

    def kill(self) -> None:
        """Kill the process at once."""
        if self._process is not None:
            self._process.kill()

    async def run(self, spawner: Spawner, assignment: Sequence[DownwardFrame]) -> WorkerEnd:
        """Start a worker, give it ``assignment``, see it to its end. Never raises for what a worker does."""
        try:
            with self._starting:
                self._process = await spawner.spawn(self._kind)
        except OSError as error:
            return WorkerEnd(cause="spawn_failed", detail=f"its process could not be started: {error.strerror}")
        process = self._process
        if process is None:
            return WorkerEnd()  # cancelled before there was anything to end
        self._channel = channel = FrameStream(process.stream, upward_decoder)
        async with trio.open_nursery() as nursery:
            for task in (channel.run_writer, self._watch_sending, self._obey_cancel):
                nursery.start_soon(task)
            for sign in (self._signs.silent, self._signs.deaf):
                nursery.start_soon(self._watch_sign, sign)
            nursery.start_soon(self._collect_stderr, process)
            await self._listen(process, channel, assignment)
            status = await self._reap(process)
            if self._finished is None:
                with trio.move_on_after(DRAIN_SECONDS):
                    await self._has_all_stderr.wait()
            nursery.cancel_scope.cancel()
        await channel.aclose()
        return self._end(process, status)

    # -- listening ----------------------------------------------------------------------------------------------------

    async def _listen(
        self, process: WorkerProcess, channel: FrameStream[UpwardFrame], assignment: Sequence[DownwardFrame]
    ) -> None:
        """Take frames until the worker has finished, its channel has ended or its process is gone."""
        with self._listening:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_after_death, process)
                try:
                    await self._converse(channel, assignment)
                except FrameCutOff as error:
                    # How its process ends is the cause; what it was about to say is lost.
                    self._cut_off = str(error)
                except ProtocolError as error:
                    # Nothing after a bad frame can be trusted.
                    self._judge("protocol_error", str(error))
                    process.kill()
                nursery.cancel_scope.cancel()
        self._signs.look_away()

    async def _converse(self, channel: FrameStream[UpwardFrame], assignment: Sequence[DownwardFrame]) -> None:
        self._signs.listen()
        while self._finished is None and (frames := await channel.receive()):
            if not self._is_greeted:
                check_ready(frames.pop(0))
                self._is_greeted = True
                for message in (*assignment, *self._early):
                    channel.put(message)
            for frame in frames:
                if isinstance(frame, Finished):
                    self._finished = frame
                    break  # its last word: nothing behind it is heard
                if isinstance(frame, Heartbeat):
                    self._signs.take(frame, channel.messages_put)
                self._handle(frame)
            # While nobody reads, silence is no fault of the worker, and what a dead one said waits to be read.
            self._signs.look_away()
            self._listening.deadline = float("inf")
            await self._room()
            self._signs.listen()
            self._bound_draining()

    async def _stop_after_death(self, process: WorkerProcess) -> None:
        """The end is the process's exit, not the end of its stream: something else may hold the channel open."""
        await process.wait()
        self._is_dead = True
        if self._signs.is_listened_to:
            self._bound_draining()

    def _bound_draining(self) -> None:
        """Nothing comes of a dead worker for long; only time in which it could be read counts."""
        if self._is_dead:
            self._listening.deadline = trio.current_time() + DRAIN_SECONDS

    async def _collect_stderr(self, process: WorkerProcess) -> None:
        await process.collect_stderr()
        self._has_all_stderr.set()

    # -- bounds -------------------------------------------------------------------------------------------------------

    async def _obey_cancel(self) -> None:
        await self._cancelled.wait()
        await trio.sleep(self._times.grace)
        self.kill()

    async def _watch_sending(self) -> None:
        """A worker that takes nothing is as good as dead: a frame that is cut off in the middle can't be mended."""
        assert self._channel is not None
        await self._channel.stalled(self._times.silence)
        await self._put_down(f"it took nothing from its channel for {self._times.silence:g} s")

    async def _watch_sign(self, failing: Callable[[], Awaitable[str]]) -> None:
        await self._put_down(await failing())

    async def _put_down(self, why: str) -> None:
        self._judge("unresponsive", why)
        if self._process is not None:
            self._process.terminate()
        await trio.sleep(self._times.terminate)
        self.kill()
        await trio.sleep_forever()

    async def _reap(self, process: WorkerProcess) -> ExitStatus:
        with trio.move_on_after(self._times.grace) as grace:
            await process.wait()
        if grace.cancelled_caught and self._finished is None:
            self._judge("channel_closed", "it closed its channel and lived on")
        process.kill()
        return await process.wait()

    # -- the verdict --------------------------------------------------------------------------------------------------

    def _judge(self, cause: CrashCause, detail: str) -> None:
        """What was seen first is the cause: the signal that ends the process afterwards is ours."""
        if self._judged is None:
            self._judged = (cause, detail)

    def _end(self, process: WorkerProcess, status: ExitStatus) -> WorkerEnd:
        if self._finished is not None:
            return WorkerEnd(finished=self._finished, status=status)
        if self._cancelled.is_set():
            return WorkerEnd(status=status)
        cause, detail = self._judged or _read_status(status, process.stderr_tail)
        return WorkerEnd(cause=cause, status=status, detail="; ".join(filter(None, (detail, self._cut_off))))


def _read_status(status: ExitStatus, stderr: str) -> tuple[CrashCause, str]:
    """The cause of a death that nobody saw coming, and what the worker itself said about it."""
    if status.signal is not None:
        # What `faulthandler` writes. A signal that gives no time to write leaves older, unrelated lines.
        report = stderr.rfind(_FAULT_REPORT)
        return "signal", stderr[report:].strip() if report >= 0 else ""
    if status.code == OUT_OF_MEMORY_EXIT_CODE:
        return "out_of_memory", "it reached its ceiling of memory"
    return "exited_early", stderr.strip().rpartition("\n")[2]
