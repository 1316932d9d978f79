from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.tools.glob_pattern import BadGlob, compile_glob, expand_braces, literal_folders

names = st.text(alphabet="ab.", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
pattern_parts = st.one_of(
    st.just("**"),
    st.text(alphabet="ab.*?", min_size=1, max_size=4).filter(lambda part: part not in (".", "..") and "**" not in part),
)


def modelled(parts: list[str], names: list[str]) -> bool:
    """Whether the parts of a pattern stand for the names of a path, by trying all possibilities."""
    if not parts:
        return not names
    if parts[0] == "**":
        if len(parts) == 1:
            return bool(names)
        return modelled(parts[1:], names) or (len(names) > 0 and modelled(parts, names[1:]))
    return bool(names) and fnmatch.fnmatchcase(names[0], parts[0]) and modelled(parts[1:], names[1:])


@given(st.lists(pattern_parts, min_size=1, max_size=4), st.lists(names, min_size=1, max_size=4))
def test_a_pattern_stands_for_the_paths_it_is_meant_to(parts: list[str], path: list[str]) -> None:
    assert bool(compile_glob("/".join(parts)).fullmatch("/".join(path))) == modelled(parts, path)


@given(st.text(alphabet="ab/*?[]{},!^-\\", max_size=12))
def test_any_text_is_a_pattern_or_a_bad_one(text: str) -> None:
    try:
        compiled = compile_glob(text)
    except BadGlob:
        return
    assert isinstance(compiled, re.Pattern)


@pytest.mark.parametrize(
    ("pattern", "expanded"),
    [
        ("a{b,c}d", ["abd", "acd"]),
        ("{a,b{c,d}}", ["a", "bc", "bd"]),
        ("{a,}x", ["ax", "x"]),
        ("a{b}c", ["a{b}c"]),
        ("a{b,c", ["a{b,c"]),
        ("{a,b}{c,d}", ["ac", "ad", "bc", "bd"]),
    ],
)
def test_braces_are_a_choice(pattern: str, expanded: list[str]) -> None:
    assert expand_braces(pattern) == expanded


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("[a-c].x", "b.x", "d.x"),
        ("[!a-c].x", "d.x", "a.x"),
        ("[]a]", "]", "b"),
        ("[^a]", "b", "a"),
        (r"\*.x", "*.x", "a.x"),
        ("a[b", "a[b", "ab"),
        ("(a|b)+.$", "(a|b)+.$", "a"),
    ],
)
def test_sets_and_escapes_have_their_usual_meaning(pattern: str, yes: str, no: str) -> None:
    compiled = compile_glob(pattern)
    assert compiled.fullmatch(yes)
    assert not compiled.fullmatch(no)


def test_the_search_begins_in_the_folders_that_are_named() -> None:
    assert literal_folders("src/lib/*.py") == "src/lib"
    assert literal_folders("src/{a,b}/x.py") == "src"
    assert literal_folders("**/x.py") == ""
    assert literal_folders("src/x.py") == "src"
