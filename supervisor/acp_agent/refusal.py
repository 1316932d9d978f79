"""How what goes wrong is told to the client, as an error of JSON-RPC."""

from __future__ import annotations

from protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, ErrorObject
from supervisor.errors import ModelUnavailable, SupervisorError, UnknownSession, WrongUsage

RESOURCE_NOT_FOUND = -32002
"""Of the Agent Client Protocol."""


class Refusal(Exception):
    """A request can't be carried out; the message is a sentence for a person."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def error_of(error: Refusal | SupervisorError) -> ErrorObject:
    """``error`` as the client is told of it; hints are lines below the sentence."""
    if isinstance(error, Refusal):
        return ErrorObject(code=error.code, message=str(error))
    message = "\n".join((f"{error}:" if error.hints else str(error), *error.hints))
    return ErrorObject(code=_code_of(error), message=message)


def _code_of(error: SupervisorError) -> int:
    if isinstance(error, UnknownSession):
        return RESOURCE_NOT_FOUND
    # Which model is used is not the client's to say, so the request was not at fault.
    is_request = isinstance(error, WrongUsage) and not isinstance(error, ModelUnavailable)
    return INVALID_PARAMS if is_request else INTERNAL_ERROR
