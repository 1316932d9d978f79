"""What a parent's model is told of a sub-agent that is over."""

from __future__ import annotations

from protocol.frames import Finished
from protocol.records import AgentOutcome

_OPENINGS: dict[AgentOutcome, str] = {
    "error": "The agent {name} failed",
    "cancelled": "The agent {name} was cancelled",
    "crashed": "The agent {name} crashed",
    "limit": "The agent {name} reached a limit",
}


def child_report(agent_name: str, ending: Finished, last_text: str = "") -> str:
    """The text of the delegating call's result.

    A complete child's is its reply alone. For every other ending it says what happened and why, and what the child had
    said last (``last_text``, or its unfinished response), so that its work is not lost on its parent.
    """
    if ending.outcome == "complete":
        return ending.response
    opening = _OPENINGS[ending.outcome].format(name=agent_name)
    report = f"{opening}: {ending.message.rstrip('.')}." if ending.message else f"{opening}."
    found = ending.response or last_text
    return f"{report}\nWhat it had said last:\n{found}" if found else report
