"""How long a server asks to be left alone, from the headers of its answer.

Source: RFC 9110, 10.2.3 (Retry-After); ``retry-after-ms`` is what some model servers send beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

MAX_SECONDS = 120.0
"""Nobody waits longer than this because a header says so."""

_decimal = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", re.ASCII)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The wait in seconds, from 0 to `MAX_SECONDS`; None where the server asked for none that makes sense.

    ``headers`` has lower-case names; ``now`` is the wall clock in seconds since the epoch, for dates. A date in the
    past is 0. Milliseconds win over seconds: a server that sends both means the finer one. Never raises.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return _bounded(milliseconds / 1000)
    value = headers.get("retry-after", "")
    seconds = _number(value)
    if seconds is None:
        seconds = _until(value, now)
    return None if seconds is None else _bounded(seconds)


def _number(value: str) -> float | None:
    text = value.strip()
    return float(text) if _decimal.fullmatch(text) else None


def _until(value: str, now: float) -> float | None:
    try:
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:  # "-0000", and the asctime form, mean UTC
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp() - now
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_SECONDS)
