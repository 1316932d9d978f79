"""Cgroups of this machine, for tests that need the kernel to hold a ceiling of memory. Most machines lend us none."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.cgroup_base import find_base
from tests.stubs.ordinary_user import NOBODY


def base_with_memory() -> Path:
    """The cgroup that a run of ours would use, where the kernel lets us put processes below it; else skips."""
    base = find_base(Path("/proc/self"))
    if base is None:
        pytest.skip("no cgroup v2 here is ours to divide, or it has no memory controller")
    probe = base / f"corral-{os.getpid()}-probe"
    try:
        probe.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        (probe / "memory.max").write_text("max")
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
            (probe / "cgroup.procs").write_text(str(process.pid))
    except OSError as error:
        pytest.skip(f"no process can be put into a cgroup with memory here: {error}")
    finally:
        probe.rmdir()
    return base


@contextmanager
def delegated_to_nobody() -> Generator[tuple[Path, Path], None, None]:
    """A cgroup that is delegated to an ordinary user as systemd does it, and the one in it for the user's processes.

    The tests must run as root. Source: systemd, "Control Group APIs and Delegation".
    """
    delegated = base_with_memory() / f"test-{os.getpid()}-delegated"
    inner = delegated / "main"
    try:
        inner.mkdir(parents=True)
        for folder in (delegated, inner):
            for path in (folder, folder / "cgroup.procs", folder / "cgroup.subtree_control"):
                os.chown(path, NOBODY, NOBODY)
        try:
            os.setxattr(delegated, "user.delegate", b"1")
        except OSError as error:
            pytest.skip(f"a cgroup can't be marked as delegated here: {error}")
        yield delegated, inner
    finally:
        for folder in (inner, delegated):
            folder.rmdir()
