"""Run external agents over the Agent Client Protocol; what is imported from here is a fixed interface."""

from workers.acp.command import AcpProcessSpec
from workers.acp.control import AcpControl, SteeringMessage
from workers.acp.errors import (
    AcpCancelled,
    AcpCommandError,
    AcpError,
    AcpProcessExited,
    AcpProtocolError,
    AcpSandboxError,
    AcpStopped,
    AcpTimedOut,
    ExecOutputTail,
)
from workers.acp.request import AcpRunRequest, AcpRunResult
from workers.acp.turn import run_acp_turn

__all__ = [
    "AcpCancelled",
    "AcpCommandError",
    "AcpControl",
    "AcpError",
    "AcpProcessExited",
    "AcpProcessSpec",
    "AcpProtocolError",
    "AcpRunRequest",
    "AcpRunResult",
    "AcpSandboxError",
    "AcpStopped",
    "AcpTimedOut",
    "ExecOutputTail",
    "SteeringMessage",
    "run_acp_turn",
]
