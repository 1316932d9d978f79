"""A stand-in for Ray, as far as a batch uses it: one machine, tasks are threads of this process, actors too.

It is found by its name, ``ray``, in a process whose PYTHONPATH has the folder above. What a real Ray adds (processes,
other machines) is in tests/interop.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for_futures
from typing import Any


class RayTaskError(Exception):
    """A task failed."""


class TaskCancelledError(Exception):
    """A task was cancelled."""


class Ref:
    """The handle of a value; ``cancelled`` ends the wait for it too."""

    def __init__(self, future: Future[Any], cancelled: Future[None] | None = None) -> None:
        self.future = future
        self.cancelled = cancelled

    def result(self) -> Any:
        futures: list[Future[Any]] = [self.future] if self.cancelled is None else [self.future, self.cancelled]
        wait_for_futures(futures, return_when=FIRST_COMPLETED)
        if not self.future.done():
            raise TaskCancelledError
        return self.future.result()


class Actor:
    """An actor with coroutines as its methods; ``remote`` of each starts it."""

    def __init__(self, made: object, cancelled: Future[None] | None = None) -> None:
        self._made = made
        self._cancelled = cancelled
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def of_task(self, cancelled: Future[None]) -> Actor:
        """The same actor for a task, whose waits end with it."""
        copy = Actor.__new__(Actor)
        copy._made, copy._loop, copy._cancelled = self._made, self._loop, cancelled
        return copy

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._made, name)

        class Method:
            @staticmethod
            def remote(*words: object) -> Ref:
                return Ref(asyncio.run_coroutine_threadsafe(method(*words), self._loop), self._cancelled)

        return Method


class Stream:
    """What a task yields, as handles."""

    def __init__(self, what: Callable[..., Iterator[object]], words: Sequence[object], unread: int) -> None:
        self._items: queue.Queue[object] = queue.Queue(unread)
        self.cancelled: Future[None] = Future()
        found = [word.of_task(self.cancelled) if isinstance(word, Actor) else word for word in words]
        threading.Thread(target=self._run, args=(what, found), daemon=True).start()

    def _run(self, what: Callable[..., Iterator[object]], words: Sequence[object]) -> None:
        last: object = StopIteration()
        try:
            for item in what(*words):
                if not self.cancelled.done():
                    self._items.put(item)
        except Exception as error:
            last = RayTaskError(f"{type(error).__name__}: {error}")
        self._items.put(last)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Ref:
        item = self._items.get()
        if isinstance(item, StopIteration):
            raise item
        future: Future[Any] = Future()
        if isinstance(item, Exception):
            future.set_exception(item)
        else:
            future.set_result(item)
        return Ref(future)


class Options:
    """A function or a class, with options."""

    def __init__(self, what: Callable[..., Any], options: dict[str, Any]) -> None:
        self._what = what
        self._options = options

    def options(self, **options: Any) -> Options:
        return Options(self._what, options)

    def remote(self, *words: object) -> Any:
        if isinstance(self._what, type):
            return Actor(self._what())
        assert self._options["max_retries"] == 0
        if self._options.get("num_returns") == "streaming":
            return Stream(self._what, words, self._options["_generator_backpressure_num_objects"])
        return put(self._what(*words))


def init(*, address: str, **_options: object) -> None:
    if address != "stub":
        raise ConnectionError(f"Failed to connect to Ray cluster at {address}")
    print("Ray prints what it likes")  # noqa: T201 - as it does


def shutdown() -> None:
    pass


def remote(what: Callable[..., object]) -> Options:
    return Options(what, {})


def put(value: object) -> Ref:
    future: Future[Any] = Future()
    future.set_result(value)
    return Ref(future)


def get(ref: Ref, *, timeout: float | None = None) -> Any:
    return ref.result()


def wait(refs: Sequence[Ref], *, num_returns: int, timeout: float | None) -> tuple[list[Ref], list[Ref]]:
    return list(refs), []


def cancel(stream: Stream, *, force: bool) -> None:
    assert force
    if not stream.cancelled.done():
        stream.cancelled.set_result(None)


def nodes() -> list[dict[str, Any]]:
    return [{"NodeID": "this", "Alive": True}]


def cluster_resources() -> dict[str, float]:
    return {"CPU": 2.0}


class _Context:
    def get_node_id(self) -> str:
        return "this"


def get_runtime_context() -> _Context:
    return _Context()
