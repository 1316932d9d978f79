from __future__ import annotations

import codecs

from hypothesis import given
from hypothesis import strategies as st

from workers.tools.text_file import decode, split_lines

marks = st.sampled_from([b"", codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE])


@given(marks, st.binary(max_size=60))
def test_text_that_was_decoded_is_encoded_to_the_same_bytes(mark: bytes, rest: bytes) -> None:
    file = decode(mark + rest)
    if file is not None:
        assert file.encoded(file.text) == mark + rest


@given(st.text(max_size=60).filter(lambda text: "\0" not in text and not text.startswith("\ufeff")))
def test_utf8_is_always_text_and_has_no_mark(text: str) -> None:
    file = decode(text.encode())
    assert file is not None
    assert (file.text, file.encoding, file.mark) == (text, "utf-8", b"")


def test_a_nul_byte_or_control_characters_outside_utf8_make_a_binary() -> None:
    assert decode(b"ab\0cd") is None
    assert decode(b"\xff\xd8\x01\x02") is None
    assert decode(b"\x7fELF\x02\x01\x01\0") is None


@given(st.lists(st.text(alphabet="ab ", max_size=4), max_size=6), st.sampled_from(["\n", "\r\n"]))
def test_lines_are_split_at_both_kinds_of_line_ends(lines: list[str], end: str) -> None:
    assert split_lines("".join(line + end for line in lines)) == lines
