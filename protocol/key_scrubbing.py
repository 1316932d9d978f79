"""Keys leave the environment once they are read: what is started later gets none, and ``environ`` shows none.

A process's environment is copied to all that it starts and stays readable in ``/proc/PID/environ`` as it was at the
start, even when a variable is unset. So the text itself is overwritten. Source: the safety contract, rule 3;
environ(7), proc(5).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable


def take_out_of_environment(names: Iterable[str]) -> None:
    """Overwrite the values of the variables ``names`` in this process's memory and unset them.

    For the main thread, before anything is started. Copies that Python made are not in the environment any more.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    libc.getenv.argtypes = (ctypes.c_char_p,)
    for name in names:
        if name not in os.environ:
            continue
        address = libc.getenv(os.fsencode(name))
        if address:
            ctypes.memset(address, ord("x"), len(ctypes.string_at(address)))
        del os.environ[name]
