"""What a batch needs of a cluster. `ray_cluster` has the one there is."""

from __future__ import annotations

from typing import Protocol

import trio

from supervisor.batch.remote.parcels import Parcel
from supervisor.batch.remote.token import Token
from supervisor.config import SpawnMode


class NodeStream(trio.abc.Stream):
    """The bytes to and from the process that makes an attempt; `aclose` ends that process with all it started.

    Once the stream has ended, ``why_ended`` says in a few words why; ``exit_code`` is the process's, where it is known.
    """

    why_ended: str = ""
    exit_code: int | None = None


class Nodes(Protocol):
    """Machines that make attempts."""

    async def start(self, token: Token, parcel: Parcel | None, spawn: SpawnMode) -> NodeStream:
        """Have an attempt made somewhere; returns at once, whenever a machine takes it. Raises `OSError`."""
        ...

    def store(self, data: bytes) -> object:
        """Give the cluster bytes for all machines; the handle keeps them. Blocks. Raises `OSError`."""
        ...
