"""Text that is safe to show: what models, tools and servers write may hold anything.

Source: the safety contract, rule 7; the ranges are those of ECMA-48 (C0, C1) and UAX #9 (bidirectional controls).
"""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]"  # control sequences, whole
    "|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)"  # operating system commands, whole
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """``text`` without control sequences, control characters but tab and line end, and bidirectional overrides."""
    return _UNSAFE.sub("", text)
