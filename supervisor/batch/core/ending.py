"""How a run of the batch ended. Source: the batch contract, "Signals and exit codes"."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor import exit_codes
from supervisor.batch.core.words import EndReason, HaltReason, Status

STOPPED_EARLY = 3


def exit_code(
    reason: EndReason, counts: Mapping[Status, int], pending: int, *, signal: int | None = None, no_fail: bool = False
) -> int:
    """The exit code for ``counts`` verdicts and ``pending`` jobs without one. 5 comes before a signal."""
    if reason == "storage":
        return exit_codes.STORAGE
    if signal is not None:
        return exit_codes.of_signal(signal)
    if pending:
        return STOPPED_EARLY
    return 0 if no_fail or not any(count for status, count in counts.items() if status != "ok") else exit_codes.ERROR


def end_reason(halt: HaltReason | None, counts: Mapping[Status, int], pending: int) -> EndReason:
    """The word for how it ended; a halt that left no job without a verdict changed nothing."""
    if halt in ("storage", "signal") or (halt is not None and pending):
        return halt
    return "failed" if any(count for status, count in counts.items() if status != "ok") else "complete"
