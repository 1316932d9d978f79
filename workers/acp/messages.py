"""What corral says to an agent in a turn, and what it reads from the agent's answers.

Source: Agent Client Protocol v1, "Initialization", "Session Setup", "Prompt Turn".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from protocol.codec import clean_text
from workers.acp.effects import Answered, Cancelled, Ending, Failed, Stopped
from workers.acp.jsonrpc import AUTHENTICATION_REQUIRED, ErrorResponse, Params, is_same_id, notification_line

PROTOCOL_VERSION = 1


def initialize_params(client_version: str) -> Params:
    """We lend an agent neither our files nor a terminal: it has its own."""
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
        "clientInfo": {"name": "corral", "version": client_version},
    }


def session_params(cwd: str) -> Params:
    """A new session in ``cwd``."""
    return {"cwd": cwd, "mcpServers": []}


def taken_up_params(session_id: str, cwd: str) -> Params:
    """A session of before, by ``session/resume`` or ``session/load``."""
    return {"sessionId": session_id, **session_params(cwd)}


def prompt_params(session_id: str, text: str) -> Params:
    """A prompt of one block of text."""
    return {"sessionId": session_id, "prompt": [{"type": "text", "text": clean_text(text)}]}


def cancel_line(session_id: str) -> bytes:
    """The ``session/cancel`` of whatever prompt is open."""
    return notification_line("session/cancel", {"sessionId": session_id})


def object_of(value: object) -> Mapping[str, object]:
    """``value`` where it is an object, else an empty one."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def objects_of(value: object) -> list[Mapping[str, object]]:
    """The objects of ``value`` where it is a list; all else is left out."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, object]", item) for item in items if isinstance(item, dict)]


def version_fault(result: Mapping[str, object]) -> Failed | None:
    """Why the two can't talk, where the agent answered ``initialize`` with another version; None where they can."""
    version = result.get("protocolVersion")
    if is_same_id(version, PROTOCOL_VERSION):  # neither "1" nor true
        return None
    return Failed(f"the agent speaks version {version!r:.40} of the protocol, not {PROTOCOL_VERSION}")


def login_methods(result: Mapping[str, object]) -> tuple[str, ...]:
    """The names of the ways to log in that the answer to ``initialize`` offers."""
    names = [method.get("name") for method in objects_of(result.get("authMethods"))]
    return tuple(name for name in names if isinstance(name, str))


def spoken_text(update: Mapping[str, object]) -> str:
    """The piece of the reply that an update is; empty for all other updates."""
    content = object_of(update.get("content"))
    piece = content.get("text")
    if update.get("sessionUpdate") != "agent_message_chunk" or content.get("type") != "text":
        return ""
    return piece if isinstance(piece, str) else ""


def failure_of(method: str, error: ErrorResponse, logins: Sequence[str]) -> Failed:
    """What it means that the agent answered ``method`` with an error; ``logins`` are its `login_methods`."""
    if error.code == AUTHENTICATION_REQUIRED:
        offers = f" (it offers: {', '.join(logins)})" if logins else ""
        login = f"start it by hand once and log in{offers}, then try again"
        return Failed(f"the agent needs a login: {login}. It says: {error.message}", error.code)
    return Failed(f"the agent answered {method} with an error: {error.message} ({error.code})", error.code)


def judged(stop_reason: object) -> Ending:
    """What the stop reason of the last prompt makes of the turn."""
    match stop_reason:
        case "end_turn" | "refusal":
            return Answered(str(stop_reason))
        case "max_tokens" | "max_turn_requests":
            return Stopped(str(stop_reason))
        case "cancelled":
            return Cancelled()
        case str():
            return Failed(f"the agent ended its turn with the unknown stop reason {stop_reason!r:.80}")
        case _:
            return Failed("the agent ended its turn without a stop reason")
