"""Which calls a trust mode lets run when nobody is there to ask.

Source: the safety contract, rule 5. A denial is a result that the model can read, never a silent success.
"""

from __future__ import annotations

import msgspec

from protocol.agent_spec import Trust
from protocol.content import ToolCall
from protocol.tool_names import ToolEffect
from workers.core.shell_advice import advice_against

_DENIALS: dict[Trust, str] = {
    "plan": "denied: this run only reads (trust mode plan); describe the change instead of making it",
    "safe": "denied: this run asks before each side effect (trust mode safe) and nobody is here to answer",
}


_ADVICE = (
    "denied: {reason}. Nobody is here to allow it (trust mode {trust}). Do without, or do it in another way inside the "
    "project: Delete removes a file, and a folder that this command itself makes (mkdir x && ...) may be used freely. "
    "This check only advises on what it can see in a command; it is no boundary."
)


class _Command(msgspec.Struct):
    command: str


def denial(trust: Trust, effect: ToolEffect) -> str | None:
    """Why a call with ``effect`` may not run under ``trust``, or None where it may."""
    if effect in ("read", "delegate"):
        return None
    return _DENIALS.get(trust)


def command_denial(trust: Trust, call: ToolCall, project_root: str) -> str | None:
    """Why the shell command of ``call`` may not run under ``trust``, as far as its text shows; None where it may.

    Arguments that are no command's are left for the tool to refuse.
    """
    try:
        command = msgspec.json.decode(call.arguments, type=_Command, strict=False).command
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None
    reason = advice_against(command, project_root)
    return None if reason is None else _ADVICE.format(reason=reason, trust=trust)
