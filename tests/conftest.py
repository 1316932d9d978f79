"""What holds for all tests: how long property tests look, and that a busy machine is no reason for one to fail."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("brief", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", parent=settings.get_profile("brief"), max_examples=300)


def pytest_configure(config: pytest.Config) -> None:
    """The default run tries less than ``scripts/test --soak``; both try something new each time."""
    settings.load_profile("brief" if "not soak" in config.option.markexpr else "thorough")
