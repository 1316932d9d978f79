"""What a worker may take of the machine, held by resource limits. Source: setrlimit(2)."""

from __future__ import annotations

import resource
from collections.abc import Generator
from contextlib import contextmanager

from protocol.agent_spec import Ceilings


def apply(ceilings: Ceilings) -> None:
    """Put the ceilings on this process; the soft limit is never set over the hard one.

    All but the memory's are inherited by tools.
    """
    for limit, value in (
        (resource.RLIMIT_AS, ceilings.memory_bytes),
        (resource.RLIMIT_CPU, ceilings.cpu_seconds),
        (resource.RLIMIT_NOFILE, ceilings.open_files),
        (resource.RLIMIT_FSIZE, ceilings.file_bytes),
    ):
        if value is not None:
            _, hard = resource.getrlimit(limit)
            soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(limit, (soft, hard))


@contextmanager
def memory_lifted() -> Generator[None, None, None]:
    """While a tool is started the address space is not bounded: Node and Go reserve far more than they use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft == hard:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
