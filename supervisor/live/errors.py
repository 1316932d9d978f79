"""What can go wrong between a second shell and a run.

SupervisorError
├── WrongUsage
│   └── Ambiguous       the words name several runs or agents: exit code 2
├── NotFound            no live run, or no agent in it, of that name: exit code 3
├── FolderUnsafe        others could put sockets where ours are: exit code 1
└── ConnectionLost      the run does not answer, or went away in the middle: exit code 5
"""

from __future__ import annotations

from supervisor.errors import SupervisorError, WrongUsage


class Ambiguous(WrongUsage):
    """Several runs or agents fit what was asked for; the message names them."""

    code = "ambiguous"


class NotFound(SupervisorError):
    """No live run, or no agent of the run, fits what was asked for."""

    code = "not_found"
    exit_code = 3


class FolderUnsafe(SupervisorError):
    """The folder of the sockets is not this user's own, or open to others."""

    code = "folder_unsafe"


class ConnectionLost(SupervisorError):
    """The run does not answer, is of another user, or went away before it had said all."""

    code = "connection_lost"
    exit_code = 5
