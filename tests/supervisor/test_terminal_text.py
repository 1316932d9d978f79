"""Nothing that a model, a tool or a server wrote may steer a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.terminal_text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with a tab\tand\nlines", "plain, with a tab\tand\nlines"),
        ("é 语 🙂 \u00a0", "é 语 🙂 \u00a0"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1Hcleared", "cleared"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "31mred"),
        ("over\rwritten\x08\x7f", "overwritten"),
        ("a\x00b\x0bc\x0cd", "abcd"),
        ("user\u202etxt.exe\u2066\u2069", "usertxt.exe"),
        ("half \ud83d of a pair", "half  of a pair"),
        ("\x1b[31", "[31"),
        ("\x1b\x1b[31m[31m", "[31m"),
    ],
)
def test_what_is_shown_of_a_text(text: str, shown: str) -> None:
    assert printable(text) == shown


unsafe = st.sampled_from(["\x1b", "\x1b[", "\x1b]", "\x07", "\\", "m", ";", "0", "\x9b", "\r", "\u202e", "\ud800"])


@given(st.lists(st.one_of(unsafe, st.text(max_size=3))).map("".join))
def test_no_control_character_but_tab_and_line_end_is_ever_left(text: str) -> None:
    shown = printable(text)
    assert not {character for character in shown if unicodedata.category(character) in ("Cc", "Cs")} - {"\t", "\n"}
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    assert printable(shown) == shown
