"""What a second shell and a run say to each other: one JSON object a line.

The shell sends commands, the run answers each with one reply, in order. After `Tailing` the wire's own lines follow as
they are, and a `TailEnd` as the last line; no line of the wire has its type. A run that goes away in the middle leaves
it out.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from supervisor.live.snapshot import RunSnapshot

MAX_COMMAND_BYTES = 64 * 1024


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base; the tag ``type`` names the message. Unknown fields are ignored."""


# -- commands ---------------------------------------------------------------------------------------------------------


class Ps(_Message, frozen=True, kw_only=True, tag="ps"):
    """Show the run as it is now. Answer: `Shown`."""


class Tail(_Message, frozen=True, kw_only=True, tag="tail"):
    """Send the lines from now on, those of ``agent`` alone if it is given. Answer: `Tailing`; the last command."""

    agent: str | None = None


class Kill(_Message, frozen=True, kw_only=True, tag="kill"):
    """End ``agent`` and its descendants, or the whole run. Answer: `Killed`, once the agent is over."""

    agent: str | None = None


Command: TypeAlias = Ps | Tail | Kill
"""The command table."""


# -- replies ----------------------------------------------------------------------------------------------------------


class Shown(_Message, frozen=True, kw_only=True, tag="shown"):
    """The run."""

    run: RunSnapshot


class Tailing(_Message, frozen=True, kw_only=True, tag="tailing"):
    """The lines follow: those of ``agent_id``, or all. ``run`` is the state that they follow upon."""

    run: RunSnapshot
    agent_id: str | None


class TailEnd(_Message, frozen=True, kw_only=True, tag="tail_end"):
    """No line follows: there are no more, or the reader was ``too_slow`` and has missed what came after the last."""

    reason: Literal["run_ended", "agent_ended", "too_slow"]


class Killed(_Message, frozen=True, kw_only=True, tag="killed"):
    """What a `Kill` came to.

    ``agent_id`` is None for the whole run, which is still ending then: the connection closes with its end, and its
    process ends too unless ``process_goes_on``. Otherwise ``outcome`` is how the agent ended (it may have been done
    just before), None if it still has not. ``already_ended``: it had before the command came. ``below`` are the live
    agents that were ended with it.
    """

    agent_id: str | None
    below: tuple[str, ...] = ()
    already_ended: bool = False
    outcome: str | None = None
    process_goes_on: bool = False


class CommandError(_Message, frozen=True, kw_only=True, tag="command_error"):
    """The command had no effect. ``message`` is a sentence for a person."""

    code: Literal["bad_command", "too_large", "unknown_agent", "ambiguous_agent", "busy", "forbidden"]
    message: str


Reply: TypeAlias = Shown | Tailing | TailEnd | Killed | CommandError

command_decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
reply_decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
_encoder = msgspec.json.Encoder()

TAIL_END_START = b'{"type":"tail_end",'
"""How the line of a `TailEnd` begins, and none of the wire's."""


def line_of(message: Command | Reply) -> bytes:
    """The message as a line."""
    return _encoder.encode(message) + b"\n"
