"""The processes that the supervisor itself starts: how they find our code, and how they are reaped.

What runs in them is this very installation: packages are found by the path of our own, so that a folder ``workers/``
in the project, or a variable like PYTHONPATH, never decides what code runs.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from protocol.process_tree import MARK_VARIABLE, end_orphans
from supervisor.early_fork import own_packages
from supervisor.worker_process import ExitStatus

MOST_OPEN_FILES = 8192
"""The soft limit of descriptors in this process, where the hard one allows it: a worker takes two here."""

_BOOTSTRAP = """
import importlib.util, os, sys
folders, entry, *words, number = sys.argv[1:]
for folder in folders.split(os.pathsep):
    name = os.path.basename(folder)
    spec = importlib.util.spec_from_file_location(
        name, f"{folder}/__init__.py", submodule_search_locations=[folder])
    sys.modules[name] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
module, _, function = entry.partition(":")
getattr(importlib.import_module(module), function)(*words, int(number))
"""


class Family:
    """What is to be run in child processes, and who of the children of this process is known."""

    def __init__(self, entry: str, packages: Sequence[Path], *, ends_orphans: bool) -> None:
        self.entry = entry
        self._folders = [*own_packages(), *packages]
        self._ends_orphans = ends_orphans
        self._known: set[int] = set()
        self._open_files = _raise_open_files()
        _heed_children()

    def start(
        self, entry: str, words: Sequence[str], kept: int, stderr: int | None, mark: str | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process by exec that calls ``entry`` with ``words`` and ``kept``, a descriptor that it inherits.

        ``mark`` is what its commands are to carry.
        """
        folders = os.pathsep.join(map(str, self._folders))
        process = subprocess.Popen(
            [sys.executable, "-E", "-P", "-c", _BOOTSTRAP, folders, entry, *words, str(kept)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=(kept,),
            env=None if mark is None else {**os.environ, MARK_VARIABLE: mark},
            process_group=0,
        )
        if hasattr(resource, "prlimit"):  # a tool that closes all it could have open would take long
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, self._open_files)
        self._known.add(process.pid)
        return process

    def know(self, pid: int) -> None:
        """``pid`` is a child of ours, or will be."""
        self._known.add(pid)

    def reap(self, pid: int, process: subprocess.Popen[bytes] | None = None) -> ExitStatus:
        """The status of a child that has ended; it is gone then, and so are the orphans that it left behind."""
        code = _reap(pid)
        if process is not None:
            process.returncode = code
        self._known.discard(pid)
        self.end_orphans()
        if code is None or code >= 0:
            return ExitStatus(code, None)
        return ExitStatus(None, -code)

    def end_orphans(self) -> None:
        """Kill the children that nobody here has started, if this process has no others."""
        if self._ends_orphans:
            end_orphans(self._known)


def _heed_children() -> None:
    """If SIGCHLD is ignored, as a parent may have left it, the system tells nobody how a child ended."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _raise_open_files() -> tuple[int, int]:
    """Raise the soft limit of open files; returns the limits as they were."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MOST_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft, hard


def end_process(pid: int, seconds: float) -> int | None:
    """Wait for a child of ours, ``seconds`` at most; then kill it. See `_reap`."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if not poll.poll(seconds * 1000):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
    return _reap(pid)


def _reap(pid: int) -> int | None:
    """Wait for our child ``pid``; its exit code, negative for a signal. None if it was no child of ours."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None
