from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.workers.tools.project import Project


async def test_a_new_file_and_its_folders_are_made(project: Project) -> None:
    text = await project.text("Write", file_path="a/b/c.txt", content="één\n")
    assert text == "Created a/b/c.txt: 1 lines, 6 bytes."
    assert (project.root / "a/b/c.txt").read_bytes() == "één\n".encode()
    assert project.names() == ["a", "a/b", "a/b/c.txt"]


async def test_a_new_file_has_the_mode_of_any_new_file(project: Project) -> None:
    await project.text("Write", file_path="new", content="")
    (project.root / "usual").touch()
    assert (project.root / "new").stat().st_mode == (project.root / "usual").stat().st_mode


async def test_an_existing_file_keeps_its_mode_and_loses_nothing_else(project: Project) -> None:
    project.write("run.sh", "old").chmod(0o751)
    assert (await project.text("Write", file_path="run.sh", content="new")).startswith("Replaced run.sh")
    assert (project.root / "run.sh").read_text() == "new"
    assert stat.S_IMODE((project.root / "run.sh").stat().st_mode) == 0o751


async def test_other_names_of_the_same_inode_keep_the_old_content(project: Project, tmp_path: Path) -> None:
    elsewhere = tmp_path / "cache"
    elsewhere.write_text("shared")
    (project.root / "a.txt").hardlink_to(elsewhere)
    await project.text("Write", file_path="a.txt", content="mine")
    assert elsewhere.read_text() == "shared"


async def test_a_link_inside_the_project_stays_a_link(project: Project) -> None:
    project.write("real.txt", "old")
    (project.root / "link.txt").symlink_to("real.txt")
    await project.text("Write", file_path="link.txt", content="new")
    assert (project.root / "link.txt").is_symlink()
    assert (project.root / "real.txt").read_text() == "new"


async def test_nothing_is_written_outside(project: Project, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("theirs")
    (project.root / "link").symlink_to(tmp_path / "target")
    (project.root / "new").symlink_to(tmp_path / "new")
    for path in ("link", "new", "../x", str(tmp_path / "y")):
        assert "outside the project" in await project.refusal("Write", file_path=path, content="mine")
    assert (tmp_path / "target").read_text() == "theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["project", "target"]


async def test_what_is_no_file_is_not_written(project: Project) -> None:
    os.mkfifo(project.root / "pipe")
    (project.root / "folder").mkdir()
    project.write("file", "x")
    assert "named pipe" in await project.refusal("Write", file_path="pipe", content="")
    assert "a folder" in await project.refusal("Write", file_path="folder", content="")
    assert "file" in await project.refusal("Write", file_path="file/below", content="")
    assert project.names() == ["file", "folder", "pipe"]


async def test_a_file_that_changed_since_it_was_read_is_not_overwritten(project: Project) -> None:
    project.write("a.txt", "first")
    await project.text("Read", file_path="a.txt")
    project.write("a.txt", "by somebody else")
    assert "has changed since" in await project.refusal("Write", file_path="a.txt", content="mine")
    assert (project.root / "a.txt").read_text() == "by somebody else"
    await project.text("Read", file_path="a.txt")
    await project.text("Write", file_path="a.txt", content="mine")
    await project.text("Write", file_path="a.txt", content="mine again")
    assert (project.root / "a.txt").read_text() == "mine again"


async def test_a_file_that_was_read_and_then_removed_can_be_made_again(project: Project) -> None:
    project.write("a.txt", "first").unlink()
    await project.text("Write", file_path="a.txt", content="x")
    (project.root / "a.txt").unlink()
    assert (await project.text("Write", file_path="a.txt", content="y")).startswith("Created")


async def test_a_read_only_file_or_folder_is_refused(project: Project) -> None:
    if os.geteuid() == 0:
        pytest.skip("nothing is forbidden to root")
    project.write("locked/a.txt", "x").chmod(0o444)
    assert "read-only" in await project.refusal("Write", file_path="locked/a.txt", content="y")
    (project.root / "locked").chmod(0o555)
    assert "permission denied" in await project.refusal("Write", file_path="locked/b.txt", content="y")
    (project.root / "locked").chmod(0o755)
    assert project.names() == ["locked", "locked/a.txt"]
