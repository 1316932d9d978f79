"""Errors of the contract.

ProtocolError
├── FrameTooLarge       a length prefix over the limit; nothing was allocated for it
├── FrameCutOff         the stream ended inside a frame
├── FrameUndecodable    a whole frame that is no message of the expected union
├── HandshakeMismatch   supervisor and worker are of different versions
└── ScenarioError       a scenario file that can't be used; defined in `protocol.scenario`
"""


class ProtocolError(Exception):
    """Base of all errors of the contract. Never meant for a client: the supervisor turns it into a typed event."""


class FrameTooLarge(ProtocolError):
    """A length prefix announced more than the limit.

    ``offset`` is the position of the prefix in the stream, in bytes from its start.
    """

    def __init__(self, size: int, limit: int, offset: int) -> None:
        super().__init__(f"frame of {size} bytes at offset {offset} is over the limit of {limit}")
        self.size = size
        self.limit = limit
        self.offset = offset


class FrameCutOff(ProtocolError):
    """The stream ended inside a frame: ``pending`` bytes of it had come, its prefix is at ``offset``."""

    def __init__(self, pending: int, offset: int) -> None:
        super().__init__(f"the stream ended inside the frame at offset {offset}, after {pending} bytes of it")
        self.pending = pending
        self.offset = offset


class FrameUndecodable(ProtocolError):
    """A frame whose body is no message that may travel in this direction; ``offset`` as in `FrameTooLarge`."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(f"frame at offset {offset} can't be decoded: {reason}")
        self.offset = offset


class HandshakeMismatch(ProtocolError):
    """The two ends do not speak the same version of the frames."""
