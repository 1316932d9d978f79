"""What can keep a batch from starting, besides what `supervisor.errors` has.

SupervisorError
├── BatchLocked         a live runner works in the folder: exit code 4
└── WrongUsage
    └── JobFileInvalid      the job file has faults; each is a note of its own
"""

from __future__ import annotations

from supervisor.errors import SupervisorError, WrongUsage


class BatchLocked(SupervisorError):
    """Another runner has the folder."""

    code = "batch_locked"
    exit_code = 4


class JobFileInvalid(WrongUsage):
    """The job file can't be used; ``faults`` are lines ``FILE:LINE: FIELD: reason``."""

    code = "job_file_invalid"

    def __init__(self, message: str, faults: tuple[str, ...]) -> None:
        super().__init__(message)
        self.faults = faults
