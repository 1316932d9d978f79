from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.workers.tools.project import Project
from workers.tools.read import LONGEST_LINE, MOST_BYTES, MOST_LINES, WHOLE_FILE


async def test_a_file_comes_as_it_is_without_line_numbers(project: Project) -> None:
    project.write("a.txt", "one\n\ttwo\n")
    assert await project.text("Read", file_path="a.txt") == "one\n\ttwo"
    assert await project.text("Read", file_path=str(project.root / "a.txt")) == "one\n\ttwo"


async def test_a_usual_source_file_costs_little_more_than_its_text(project: Project) -> None:
    project.write("notes.txt", ("x" * 39 + "\n") * 400)
    assert len(await project.text("Read", file_path="notes.txt")) < 17_000


async def test_a_part_says_which_lines_it_is_and_how_to_go_on(project: Project) -> None:
    project.write("a.txt", "".join(f"line {n}\n" for n in range(1, 11)))
    text = await project.text("Read", file_path="a.txt", start_line=3, num_lines=2)
    assert text == "line 3\nline 4\n[lines 3 to 4 of 10; go on with start_line=5]"
    text = await project.text("Read", file_path="a.txt", start_line="9")
    assert text == "line 9\nline 10\n[lines 9 to 10 of 10]"


async def test_going_on_as_the_note_says_reads_every_line_once(project: Project) -> None:
    lines = [f"{n} " + "é" * (n % 300) for n in range(5_000)]
    project.write("long.txt", "\n".join(lines) + "\n")
    read: list[str] = []
    while len(read) < len(lines):
        text = await project.text("Read", file_path="long.txt", start_line=len(read) + 1)
        assert len(text.encode()) <= MOST_BYTES + 200
        part = text.split("\n")
        assert part[-1].startswith(f"[lines {len(read) + 1} to ")
        assert len(part) - 1 <= MOST_LINES
        read += part[:-1]
    assert read == lines


async def test_a_long_line_is_cut_and_says_by_how_much(project: Project) -> None:
    project.write("a.txt", "x" * (LONGEST_LINE + 5) + "\nend\n")
    text = await project.text("Read", file_path="a.txt")
    assert text == "x" * LONGEST_LINE + "... [5 more characters in this line]\nend"


@pytest.mark.parametrize("content", ["", "\n", "\n\n", "a", "a\n\n"])
async def test_the_smallest_files_are_read(project: Project, content: str) -> None:
    project.write("a.txt", content)
    expected = content.removesuffix("\n") if content else "(the file is empty)"
    assert await project.text("Read", file_path="a.txt") == expected


async def test_a_line_behind_the_end_is_refused_with_the_number_there_are(project: Project) -> None:
    project.write("a.txt", "1\n2\n")
    assert "has only 2 lines" in await project.refusal("Read", file_path="a.txt", start_line=3)


@pytest.mark.parametrize("wrong", [{"start_line": -1}, {"num_lines": 0}])
async def test_lines_are_counted_from_one(project: Project, wrong: dict[str, int]) -> None:
    project.write("a.txt", "1\n")
    assert "from 1" in await project.refusal("Read", file_path="a.txt", **wrong)


async def test_a_file_too_big_to_hold_is_read_in_parts(project: Project) -> None:
    project.write("big.log", "".join(f"{n:09}\n" for n in range(WHOLE_FILE // 10 + 10)))
    text = await project.text("Read", file_path="big.log", start_line=500_001, num_lines=2)
    assert text.startswith("000500000\n000500001\n[lines 500001 to 500002 of a file of ")
    assert "has only 1000010 lines" in await project.refusal("Read", file_path="big.log", start_line=2_000_000)


async def test_one_line_too_big_to_hold_is_cut(project: Project) -> None:
    project.write("big.json", b"x" * (WHOLE_FILE + 1) + b"\nend\n")
    text = await project.text("Read", file_path="big.json", num_lines=5)
    assert len(text) < 3_000
    assert "\nend\n[lines 1 to 2 of" in text


async def test_a_binary_is_refused_with_its_size(project: Project) -> None:
    project.write("a.png", b"\x89PNG\r\n\0\0\0")
    assert "binary file of 9 bytes" in await project.refusal("Read", file_path="a.png")
    project.write("big.bin", bytes(WHOLE_FILE + 1))
    assert "binary file" in await project.refusal("Read", file_path="big.bin")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "latin-1"])
async def test_text_in_other_encodings_is_read(project: Project, encoding: str) -> None:
    project.write("a.txt", "grün\r\nöl\r\n".encode(encoding))
    assert await project.text("Read", file_path="a.txt") == "grün\nöl"


async def test_what_is_no_file_is_answered_at_once(project: Project) -> None:
    os.mkfifo(project.root / "pipe")
    (project.root / "folder").mkdir()
    (project.root / "null").symlink_to("/dev/null")
    (project.root / "loop").symlink_to("loop")
    assert "named pipe" in await project.refusal("Read", file_path="pipe")
    assert "use List" in await project.refusal("Read", file_path="folder")
    assert "outside the project" in await project.refusal("Read", file_path="null")
    assert "symbolic link" in await project.refusal("Read", file_path="loop")


async def test_a_socket_is_answered_at_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root)  # a socket's name may not be long
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
        assert "socket" in await project.refusal("Read", file_path="s")


async def test_a_missing_file_names_what_comes_near(project: Project) -> None:
    project.write("src/parser.py")
    assert "Did you mean src/parser.py?" in await project.refusal("Read", file_path="src/parsre.py")
    assert "does not exist" in await project.refusal("Read", file_path="missing.txt")


async def test_a_file_that_may_not_be_read_says_so(project: Project) -> None:
    if os.geteuid() == 0:
        pytest.skip("nothing is forbidden to root")
    project.write("a.txt").chmod(0)
    assert "permission denied" in await project.refusal("Read", file_path="a.txt")


async def test_files_with_unusual_names_are_read(project: Project) -> None:
    for name in ("with space", "-dash", "quote'\"", "naïve 名前 🎉", "tab\tnewline\n", "..hidden", "*"):
        project.write(name, name)
        assert await project.text("Read", file_path=name) == name.removesuffix("\n")


async def test_a_name_too_long_is_refused(project: Project) -> None:
    assert "too long" in await project.refusal("Read", file_path="x" * 300)


async def test_a_file_below_a_file_is_refused(project: Project) -> None:
    project.write("a.txt", "x")
    assert "a.txt/b" in await project.refusal("Read", file_path="a.txt/b")


async def test_a_file_outside_is_refused(project: Project, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    assert "outside the project" in await project.refusal("Read", file_path="../secret")
