"""Ray as the machines of a batch.

An attempt is a task that Ray never tries again by itself (the batch decides that), and that streams what the attempt's
process says. What is told to the process goes through an actor on this machine, the letter box. trio never waits for
Ray in its own thread: each wait has one of a limiter of its own, and what is no longer wanted is cancelled.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Generator
from typing import Any

import trio

from supervisor.batch.flags import MOST_SLOTS
from supervisor.batch.remote import ray_tasks
from supervisor.batch.remote.frames import PIECE_BYTES
from supervisor.batch.remote.nodes import NodeStream
from supervisor.batch.remote.parcels import Parcel
from supervisor.batch.remote.ray_api import Ray, Stream, load_ray, on_node
from supervisor.batch.remote.ray_keeper import RayKeeper
from supervisor.batch.remote.token import Token
from supervisor.config import SpawnMode
from supervisor.errors import WrongUsage

UNREAD_PIECES = 16
"""What a task may have yielded and nobody has taken: then it waits, and so does all behind it."""
CLEAR_SECONDS = 30.0
_LEAST_SHARE = 0.001


class RayCluster:
    """A connection to Ray, from `open` to `close`. See `Nodes`."""

    def __init__(self, ray: Ray, slots: int, keeper: RayKeeper | None) -> None:
        self._ray = ray
        self._keeper = keeper
        self._limiter = trio.CapacityLimiter(2 * MOST_SLOTS)
        here = ray.get_runtime_context().get_node_id()
        box = ray.remote(ray_tasks.LetterBox)
        # On this machine: its end would be everybody's, so it shares that of the batch.
        self._box: Any = box.options(
            num_cpus=0, max_restarts=0, max_concurrency=4 * MOST_SLOTS, scheduling_strategy=on_node(here)
        ).remote()
        self._task = ray.remote(ray_tasks.make_attempt)
        self._share = _share(ray.cluster_resources().get("CPU", 1.0), slots, len(ray.nodes()))

    @classmethod
    def open(cls, address: str, slots: int) -> RayCluster:
        """Connect to the cluster at ``address``, empty: to one that is started here and ended by `close`.

        For the main thread, before trio runs; blocks for seconds. ``slots`` attempts are made at once, at most. From
        now on what Python prints goes nowhere: Ray prints. Raises `WrongUsage`.
        """
        keeper = RayKeeper() if not address else None
        try:
            if keeper is not None:
                os.environ.update(keeper.variables)  # heeded only when Ray is imported
            ray = load_ray()
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for the rest of this process's life
            with _own_signals():
                ray.init(
                    address=keeper.address if keeper is not None else address,
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,
                )
            return cls(ray, slots, keeper)
        except BaseException as error:
            if keeper is not None:
                keeper.close()
            if isinstance(error, WrongUsage) or not isinstance(error, Exception):
                raise
            # Whatever Ray raises: there is no cluster.
            raise WrongUsage(f"no Ray answers at {address or 'this machine'}: {' '.join(str(error).split())}") from None

    def close(self) -> None:
        """Leave the cluster, and end it where it was started here; blocks."""
        self._ray.shutdown()
        if self._keeper is not None:
            self._keeper.close()

    # -- attempts -----------------------------------------------------------------------------------------------------

    async def start(self, token: Token, parcel: Parcel | None, spawn: SpawnMode) -> NodeStream:
        """See `Nodes.start`."""
        key, pieces = (parcel.name.key, list(parcel.pieces)) if parcel is not None else (None, [])

        def submit() -> Stream:
            task = self._task.options(
                name=f"corral {token.job_id}",
                num_cpus=self._share,
                max_retries=0,
                num_returns="streaming",
                _generator_backpressure_num_objects=UNREAD_PIECES,
                scheduling_strategy="SPREAD",
            )
            stream: Stream = task.remote(self._box, str(token), spawn, key, pieces)
            return stream

        try:
            stream = await trio.to_thread.run_sync(submit, limiter=self._limiter)
        except Exception as error:  # whatever Ray raises
            raise OSError(str(error)) from None
        return RayStream(self._ray, self._box, str(token), stream, self._limiter)

    def store(self, data: bytes) -> object:
        """See `Nodes.store`."""
        try:
            return self._ray.put(data)
        except Exception as error:  # whatever Ray raises
            raise OSError(str(error)) from None

    # -- every machine ------------------------------------------------------------------------------------------------

    async def clear(self, batch_id: str, before: int) -> None:
        """End what older runs left on all machines. Source: the batch contract, rule L3."""
        await self._everywhere(ray_tasks.clear, batch_id, before)

    async def leave(self, batch_id: str, epoch: int) -> None:
        """Remove what this run brought to the machines."""
        await self._everywhere(ray_tasks.leave, batch_id, epoch)

    async def _everywhere(self, what: Any, *words: object) -> None:
        def run() -> None:
            task = self._ray.remote(what)
            nodes = [node["NodeID"] for node in self._ray.nodes() if node.get("Alive")]
            refs = [
                task.options(num_cpus=0, max_retries=0, scheduling_strategy=on_node(node)).remote(*words)
                for node in nodes
            ]
            self._ray.wait(refs, num_returns=len(refs), timeout=CLEAR_SECONDS)

        # What can't be cleared now is cleared by the next attempt there.
        with contextlib.suppress(Exception), trio.move_on_after(CLEAR_SECONDS + 5):
            await trio.to_thread.run_sync(run, limiter=self._limiter, abandon_on_cancel=True)


class RayStream(NodeStream):
    """An attempt's task. See `NodeStream`."""

    def __init__(self, ray: Ray, box: Any, token: str, stream: Stream, limiter: trio.CapacityLimiter) -> None:
        self._ray = ray
        self._box = box
        self._token = token
        self._stream = stream
        self._limiter = limiter
        self._has_ended = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:  # noqa: ARG002 - trio's interface
        """What the process said next, however much; empty at the end. Cancelling it may lose bytes."""
        return await trio.to_thread.run_sync(self._take, limiter=self._limiter, abandon_on_cancel=True)

    def _take(self) -> bytes:
        try:
            found = self._ray.get(next(self._stream))
        except StopIteration:
            self._end("its process ended")
            return b""
        except Exception as error:  # whatever Ray raises: the task is no more
            self._end(_told(error))
            return b""
        if isinstance(found, bytes):
            return found
        code: int = found
        self.exit_code = code
        self._end(f"its process ended with signal {-code}" if code < 0 else f"its process ended with {code}")
        return b""

    def _end(self, why: str) -> None:
        self._has_ended = True
        self.why_ended = self.why_ended or why

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Tell the process, a letter after the other."""
        view = memoryview(data)
        try:
            while view:
                await trio.to_thread.run_sync(self._post, bytes(view[:PIECE_BYTES]), limiter=self._limiter)
                view = view[PIECE_BYTES:]
        except Exception as error:  # whatever Ray raises: there is no letter box
            raise trio.BrokenResourceError from error

    def _post(self, letter: bytes) -> None:
        self._ray.get(self._box.put.remote(self._token, letter))

    async def wait_send_all_might_not_block(self) -> None:
        """It might always."""

    async def aclose(self) -> None:
        """End the task with its process; what that started ends with it."""
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._cancel, limiter=self._limiter)
        await trio.lowlevel.checkpoint()

    def _cancel(self) -> None:
        with contextlib.suppress(Exception):
            if not self._has_ended:
                self._ray.cancel(self._stream, force=True)
            self._box.forget.remote(self._token)


def _share(cpus: float, slots: int, machines: int) -> float:
    """What an attempt claims of a processor: so little that all slots find room, and each machine gets its part."""
    return max(_LEAST_SHARE, min(1.0, int(1000 * cpus / (slots + machines)) / 1000))


def _told(error: Exception) -> str:
    """What Ray says, in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if type(error).__name__.startswith("RayTaskError") and lines else " ".join(lines)
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


@contextlib.contextmanager
def _own_signals() -> Generator[None, None, None]:
    """Ray takes SIGTERM for itself; here it is given back."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
