"""Durations as people write them: 90s, 1h30m, 2d."""

import re

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
PART = re.compile(r"(\d+)([smhd])")


def parse(text: str) -> int:
    """The length of ``text`` in seconds. Raises ValueError for what is no duration."""
    seconds = 0
    position = 0
    while part := PART.match(text, position):
        number, unit = part.groups()
        seconds = int(number) * UNITS[unit]
        position = part.end()
    if not text or position != len(text):
        raise ValueError(f"not a duration: {text!r}")
    return seconds
