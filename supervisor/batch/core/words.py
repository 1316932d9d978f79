"""The words of a batch that stand in files and in the ledger."""

from __future__ import annotations

from typing import Literal, TypeAlias

Isolation: TypeAlias = Literal["auto", "none", "copy", "worktree"]
"""Where a job works. ``auto``: a worktree in a git repository, else a copy; nothing where it may only read."""

Status: TypeAlias = Literal["ok", "failed", "check_failed", "timeout", "budget", "crashed"]
"""A verdict."""

Outcome: TypeAlias = Literal[
    "ok",
    "failed",
    "check_failed",
    "timeout",
    "budget",
    "crashed",
    "transient",
    "setup",
    "throttle",
    "provider",
    "lost",
    "cancelled",
]
"""How an attempt ended. The last four are never the job's own doing: it stays pending."""

RetryClass: TypeAlias = Literal["crashed", "transient", "setup", "timeout", "check", "failed"]
"""What ``--retry-on`` names."""

Keep: TypeAlias = Literal["failed", "all", "none"]
"""Which work folders stay after the verdict."""

HaltReason: TypeAlias = Literal[
    "halt", "breaker", "budget", "batch_timeout", "provider", "rate_limited", "signal", "storage"
]
EndReason: TypeAlias = Literal[
    "complete", "failed", "halt", "breaker", "budget", "batch_timeout", "provider", "rate_limited", "signal", "storage"
]
"""Why a run of the batch ended."""

HaltWhen: TypeAlias = Literal["soon", "now"]
"""``soon``: nothing new starts; ``now``: what runs is stopped too."""

STATUSES: tuple[Status, ...] = ("ok", "failed", "check_failed", "timeout", "budget", "crashed")
