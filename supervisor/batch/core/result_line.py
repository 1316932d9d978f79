"""A verdict as a line: put together from what the job was and what its attempts came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from protocol.usage import Usage

MOST_RESPONSE_BYTES = 64 * 1024


def cut(response: str) -> tuple[str, bool]:
    """The response, `MOST_RESPONSE_BYTES` of it at most, and whether that is not all."""
    data = response.encode(errors="replace")
    if len(data) <= MOST_RESPONSE_BYTES:
        return response, False
    return data[:MOST_RESPONSE_BYTES].decode(errors="ignore"), True


def iso(seconds: float) -> str:
    """A time since 1970 in ISO 8601, UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def summed(by_agent: Iterable[Mapping[str, Usage]]) -> dict[str, Usage]:
    """The sums by agent name."""
    sums: dict[str, Usage] = {}
    for each in by_agent:
        for name, usage in each.items():
            sums[name] = sums.get(name, Usage()) + usage
    return sums
