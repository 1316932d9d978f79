"""What the tests of live control share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A private folder with a path that leaves room for a socket's name, as trio's own client needs it."""
    with tempfile.TemporaryDirectory(prefix="live-") as folder:
        yield Path(folder)
