"""What starts an external agent, and the environment it gets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

import msgspec

from workers.acp.errors import AcpCommandError

SECRET_SUFFIXES = ("_api_key", "_secret", "_token", "_password", "_credential")
"""Variables whose names end so, in any case, are not passed on to an agent."""

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


class AcpProcessSpec(msgspec.Struct, frozen=True):
    """A command: ``argv`` has at least one word, ``env`` the variables that were set before it."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = {}  # msgspec copies it for each

    @classmethod
    def parse(cls, text: str) -> AcpProcessSpec:
        """The command that ``text`` is in a shell's words; words ``NAME=value`` before the command become ``env``.

        Quotes and backslashes as in a POSIX shell, without expansions. Raises `AcpCommandError`.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise AcpCommandError(f"the agent's command can't be read: {error}") from None
        env: dict[str, str] = {}
        while words and (assignment := _ASSIGNMENT.fullmatch(words[0])):
            env[assignment[1]] = assignment[2]
            del words[0]
        if not words or not words[0]:
            raise AcpCommandError("the agent's command is empty: give the program that starts it")
        if "\0" in text:
            raise AcpCommandError("the agent's command holds a NUL character")
        return cls(tuple(words), env)


def agent_environment(ours: Mapping[str, str], *trusted: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of an agent: ``ours`` without what is secret, then each of ``trusted`` as it is.

    ``BASH_ENV`` is left out too: it would have every shell that the agent starts run a script of ours first. What the
    person or the request sets is passed on whatever its name. Source: the contract of external agents, "Environment".
    """
    composed = {
        name: value for name, value in ours.items() if name != "BASH_ENV" and not name.lower().endswith(SECRET_SUFFIXES)
    }
    for variables in trusted:
        composed.update(variables)
    return composed
