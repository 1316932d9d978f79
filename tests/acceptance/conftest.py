"""What the black-box tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stubs.corral_run import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A project and a home of its own."""
    return Place(tmp_path)
