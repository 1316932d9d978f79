"""Which calls a trust mode lets run when nobody is there to ask.

Source: the safety contract, rule 5. A denial is a result that the model can read, never a silent success.
"""

from __future__ import annotations

from protocol.agent_spec import Trust
from protocol.tool_names import ToolEffect

_DENIALS: dict[Trust, str] = {
    "plan": "denied: this run only reads (trust mode plan); describe the change instead of making it",
    "safe": "denied: this run asks before each side effect (trust mode safe) and nobody is here to answer",
}


def denial(trust: Trust, effect: ToolEffect) -> str | None:
    """Why a call with ``effect`` may not run under ``trust``, or None where it may."""
    if effect in ("read", "delegate"):
        return None
    return _DENIALS.get(trust)
