from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.supervisor.sinks.output_pipe import OutputPipe


@pytest.fixture
async def pipe() -> AsyncIterator[OutputPipe]:
    """A pipe that nobody reads but the test; whatever it leaves in it is dropped."""
    pipe = OutputPipe()
    yield pipe
    await pipe.aclose()
