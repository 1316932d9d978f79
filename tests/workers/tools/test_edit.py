from __future__ import annotations

import stat
from functools import partial

import pytest
import trio

from tests.workers.tools.project import Project


def one(old: str, new: str, **more: bool) -> list[dict[str, object]]:
    return [{"old_str": old, "new_str": new, **more}]


async def test_only_the_given_piece_changes(project: Project) -> None:
    project.write("a.py", "x = 1\ny = 2\n").chmod(0o755)
    assert (
        await project.text("Edit", file_path="a.py", replacements=one("y = 2", "y = 3"))
        == "Edited a.py: 1 place changed."
    )
    assert (project.root / "a.py").read_bytes() == b"x = 1\ny = 3\n"
    assert stat.S_IMODE((project.root / "a.py").stat().st_mode) == 0o755
    assert project.names() == ["a.py"]


async def test_an_ambiguous_piece_is_refused_with_the_lines_it_is_at(project: Project) -> None:
    project.write("a.py", "pass\nx\npass\n\npass\n")
    refusal = await project.refusal("Edit", file_path="a.py", replacements=one("pass", "return"))
    assert "occurs 3 times, at lines 1, 3, 5" in refusal
    assert (project.root / "a.py").read_text() == "pass\nx\npass\n\npass\n"
    text = await project.text("Edit", file_path="a.py", replacements=one("pass", "return", replace_all=True))
    assert text == "Edited a.py: 3 places changed."
    assert (project.root / "a.py").read_text() == "return\nx\nreturn\n\nreturn\n"


async def test_all_replacements_are_made_or_none(project: Project) -> None:
    project.write("a.py", "a b c")
    replacements = [*one("a", "1"), *one("missing", "2"), *one("c", "3")]
    assert "replacement 2 was not found" in await project.refusal("Edit", file_path="a.py", replacements=replacements)
    assert (project.root / "a.py").read_text() == "a b c"


async def test_a_replacement_sees_the_result_of_those_before_it(project: Project) -> None:
    project.write("a.py", "a")
    await project.text("Edit", file_path="a.py", replacements=[*one("a", "b"), *one("b", "c")])
    assert (project.root / "a.py").read_text() == "c"


async def test_the_new_text_is_literal(project: Project) -> None:
    project.write("a.py", "old")
    await project.text("Edit", file_path="a.py", replacements=one("old", r"\1 \g<0> $& {x} %s"))
    assert (project.root / "a.py").read_text() == r"\1 \g<0> $& {x} %s"


@pytest.mark.parametrize(
    ("content", "old", "new", "expected"),
    [
        (b"a\r\nb\r\nc", "a\nb", "1\n2\n3", b"1\r\n2\r\n3\r\nc"),
        (b"a\r\nb\r\n", "a\r\nb", "1\r\n2", b"1\r\n2\r\n"),
        (b"a\nb\r\nc\n", "b", "x\ny", b"a\nx\ny\r\nc\n"),
        (b"a\nb\r\nc\n", "b\nc", "x\ny", b"a\nx\r\ny\n"),
        (b"\xef\xbb\xbfa\nb", "a", "é", b"\xef\xbb\xbf\xc3\xa9\nb"),
        ("é a\r\n".encode("utf-16"), "a", "ö", "é ö\r\n".encode("utf-16")),
        (b"caf\xe9 a\n", "a\n", "\u00fc\n", b"caf\xe9 \xfc\n"),
        (b"a", "a", "b", b"b"),
        (b"a\n", "a", "b", b"b\n"),
    ],
)
async def test_line_ends_mark_encoding_and_final_newline_are_kept(
    project: Project, content: bytes, old: str, new: str, expected: bytes
) -> None:
    project.write("a.txt", content)
    await project.text("Edit", file_path="a.txt", replacements=one(old, new))
    assert (project.root / "a.txt").read_bytes() == expected


async def test_a_character_that_the_encoding_lacks_is_refused(project: Project) -> None:
    project.write("a.txt", b"caf\xe9")
    assert "latin-1, which has no character U+20AC" in await project.refusal(
        "Edit", file_path="a.txt", replacements=one("caf", "€")
    )


async def test_a_piece_that_differs_only_in_white_space_is_pointed_at(project: Project) -> None:
    project.write("a.py", "x\nif a:\n        b()\n")
    refusal = await project.refusal("Edit", file_path="a.py", replacements=one("if a:\n    b()", "c"))
    assert "The lines from 2 on differ from it only in white space" in refusal


@pytest.mark.parametrize(("old", "new", "words"), [("", "x", "is empty"), ("a", "a", "are the same")])
async def test_a_replacement_without_meaning_is_refused(project: Project, old: str, new: str, words: str) -> None:
    project.write("a.py", "a")
    assert words in await project.refusal("Edit", file_path="a.py", replacements=one(old, new))


async def test_no_replacements_at_all_are_refused(project: Project) -> None:
    project.write("a.py", "a")
    assert "`replacements`" in await project.refusal("Edit", file_path="a.py", replacements=[])


async def test_what_can_not_be_edited_is_refused(project: Project) -> None:
    project.write("a.bin", b"a\0")
    assert "binary" in await project.refusal("Edit", file_path="a.bin", replacements=one("a", "b"))
    assert "does not exist" in await project.refusal("Edit", file_path="missing", replacements=one("a", "b"))


async def test_a_file_that_changed_since_it_was_read_is_not_edited(project: Project) -> None:
    project.write("a.txt", "one two")
    await project.text("Read", file_path="a.txt", num_lines=1)
    project.write("a.txt", "one three")
    assert "has changed since" in await project.refusal("Edit", file_path="a.txt", replacements=one("one", "1"))
    await project.text("Read", file_path="a.txt")
    await project.text("Edit", file_path="a.txt", replacements=one("one", "1"))
    await project.text("Edit", file_path="a.txt", replacements=one("three", "3"))
    assert (project.root / "a.txt").read_text() == "1 3"


async def test_a_file_that_was_never_read_can_be_edited(project: Project) -> None:
    project.write("a.txt", "one")
    await project.text("Edit", file_path="a.txt", replacements=one("one", "1"))


async def test_edits_of_one_file_that_run_at_once_are_all_kept(project: Project) -> None:
    project.write("a.txt", "".join(f"[{n}]\n" for n in range(30)))
    async with trio.open_nursery() as nursery:
        for n in range(30):
            edit = partial(project.text, "Edit", file_path="a.txt", replacements=one(f"[{n}]", f"<{n}>"))
            nursery.start_soon(edit)
    assert (project.root / "a.txt").read_text() == "".join(f"<{n}>\n" for n in range(30))
