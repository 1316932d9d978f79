"""From the error of an external agent's turn to the end of our agent."""

from __future__ import annotations

from protocol.frames import Finished
from workers.acp.errors import (
    AcpCancelled,
    AcpCommandError,
    AcpError,
    AcpProcessExited,
    AcpProtocolError,
    AcpSandboxError,
    AcpStopped,
    AcpTimedOut,
)
from workers.acp.jsonrpc import AUTHENTICATION_REQUIRED


def ending_of(error: AcpError, response: str, *, is_our_cancel: bool, has_refused: bool) -> Finished:
    """How the agent ended; ``response`` is what it had said last.

    Only a cancel of ours is one: an agent that stops by itself has not done what it was asked for. Some do so when
    they were refused what they asked leave for (``has_refused``).
    """
    match error:
        case AcpCancelled() if is_our_cancel:
            return Finished(outcome="cancelled", response=response, code="cancelled", message=str(error))
        case AcpCancelled():
            why = "for it was refused what it asked leave for" if has_refused else "though nobody had cancelled it"
            message = f"the agent ended its turn as cancelled, {why}"
            return Finished(outcome="error", response=response, code="agent_cancelled", message=message)
        case AcpStopped(stop_reason=code):
            return Finished(outcome="limit", response=response, code=code, message=str(error))
        case AcpTimedOut():
            return Finished(outcome="limit", response=response, code="timeout", message=str(error))
        case _:
            return Finished(outcome="error", response=response, code=_code_of(error), message=str(error))


def _code_of(error: AcpError) -> str:
    match error:
        case AcpSandboxError() | AcpCommandError():
            return "agent_not_started"
        case AcpProcessExited():
            return "agent_exited"
        case AcpProtocolError(code=code) if code == AUTHENTICATION_REQUIRED:
            return "login_needed"
        case _:
            return "agent_failed"
