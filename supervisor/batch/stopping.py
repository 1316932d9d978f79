"""How an attempt is ended before it is done, wherever it is made."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import trio

from protocol.frames import Finished
from supervisor.batch.core.outcome import AttemptEnd


class Stopping:
    """Whether one attempt was told to end; ``ending`` says as what: the first that came counts."""

    def __init__(self) -> None:
        self.ending: Finished | None = None
        self._scope: trio.CancelScope | None = None

    def stop(self, ending: Finished) -> Finished:
        """It is to end as ``ending`` says, unless it was told before; returns the one that counts."""
        self.ending = self.ending or ending
        if self._scope is not None:
            self._scope.cancel()
        return self.ending

    @contextmanager
    def leavable(self) -> Generator[None, None, None]:
        """A block that is left when the attempt is stopped, and not entered in earnest if it was."""
        with trio.CancelScope() as self._scope:
            if self.ending is not None:
                self._scope.cancel()
            try:
                yield
            finally:
                self._scope = None

    def stay(self) -> bool:
        """A stop does not leave the block any more: what goes on in it is told to end. False if that was so before."""
        scope, self._scope = self._scope, None
        return scope is not None

    def as_end(self) -> AttemptEnd:
        """The end of an attempt that was left for it."""
        reason, message = ("cancelled", "") if self.ending is None else (self.ending.code, self.ending.message)
        return AttemptEnd(outcome="cancelled", reason=reason, message=message)
