from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.tools.edit import edited_text
from workers.tools.replacements import Replacement, apply_replacements
from workers.tools.text_file import TextFile
from workers.tools.tool import ToolError

small_text = st.text(alphabet="ab\n", max_size=12)
replacements = st.lists(
    st.builds(Replacement, old_str=st.text(alphabet="ab\n", max_size=3), new_str=small_text, replace_all=st.booleans()),
    max_size=4,
)


def modelled(text: str, todo: list[Replacement]) -> str | None:
    """What str.replace makes of it; None where one of them can't be made for certain."""
    for replacement in todo:
        old = replacement.old_str
        places = sum(text.startswith(old, at) for at in range(len(text)))
        if not old or old == replacement.new_str or places == 0 or (places > 1 and not replacement.replace_all):
            return None
        text = text.replace(old, replacement.new_str)
    return text


@given(small_text, replacements)
def test_the_result_is_that_of_str_replace_for_all_of_them_or_a_refusal(text: str, todo: list[Replacement]) -> None:
    expected = modelled(text, todo)
    if expected is None:
        with pytest.raises(ToolError):
            apply_replacements(text, todo)
    else:
        assert apply_replacements(text, todo)[0] == expected


@given(small_text, replacements)
def test_line_ends_make_no_difference_to_what_is_replaced(text: str, todo: list[Replacement]) -> None:
    file = TextFile(text=text.replace("\n", "\r\n"))
    expected = modelled(text, todo)
    if expected is None or not file.has_only_crlf:
        return
    assert edited_text(file, tuple(todo))[0] == expected.replace("\n", "\r\n")


def test_occurrences_that_overlap_are_ambiguous() -> None:
    with pytest.raises(ToolError, match="occurs 2 times, at lines 1, 1"):
        apply_replacements("aaa", [Replacement(old_str="aa", new_str="b")])


def test_no_more_than_ten_lines_are_named() -> None:
    with pytest.raises(ToolError, match=r"occurs 50 times, at lines 1, 2, .*, 10, \.\.\.;"):
        apply_replacements("a\n" * 50, [Replacement(old_str="a", new_str="b")])
