"""How long a worker has for what."""

from __future__ import annotations

import msgspec


class WorkerTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds, in seconds: ``grace`` for a worker to end once it was told to, or once its channel is closed;
    ``silence`` without any frame before it counts as unresponsive; ``terminate`` between SIGTERM and SIGKILL then.
    """

    grace: float = 2.0
    silence: float = 15.0
    terminate: float = 5.0
