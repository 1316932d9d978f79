"""Glob patterns as regular expressions. A pure function of text.

``*`` and ``?`` stay within a name, ``**`` as a whole part stands for any number of folders, ``[...]`` is a set of
characters, ``{a,b}`` a choice. Source: POSIX.1-2017, XCU 2.13, with globstar and braces of bash.
"""

from __future__ import annotations

import re

_MOST_CHOICES = 256


class BadGlob(ValueError):
    """The pattern means nothing; the message says why."""


def compile_glob(pattern: str) -> re.Pattern[str]:
    """A regular expression whose ``fullmatch`` takes the paths that ``pattern`` stands for; raises `BadGlob`."""
    choices = expand_braces(pattern)
    return re.compile("|".join(f"(?:{_translated_path(choice)})" for choice in choices), re.DOTALL)


def literal_folders(pattern: str) -> str:
    """The leading folders of ``pattern`` that hold no special character: there the search may begin."""
    parts = pattern.split("/")[:-1]
    special = next((at for at, part in enumerate(parts) if set(part) & set("*?[{\\") or part == ""), len(parts))
    return "/".join(parts[:special])


def expand_braces(pattern: str) -> list[str]:
    """``a{b,c}`` as ``ab`` and ``ac``, inner braces too. Braces without a comma or a partner are plain characters."""
    expanded: list[str] = []
    pending = [pattern]
    while pending:
        text = pending.pop()
        found = _first_choice(text)
        if found is None:
            expanded.append(text)
        else:
            before, options, after = found
            pending += [f"{before}{option}{after}" for option in reversed(options)]
        if len(expanded) + len(pending) > _MOST_CHOICES:
            raise BadGlob(f"the braces stand for more than {_MOST_CHOICES} patterns")
    return expanded


def _first_choice(text: str) -> tuple[str, list[str], str] | None:
    """The first pair of braces with a comma between them on its own level: what is before, in and behind it."""
    for start in (at for at, character in enumerate(text) if character == "{"):
        depth, commas = 0, [start]
        for at in range(start, len(text)):
            if text[at] == "{":
                depth += 1
            elif text[at] == "," and depth == 1:
                commas.append(at)
            elif text[at] == "}":
                depth -= 1
                if depth == 0:
                    if len(commas) == 1:
                        break
                    edges = [*commas, at]
                    options = [text[edges[i] + 1 : edges[i + 1]] for i in range(len(commas))]
                    return text[:start], options, text[at + 1 :]
    return None


def _translated_path(pattern: str) -> str:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if not parts:
        raise BadGlob("the pattern is empty")
    translated = ""
    for part in parts[:-1]:
        translated += r"(?:[^/]+/)*" if part == "**" else _translated_name(part) + "/"
    last = parts[-1]
    return translated + (r"(?:[^/]+/)*[^/]+" if last == "**" else _translated_name(last))


def _translated_name(part: str) -> str:
    translated = ""
    at = 0
    while at < len(part):
        character = part[at]
        at += 1
        if character == "*":
            # A run of stars is one star; several would match in needlessly many ways.
            translated += "" if translated.endswith("[^/]*") else "[^/]*"
        elif character == "?":
            translated += "[^/]"
        elif character == "[" and (end := _end_of_set(part, at)) > 0:
            translated += _translated_set(part[at:end])
            at = end + 1
        elif character == "\\" and at < len(part):
            translated += re.escape(part[at])
            at += 1
        else:
            translated += re.escape(character)
    return translated


def _end_of_set(part: str, start: int) -> int:
    """Where the set that begins at ``start`` is closed, -1 for nowhere; a bracket in first place belongs to it."""
    first = start + 1 if part[start : start + 1] in ("!", "^") else start
    return part.find("]", first + 1)


def _translated_set(inside: str) -> str:
    negated = inside[0] in "!^"
    characters = inside[1:] if negated else inside
    escaped = re.sub(r"([\\\[\]^&~|])", r"\\\1", characters)
    translated = f"[{'^/' if negated else ''}{escaped}]"
    try:
        re.compile(translated)
    except re.error:
        raise BadGlob(f"[{inside}] is no set of characters") from None
    return translated
