"""The first words between supervisor and worker."""

from __future__ import annotations

import msgspec

from protocol.errors import HandshakeMismatch
from protocol.frames import FRAMES_VERSION, Ready

WORKER_ENTRY = "workers.start:run_worker"
"""Where a worker process begins. The one name that crosses from the supervisor to the workers: it is resolved in the
child only."""

OUT_OF_MEMORY_EXIT_CODE = 73
"""A worker that ran into its memory ceiling exits with this code: there may be no memory left to say so in a frame."""


def check_ready(message: msgspec.Struct) -> Ready:
    """``message`` as the greeting of a worker; raises `HandshakeMismatch` for any other or another version."""
    if not isinstance(message, Ready):
        raise HandshakeMismatch(f"a worker began with {type(message).__name__} instead of Ready")
    if message.version != FRAMES_VERSION:
        raise HandshakeMismatch(
            f"the worker speaks version {message.version} of the frames, this supervisor {FRAMES_VERSION}; "
            "was corral updated while it ran?"
        )
    return message
