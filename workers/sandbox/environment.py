"""The environment of a command: what it is allowed to see of ours, and what keeps it from waiting for a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

ALLOWED = frozenset({"PATH", "HOME", "LANG", "TERM", "TZ", "TMPDIR", "USER", "SHELL", "LOGNAME"})
"""What a command inherits, besides ``LC_*``. An allow-list, because a list of secrets would never be complete."""

_DEFAULTS = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "TERM": "dumb"}

_NOBODY_IS_THERE = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    # Output that sits in a buffer when a command is killed at its timeout is lost to the model.
    "PYTHONUNBUFFERED": "1",
}


def command_environment(ours: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """The whole environment of a command, made from ``ours``; ``also`` names further variables to pass on."""
    allowed = ALLOWED.union(also)
    passed = {name: value for name, value in ours.items() if name in allowed or name.startswith("LC_")}
    return {**_DEFAULTS, **_NOBODY_IS_THERE, **passed}
