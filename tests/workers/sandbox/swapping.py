"""A process that swaps a folder and a link for each other, as fast as it can."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """
import ctypes, os, random, sys
libc = ctypes.CDLL(None, use_errno=True)
one, other = (os.fsencode(name) for name in sys.argv[1:])
def exchange():
    return libc.renameat2(-100, one, -100, other, 2)  # AT_FDCWD, RENAME_EXCHANGE
if exchange():
    sys.exit(str(ctypes.get_errno()))
print("swapping", flush=True)
while True:
    exchange()
    for _ in range(random.randrange(1_000)):  # at odd times, so that it falls into step with nobody
        pass
"""


class CanNotSwap(Exception):
    """This system can't swap two names at one stroke."""


@contextmanager
def swapping(one: Path, other: Path) -> Generator[None, None, None]:
    """Swap the two for the length of the block; raises `CanNotSwap`."""
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(one), str(other)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != b"swapping\n":
                raise CanNotSwap
            yield
        finally:
            process.kill()
