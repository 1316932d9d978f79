"""How a turn of an external agent can fail.

AcpError
├── AcpCommandError     the text that should start an agent is no command
├── AcpSandboxError     the process could not be started; ``__cause__`` holds the sandbox's own words
├── AcpCancelled        somebody ended the turn: the caller, an interrupt, or the agent itself
├── AcpTimedOut         the time ran out
├── AcpStopped          the agent ran into a limit of its own; what it had said is kept
├── AcpProtocolError    the agent does not keep to the protocol, or answered with an error
└── AcpProcessExited    the agent's process was gone before it had answered

No message holds what the agent wrote on its standard error: that is in ``exec_output_tail`` alone, with secrets
replaced (see `workers.acp.redact`).
"""

from __future__ import annotations

import msgspec


class ExecOutputTail(msgspec.Struct, frozen=True):
    """The end of what a process wrote: ``stderr`` is at most 8192 bytes of UTF-8, redacted; empty if it wrote none."""

    stderr: str = ""


class AcpError(Exception):
    """Base of all errors of an external agent.

    ``exec_output_tail`` is what the agent wrote on its standard error, as far as it was started.
    """

    exec_output_tail = ExecOutputTail()


class AcpCommandError(AcpError):
    """The text is empty, or no list of shell words."""


class AcpSandboxError(AcpError):
    """The sandbox could not start the process; its own error is the ``__cause__``."""


class AcpCancelled(AcpError):
    """The turn was cancelled, interrupted without a follow-up, or ended as ``cancelled`` by the agent."""

    def __init__(self, message: str = "the agent's turn was cancelled") -> None:
        super().__init__(message)


class AcpTimedOut(AcpError):
    """The turn was not done within its time; ``timeout`` is in seconds."""

    def __init__(self, timeout: float) -> None:
        super().__init__(f"the agent was not done within {timeout:g} s")
        self.timeout = timeout


class AcpStopped(AcpError):
    """The agent stopped at a limit of its own.

    ``stop_reason`` is ``max_tokens`` or ``max_turn_requests``, ``text`` what the agent had said until then.
    """

    def __init__(self, stop_reason: str, text: str) -> None:
        super().__init__(f"the agent stopped before it was done: {stop_reason}")
        self.stop_reason = stop_reason
        self.text = text


class AcpProtocolError(AcpError):
    """The conversation can't go on; ``code`` is that of the agent's JSON-RPC error, None where it sent none."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class AcpProcessExited(AcpError):
    """The process ended before it had answered, with whatever code; ``exit_code`` is negative for a signal."""

    def __init__(self, exit_code: int, exec_output_tail: ExecOutputTail) -> None:
        super().__init__(f"the agent's process ended before it had answered: exit_code={exit_code}")
        self.exit_code = exit_code
        self.exec_output_tail = exec_output_tail
