"""From the ending of a turn to the error that its caller sees."""

from __future__ import annotations

from workers.acp.effects import Answered, Cancelled, Ending, Exited, Failed, Stopped, TimedOut
from workers.acp.errors import (
    AcpCancelled,
    AcpError,
    AcpProcessExited,
    AcpProtocolError,
    AcpSandboxError,
    AcpStopped,
    AcpTimedOut,
    ExecOutputTail,
)


def error_of(ending: Ending, *, text: str, timeout: float | None, tail: ExecOutputTail) -> AcpError | None:
    """The error that ``ending`` is; None where it is none.

    ``text`` is what the agent had said, ``tail`` the end of its standard error.
    """
    error: AcpError
    match ending:
        case Answered():
            return None
        case Stopped(stop_reason):
            error = AcpStopped(stop_reason, text)
        case Cancelled():
            error = AcpCancelled()
        case TimedOut():
            error = AcpTimedOut(timeout or 0.0)
        case Failed(message, code):
            error = AcpProtocolError(message, code)
        case Exited(exit_code):
            return AcpProcessExited(exit_code, tail)
    error.exec_output_tail = tail
    return error


def start_failure(program: str, error: Exception) -> AcpSandboxError:
    """What to tell somebody whose sandbox could not start ``program``."""
    if isinstance(error, FileNotFoundError) and error.filename in (program, program.encode()):
        message = f"there is no program {program!r}: install it, or give its whole path"
    else:
        message = f"the agent {program!r} could not be started: {error}"
    failure = AcpSandboxError(message)
    failure.__cause__ = error
    return failure
