from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.workers.tools.project import Project


async def test_a_file_is_deleted(project: Project) -> None:
    project.write("a/b.txt")
    assert await project.text("Delete", file_path="a/b.txt") == "Deleted a/b.txt."
    assert project.names() == ["a"]


async def test_an_empty_folder_is_deleted_one_that_is_not_is_left(project: Project) -> None:
    project.write("full/b.txt")
    (project.root / "empty").mkdir()
    assert await project.text("Delete", file_path="empty/") == "Deleted empty/."
    assert "not empty" in await project.refusal("Delete", file_path="full")
    assert project.names() == ["full", "full/b.txt"]


async def test_of_a_link_only_the_link_is_deleted(project: Project, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("x")
    project.write("mine")
    for name, target in (("out", tmp_path / "theirs"), ("in", Path("mine")), ("dangling", Path("nowhere"))):
        (project.root / name).symlink_to(target)
        assert await project.text("Delete", file_path=name) == f"Deleted {name}."
    assert project.names() == ["mine"]
    assert (tmp_path / "theirs").read_text() == "x"


async def test_nothing_is_deleted_outside(project: Project, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("x")
    (project.root / "out").symlink_to(tmp_path)
    for path in ("../theirs", "out/theirs", str(tmp_path / "theirs"), "/proc/self/root/etc/passwd", ".."):
        assert "outside the project" in await project.refusal("Delete", file_path=path)
    assert (tmp_path / "theirs").read_text() == "x"


async def test_the_root_is_not_deleted(project: Project) -> None:
    for path in ("", ".", str(project.root)):
        assert "root folder can't be deleted" in await project.refusal("Delete", file_path=path)


async def test_what_is_not_there_names_what_comes_near(project: Project) -> None:
    project.write("notes.txt")
    assert "Did you mean notes.txt?" in await project.refusal("Delete", file_path="note.txt")


async def test_a_file_that_changed_since_it_was_read_is_left(project: Project) -> None:
    path = project.write("a.txt", "one")
    await project.text("Read", file_path="a.txt")
    path.write_text("somebody's work")
    assert "has changed since" in await project.refusal("Delete", file_path="a.txt")
    await project.text("Read", file_path="a.txt")
    await project.text("Delete", file_path="a.txt")
    await project.text("Write", file_path="a.txt", content="again")
    assert path.read_text() == "again"


async def test_a_pipe_is_deleted_and_not_opened(project: Project) -> None:
    os.mkfifo(project.root / "pipe")
    assert await project.text("Delete", file_path="pipe") == "Deleted pipe."


async def test_what_may_not_be_deleted_says_so(project: Project) -> None:
    if os.geteuid() == 0:
        pytest.skip("nothing is forbidden to root")
    project.write("a/b")
    (project.root / "a").chmod(0o555)
    try:
        assert "permission denied" in await project.refusal("Delete", file_path="a/b")
    finally:
        (project.root / "a").chmod(0o755)
