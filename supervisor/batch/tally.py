"""What a batch has come to so far: its verdicts by status, what it used, how long it will take."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from protocol.usage import Usage
from supervisor.batch.core.words import STATUSES, Status
from supervisor.batch.ledger_schema import StoredAttempt
from supervisor.batch.records import Counts

VERDICTS_FOR_ETA = 3
_LAST = 20


class Tally:
    """Counts over all runs of the batch, of the jobs that are in the file now."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._statuses: dict[Status, int] = dict.fromkeys(STATUSES, 0)
        self._usage = Usage()
        self._live: dict[tuple[str, int], Usage] = {}
        self._uncertain = 0
        self._durations: deque[float] = deque(maxlen=_LAST)
        self.retries = 0

    def take_history(self, statuses: Iterable[Status], attempts: Iterable[StoredAttempt]) -> None:
        """The verdicts and attempts of the runs before this one."""
        for status in statuses:
            self._statuses[status] += 1
        for attempt in attempts:
            self._usage += attempt.usage
            self._uncertain += attempt.uncertain_calls

    def take_verdict(self, status: Status, seconds: float) -> None:
        """A job has its verdict; its last attempt took so many seconds."""
        self._statuses[status] += 1
        self._durations.append(seconds)

    def take_usage(self, job_id: str, attempt: int, used: Usage) -> None:
        """What an attempt that runs has used so far."""
        self._live[job_id, attempt] = used

    def end_attempt(self, job_id: str, attempt: int, used: Usage, uncertain: int) -> None:
        """An attempt has ended."""
        self._live.pop((job_id, attempt), None)
        self._usage += used
        self._uncertain += uncertain

    @property
    def usage(self) -> Usage:
        """All that was used, by what runs too."""
        return sum(self._live.values(), self._usage)

    @property
    def uncertain_calls(self) -> int:
        """Calls that may have been billed besides."""
        return self._uncertain

    @property
    def statuses(self) -> dict[Status, int]:
        """The verdicts by status."""
        return dict(self._statuses)

    @property
    def verdicts(self) -> int:
        """How many jobs have one."""
        return sum(self._statuses.values())

    @property
    def pending(self) -> int:
        """How many jobs have none."""
        return self._total - self.verdicts

    def counts(self) -> Counts:
        """The jobs by verdict."""
        return Counts(total=self._total, pending=self.pending, **self._statuses)

    def eta_seconds(self, slots: int) -> float | None:
        """The time that the rest will take in so many slots, by the last 20 verdicts; None before there are 3."""
        if len(self._durations) < VERDICTS_FOR_ETA:
            return None
        average = sum(self._durations) / len(self._durations)
        return average * self.pending / max(1, min(slots, self.pending))
