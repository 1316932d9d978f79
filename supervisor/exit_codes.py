"""The exit codes of a run and what they are decided by. Source: the wire contract, "Formats and exit codes"."""

from __future__ import annotations

from protocol.frames import Finished

COMPLETE = 0
ERROR = 1
USAGE = 2
LIMIT = 3
SESSION_LOCKED = 4
STORAGE = 5
TRY_AGAIN_LATER = 75
STDOUT_CLOSED = 141

_BY_CODE = {
    "unreachable": TRY_AGAIN_LATER,
    "rate_limited": TRY_AGAIN_LATER,
    "server_error": TRY_AGAIN_LATER,
    "stream_failed": TRY_AGAIN_LATER,
    "storage_failed": STORAGE,
    "storage_full": STORAGE,
    "store_corrupt": STORAGE,
    "store_newer": STORAGE,
    "stdout_closed": STDOUT_CLOSED,
}


def of_signal(number: int) -> int:
    """The code of an end by signal ``number``, as a shell gives it: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP."""
    return 128 + number


def of_ending(ending: Finished) -> int:
    """The code for the way in which the main agent ended, where no signal ended the run."""
    if ending.outcome == "complete":
        return COMPLETE
    if ending.code in _BY_CODE:
        return _BY_CODE[ending.code]
    return LIMIT if ending.outcome == "limit" else ERROR
