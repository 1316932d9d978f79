"""The supervisor's side of the keeper of workers that it has started by exec. See `workers.keeper`."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from protocol.fork_frames import KEEPER_ENTRY, KEEPER_PID_BYTES
from supervisor.child_processes import Family, end_process

_CLOSE_SECONDS = 3.0


class FreshKeeper:
    """One keeper, and what is told to it. ``mark`` is what the commands of its workers are to carry."""

    def __init__(self, family: Family) -> None:
        """Start it. Raises `OSError` where the system can't."""
        self.mark = os.urandom(8).hex()
        reader, self._pipe = os.pipe()
        try:
            self._process: subprocess.Popen[bytes] = family.start(
                KEEPER_ENTRY, (str(os.getpid()), self.mark), reader, None
            )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(reader)

    def tell(self, worker: int) -> None:
        """A worker was started; 0: none is left."""
        with suppress(OSError):  # somebody killed the keeper: this process is still there
            os.write(self._pipe, worker.to_bytes(KEEPER_PID_BYTES, "big"))

    def dismiss(self) -> None:
        """Nothing is left to keep: it ends, and is reaped."""
        self.tell(0)
        os.close(self._pipe)
        self._process.returncode = end_process(self._process.pid, _CLOSE_SECONDS)
