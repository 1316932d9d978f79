"""The end of what a process wrote on its standard error, fit to be shown: without secrets, without controls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from workers.sandbox.command_output import plain_text

TAIL_BYTES = 8192
"""How much of it is shown, as UTF-8."""
KEPT_BYTES = 256 * 1024
"""How much is kept, so that a secret lies in it whole wherever the shown part is cut out of it."""

PLACEHOLDER = "[redacted]"

_SECRET_NAME = r"(?:api_?key|access_?key|private_?key|secret|token|passwd|password|passphrase|credentials?)"
_NAMES_A_SECRET = re.compile(rf"(?:^|_){_SECRET_NAME}$", re.IGNORECASE)
_SHORTEST_SECRET = 4
"""Shorter values are words of every text."""
_REMNANT_BYTES = 4096
"""The longest secret of a known shape; so much of it may be left where the kept part begins."""

_SHAPES = tuple(
    re.compile(pattern)
    for pattern in (
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]{0,8192}(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?",
        r"\beyJ[\w-]{8,2048}\.[\w-]{8,}(?:\.[\w-]*)?",  # JSON Web Token
        r"\b(?:sk|pk|rk)[-_](?:[A-Za-z0-9]{1,12}[-_]){0,3}[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, Stripe
        r"\bgh[oprsu]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}",
        r"\bxox[a-z]-[\w-]{8,}|\bxapp-[\w-]{8,}",  # Slack
        r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",  # Amazon
        r"\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}",  # Google
        r"\b(?:hf|gsk|npm|r8)_[A-Za-z0-9]{16,}|\b(?:xai|pplx|tgp|pypi)-[\w-]{16,}",
        r"(?<=Bearer )[\w.~+/=-]{8,}|(?<=bearer )[\w.~+/=-]{8,}",
        r"(?<=://)[^\s/@:]{0,256}:[^\s/@]{1,256}(?=@)",  # name and password in an address
    )
)
_ASSIGNED = (
    re.compile(rf"(?i)(\b\w{{0,64}}{_SECRET_NAME}[\"']?=[\"']?)([^\s\"',;]{{4,}})"),
    # With a colon a bare "token" or "secret" is a word of a sentence.
    re.compile(rf"(?i)(\b(?:\w{{1,64}}_{_SECRET_NAME}|api_?key|password)[\"']?: ?[\"']?)([^\s\"',;]{{4,}})"),
)


class TailBuffer:
    """The last `KEPT_BYTES` at least of a stream, in bounded memory and linear time."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self.is_cut = False

    def add(self, data: bytes) -> None:
        """Append ``data``."""
        self._kept += data
        if len(self._kept) > 2 * KEPT_BYTES:
            del self._kept[:-KEPT_BYTES]
            self.is_cut = True

    @property
    def content(self) -> bytes:
        """What is kept."""
        return bytes(self._kept)


class Redactor:
    """Knows the secrets of some environments, by the names of their variables, and what keys look like."""

    def __init__(self, *environments: Mapping[str, str]) -> None:
        values = {value for variables in environments for value in _secret_values(variables)}
        # The longest first: one secret may be a part of another.
        self._values = sorted(values, key=len, reverse=True)
        self._remnant = max(_REMNANT_BYTES, *(len(value) for value in self._values), 0)

    def clean(self, text: str) -> str:
        """``text`` without secrets and control characters. Lone surrogates stand for bytes that are no UTF-8."""
        text = self._redacted(text).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        # Once more: an escape sequence in the middle had hidden it.
        return self._redacted(plain_text(text))

    def tail(self, written: TailBuffer) -> str:
        """The last `TAIL_BYTES` of what was ``written``, cleaned first, then cut between two characters.

        Where the beginning was not kept, the first characters of the rest may be half of a secret: they are left out.
        """
        text = self.clean(written.content.decode("utf-8", "surrogateescape"))
        if written.is_cut:
            text = text[self._remnant :]
        return text.encode()[-TAIL_BYTES:].decode("utf-8", "ignore")

    def _redacted(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, PLACEHOLDER)
        for shape in _SHAPES:
            text = shape.sub(PLACEHOLDER, text)
        for assigned in _ASSIGNED:
            text = assigned.sub(rf"\1{PLACEHOLDER}", text)
        return text


def _secret_values(variables: Mapping[str, str]) -> Iterable[str]:
    for name, value in variables.items():
        if _NAMES_A_SECRET.search(name) and len(value) >= _SHORTEST_SECRET:
            yield value
            # A program prints the lines of a long one by themselves.
            if "\n" in value:
                yield from (line for line in value.splitlines() if len(line) > _SHORTEST_SECRET * 2)
