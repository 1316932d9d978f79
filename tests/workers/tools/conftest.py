from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.tools.project import HeldPipe, Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path.resolve() / "project"
    root.mkdir()
    return Project(root)


@pytest.fixture
def held_pipe(tmp_path: Path) -> Iterator[HeldPipe]:
    pipe = HeldPipe(tmp_path / "held")
    yield pipe
    pipe.close()
