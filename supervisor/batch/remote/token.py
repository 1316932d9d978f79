"""Which attempt a process on some machine makes: told in its arguments, so that a later run finds it there.

Source: the batch contract, rule L3.
"""

from __future__ import annotations

import re

import msgspec

_MARK = "corral-attempt"
_WRITTEN = re.compile(rf"{_MARK}:([A-Za-z0-9-]+):([0-9]+):([A-Za-z0-9._-]+):([0-9]+)")


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt ``n`` of a job, in the run ``epoch`` of a batch."""

    batch_id: str
    epoch: int
    job_id: str
    n: int

    def __str__(self) -> str:
        return f"{_MARK}:{self.batch_id}:{self.epoch}:{self.job_id}:{self.n}"


def read_token(word: str) -> Token | None:
    """The token that ``word`` is; None for any other word."""
    match = _WRITTEN.fullmatch(word)
    if match is None:
        return None
    return Token(batch_id=match[1], epoch=int(match[2]), job_id=match[3], n=int(match[4]))
