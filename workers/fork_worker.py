"""The first and the last steps of a worker process, whether it was forked or started by exec."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

_IGNORED_BY_PYTHON = frozenset({signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)})
_UNCATCHABLE = frozenset({signal.SIGKILL, signal.SIGSTOP})


def begin_forked_worker(entry: str, kind: str, channel_fd: int, stderr_fd: int) -> NoReturn:
    """Turn this fresh fork of the fork server into a worker and run it; never returns, whatever happens.

    Of what the server has open only the two descriptors are kept: ``stderr_fd`` as standard error. Signals are as in a
    process that was just started, the process leads a group of its own, chance is seeded anew.
    """
    try:
        with suppress(PermissionError):  # the server did it already
            os.setpgid(0, 0)
        _reset_signals()
        os.dup2(stderr_fd, 2)
        close_all_but(channel_fd)
        gc.enable()
        random.seed()
        run_entry(entry, kind, channel_fd)
    finally:
        os._exit(1)  # not one frame of the server's stack may be run here


def run_entry(entry: str, kind: str, channel_fd: int) -> NoReturn:
    """Call ``entry`` ("module:function") with the other two and leave the process as an interpreter would.

    That is: 0 at its end, the code of a `SystemExit`, 1 with a traceback for any other error. What the interpreter does
    at exit is left out but for flushing: nothing of a worker's is worth the time to take it apart.
    """
    code = 1
    try:
        module, _, function = entry.partition(":")
        getattr(import_module(module), function)(kind, channel_fd)
        code = 0
    except SystemExit as leaving:
        code = _exit_code(leaving)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        _flush()
        os._exit(code)


def close_all_but(kept: int) -> None:
    """Close every descriptor from 3 on but ``kept``."""
    os.closerange(3, kept)
    os.closerange(max(3, kept + 1), os.sysconf("SC_OPEN_MAX"))


def _exit_code(leaving: SystemExit) -> int:
    """Source: the documentation of `SystemExit`."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{leaving.code}\n")
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or there was none
            stream.flush()


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - _UNCATCHABLE:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_IGN if number in _IGNORED_BY_PYTHON else signal.SIG_DFL)
