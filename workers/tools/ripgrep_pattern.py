r"""Python's regular expressions in the words of ripgrep, for as much as means exactly the same in both. Pure.

The two languages look alike and differ in corners: ``\w`` takes other characters, ``[a&&b]`` is an intersection in one
of them, letters fold their case in other ways. What is not certain to find the same lines is not translated.
Source: Python's `re`; the syntax page of Rust's `regex`; Unicode Technical Standard 18.
"""

from __future__ import annotations

import re

_CLASSES = {"d": r"\p{Nd}", "w": r"\p{L}\p{N}_", "s": r"\s\x1c-\x1f"}
_SAME_ESCAPES = frozenset("trfva")
_COUNT = re.compile(r"\{[0-9]{1,3}(?:,(?:[0-9]{1,3})?)?\}")
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


class _Untranslatable(Exception):
    """There is a piece in the pattern that may not mean the same."""


def ripgrep_pattern(pattern: str, ignore_case: bool) -> str | None:
    """The same as ``pattern``, a valid one of Python's, for ``rg``; None where that is not certain.

    It is matched against one line at a time, without its end.
    """
    try:
        return _Translation(pattern, ignore_case).translated()
    except _Untranslatable:
        return None


class _Translation:
    def __init__(self, pattern: str, ignore_case: bool) -> None:
        self._rest = pattern
        self._ignore_case = ignore_case

    def translated(self) -> str:
        pieces: list[str] = []
        while self._rest:
            pieces.append(self._piece())
        return "".join(pieces)

    def _take(self, length: int = 1) -> str:
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken

    def _piece(self) -> str:
        character = self._take()
        if character == "\\":
            return self._escape()
        if character == "[":
            return self._set()
        if character == "(":
            return self._group()
        if character in "*+?":
            return character + self._lazy()
        if character == "{":
            return self._count()
        if character in ".^$|)":
            return character
        return self._literal(character)

    def _escape(self) -> str:
        character = self._take()
        kind = character.lower()
        if kind in _CLASSES:
            members = _CLASSES[kind]
            return self._as_it_is(f"[{members}]" if character == kind else f"[^{members}]")
        if character in _SAME_ESCAPES:
            return f"\\{character}"
        if character in _PUNCTUATION or character == " ":
            return _plain(character)
        raise _Untranslatable

    def _group(self) -> str:
        if not self._rest.startswith("?"):
            return "("
        if self._take(2) == "?:":
            return "(?:"
        raise _Untranslatable  # flags, names, look-around, comments, conditions

    def _lazy(self) -> str:
        if self._rest.startswith("+"):
            raise _Untranslatable  # possessive; in Rust a repetition of a repetition
        return self._take() if self._rest.startswith("?") else ""

    def _count(self) -> str:
        found = _COUNT.match("{" + self._rest)
        if found is None:
            raise _Untranslatable  # a plain brace, or none that Rust takes
        self._take(len(found[0]) - 1)
        return found[0] + self._lazy()

    def _literal(self, character: str) -> str:
        if self._ignore_case:
            if character in "iI":  # to which Python counts the letters of Turkish
                return self._as_it_is(r"[iI\x{130}\x{131}]")
            if not character.isascii():
                raise _Untranslatable
        return _plain(character)

    def _set(self) -> str:
        if self._ignore_case:
            raise _Untranslatable
        inside = self._inside_of_set()
        translated = "[^" if inside.startswith("^") else "["
        rest = inside.removeprefix("^")
        while rest:
            member, rest = _member(rest)
            if rest.startswith("-") and len(rest) > 1:
                end, rest = _member(rest[1:])
                member = f"{member}-{end}"
            translated += member
        return f"{translated}]"

    def _inside_of_set(self) -> str:
        """All up to the closing bracket; one in first place is a member."""
        found = re.match(r"\^?\]?(?:[^\\\]]|\\.)*", self._rest, re.DOTALL)
        assert found is not None
        inside = self._take(len(found[0]))
        if self._take() != "]":
            raise _Untranslatable
        return inside

    def _as_it_is(self, piece: str) -> str:
        """``piece`` with its case: the case folding of a whole set would take in characters that Python leaves out."""
        return f"(?-i:{piece})" if self._ignore_case else piece


def _member(text: str) -> tuple[str, str]:
    """The first member of a set, translated, and what is behind it."""
    if text[0] != "\\":
        return _plain(text[0]), text[1:]
    character, rest = text[1], text[2:]
    if character in _CLASSES:
        return _CLASSES[character], rest
    if character in _SAME_ESCAPES:
        return f"\\{character}", rest
    if character in _PUNCTUATION or character == " ":
        return _plain(character), rest
    raise _Untranslatable


def _plain(character: str) -> str:
    if character in "\n\0" or "\ud800" <= character <= "\udfff":
        raise _Untranslatable
    # Rust's \< and \> are edges of words.
    return f"\\{character}" if character in _PUNCTUATION and character not in "<>" else character
