"""Reading small files that may be anything: a FIFO is not waited for, a huge one is not read."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_regular_file(path: Path, limit: int) -> bytes:
    """The content of a file of at most ``limit`` bytes; raises OSError for a larger one and for what is no file."""
    content = read_beginning(path, limit + 1)
    if len(content) > limit:
        raise OSError(f"it is larger than {limit} bytes")
    return content


def read_beginning(path: Path, size: int) -> bytes:
    """The first ``size`` bytes of a file; raises OSError for what is no file, at once."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError as error:  # a NUL in the path
        raise OSError(str(error)) from None
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is not a regular file")
        return file.read(size)
