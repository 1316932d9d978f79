"""Figures as a person reads them at a glance."""

from __future__ import annotations


def duration(milliseconds: int) -> str:
    """``0.4s``, ``59s``, ``2m03s``, ``1h05m``."""
    seconds = milliseconds / 1000
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if not minutes:
        return f"{rest}s"
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours}h{minutes_left:02}m" if hours else f"{minutes}m{rest:02}s"


def tokens(count: int) -> str:
    """``950``, ``12.3k``, ``1.2M``."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 999_950 else f"{count / 1_000_000:.1f}M"


def memory(size: int | None) -> str:
    """Bytes in whole MiB, ``-`` where they are unknown."""
    return "-" if size is None else f"{round(size / (1024 * 1024))} MiB"
