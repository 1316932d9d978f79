"""What runs in Ray's own processes: the task of an attempt, and the letter box that it gets its orders from.

Ray finds these functions by their names, so corral has to be installed wherever Ray may run them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, cast

from supervisor.batch.remote import grounds
from supervisor.batch.remote.ray_api import load_ray
from supervisor.batch.remote.relay import relay
from supervisor.batch.remote.token import read_token

LETTER_SECONDS = 20.0
"""How long a task waits for letters before it asks again."""


class LetterBox:
    """An actor: what is told to attempts, by token, until their tasks fetch it.

    What passes through here stays in memory: each letter is small enough for Ray never to write it to a disk.
    """

    def __init__(self) -> None:
        self._letters: dict[str, asyncio.Queue[bytes]] = {}

    async def put(self, token: str, letter: bytes) -> None:
        """Add a letter."""
        await self._letters.setdefault(token, asyncio.Queue()).put(letter)

    async def take(self, token: str) -> bytes:
        """The next letter; empty if none comes for a while."""
        try:
            return await asyncio.wait_for(self._letters.setdefault(token, asyncio.Queue()).get(), LETTER_SECONDS)
        except TimeoutError:
            return b""

    async def forget(self, token: str) -> None:
        """The attempt has ended."""
        self._letters.pop(token, None)


def make_attempt(box: Any, token: str, spawn: str, parcel: str | None, pieces: list[object]) -> Iterator[bytes | int]:
    """The task: see `relay`. ``box`` is the letter box, ``pieces`` are handles of the parcel's bytes."""
    ray = load_ray()
    found = read_token(token)
    assert found is not None

    def fetch() -> Iterable[bytes]:
        return (ray.get(piece) for piece in pieces)

    def letters() -> bytes | None:
        try:
            return cast("bytes", ray.get(box.take.remote(token)))
        except Exception:  # whatever Ray calls it: whoever sends letters is gone
            return None

    yield from relay(found, spawn, parcel, fetch, letters)


def clear(batch_id: str, before: int) -> int:
    """A task for each machine: see `grounds.clear`."""
    return grounds.clear(batch_id, before)


def leave(batch_id: str, epoch: int) -> int:
    """A task for each machine: see `grounds.leave`."""
    return grounds.leave(batch_id, epoch)
