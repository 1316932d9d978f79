"""What can keep a run from starting, or its session from being stored.

SupervisorError
├── WrongUsage              wrong flags or configuration: exit code 2
│   ├── SettingsInvalid         the user's settings file is wrong
│   ├── UnknownAgent            no agent of that name
│   ├── AgentFileInvalid        the agent asked for has a file that is no agent
│   ├── ModelUnavailable        the flags, the agent and the environment don't name a usable model
│   └── UnknownSession          no stored session of that name, or several
├── SessionLocked           a live process works in the session: exit code 4
└── StorageFailed           the session store can't be read or written: exit code 5
    ├── StoreCorrupt            the file is damaged, or no session of ours; left untouched
    └── StoreNewer              written by a newer version; left untouched

Each message is one sentence for a person that says what to do. Source of the exit codes: the v1 wire contract,
"Formats and exit codes".
"""

from __future__ import annotations

from typing import ClassVar


class SupervisorError(Exception):
    """Base. ``code`` is a word for a program, ``exit_code`` what the command exits with.

    ``hints`` are lines below the sentence: commands to try, or what there is to choose from. ``notes`` are sentences
    on what was seen before, and may be the reason.
    """

    code: str = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hints: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.hints = hints
        self.notes: tuple[str, ...] = ()


class WrongUsage(SupervisorError):
    """The command line or the configuration is wrong; nothing was started."""

    code = "wrong_usage"
    exit_code = 2


class SettingsInvalid(WrongUsage):
    """The user's settings file can't be read, or holds what it may not; the message names the line."""

    code = "settings_invalid"


class UnknownAgent(WrongUsage):
    """There is no agent of the name asked for."""

    code = "unknown_agent"


class AgentFileInvalid(WrongUsage):
    """The agent asked for is described by a file that is no agent."""

    code = "agent_file_invalid"


class ModelUnavailable(WrongUsage):
    """No provider, model, address or key to call."""

    code = "model_unavailable"


class UnknownSession(WrongUsage):
    """The session asked for is not in the store."""

    code = "unknown_session"


class SessionLocked(SupervisorError):
    """Another process has the session; ``pid`` is its process id, None where it has not written it yet."""

    code = "session_locked"
    exit_code = 4

    def __init__(self, session_id: str, pid: int | None) -> None:
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(f"session {session_id} is in use by {holder}: wait for it to end, or start a new session")
        self.pid = pid


class StorageFailed(SupervisorError):
    """The store can't be read or written; ``code`` is ``storage_full`` where the disk is full."""

    code = "storage_failed"
    exit_code = 5

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        if full:
            self.code = "storage_full"


class StoreCorrupt(StorageFailed):
    """The file is damaged or is no session of ours. Nothing was written to it."""

    code = "store_corrupt"


class StoreNewer(StorageFailed):
    """The file was written by a newer version. Nothing was written to it."""

    code = "store_newer"
