"""List, Grep and Glob, and the walk that they share."""

from __future__ import annotations

import os
import shutil
import subprocess
import unicodedata
from functools import partial
from typing import Literal

import pytest
import trio

from tests.workers.tools.project import Project
from workers.tools.file_tree import walk
from workers.tools.glob import MOST_FILES
from workers.tools.grep import LARGEST_FILE, LONGEST_LINE, MOST_MATCHES
from workers.tools.list_dir import MOST_ENTRIES

IGNORING = {
    ".gitignore": "*.log\n!keep.log\n/build\nnode_modules/\n# comment\n\n!\nsub/**/deep.txt\n\\#odd\n",
    "a.log": "",
    "keep.log": "",
    "build/x.py": "",
    "src/build/y.py": "",
    "src/node_modules/z/index.js": "",
    "src/.gitignore": "!a.log\n*.tmp\n/only_here\n",
    "src/a.log": "",
    "src/b.log": "",
    "src/only_here": "",
    "src/lib/only_here": "",
    "src/lib/c.tmp": "",
    "src/lib/.gitignore": "!c.tmp\n",
    "sub/x/y/deep.txt": "",
    "#odd": "",
    "with space.txt": "",
    ".hidden/file": "",
}


def fill(project: Project) -> None:
    for name, content in IGNORING.items():
        project.write(name, content)


async def test_list_shows_one_folder_sorted_with_folders_marked(project: Project) -> None:
    for name in ("b.txt", "a/x", "a.txt", ".git/config", ".hidden"):
        project.write(name)
    (project.root / "link").symlink_to("a.txt")
    text = await project.text("List")
    assert text == ".git/\n.hidden\na/\na.txt\nb.txt\nlink -> a.txt"
    assert await project.text("List", file_path="a") == "a/x"


async def test_list_of_everything_leaves_out_git_and_what_it_ignores(project: Project) -> None:
    for name in ("a/x", "a/b/y", ".git/config", "out/z", "b"):
        project.write(name)
    project.write(".gitignore", "out/\n")
    assert await project.text("List", recursive=True) == ".gitignore\na/\na/b/\na/b/y\na/x\nb"
    assert await project.text("List", file_path="a", recursive="true") == "a/b/\na/b/y\na/x"


async def test_list_is_bounded_and_says_so(project: Project) -> None:
    for n in range(MOST_ENTRIES + 1):
        project.write(f"{n:05}")
    for recursive in (False, True):
        lines = (await project.text("List", recursive=recursive)).split("\n")
        assert len(lines) == MOST_ENTRIES + 1
        assert lines[-1].startswith(f"[more than {MOST_ENTRIES} entries")


async def test_list_of_what_is_no_folder_is_refused(project: Project) -> None:
    project.write("folder/a.txt")
    assert "is not a folder" in await project.refusal("List", file_path="folder/a.txt")
    assert "Did you mean folder?" in await project.refusal("List", file_path="foldre")
    assert "outside the project" in await project.refusal("List", file_path="..")


async def test_an_empty_folder_is_said_to_be_empty(project: Project) -> None:
    assert await project.text("List") == "(the folder is empty)"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge")
async def test_what_is_left_out_is_what_git_leaves_out(project: Project) -> None:
    fill(project)
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    git = partial(subprocess.check_output, cwd=project.root, env=environment, timeout=20, text=True)
    git(["git", "init", "-q"])
    project.write(".git/info/exclude", "with*\n")
    listed = git(["git", "ls-files", "-co", "--exclude-standard", "-z"])
    found = (await project.text("Glob", pattern="**")).split("\n")
    assert sorted(found) == sorted(listed.rstrip("\0").split("\0"))


async def test_a_folder_that_is_ignored_can_be_asked_for(project: Project) -> None:
    fill(project)
    assert await project.text("List", file_path="build", recursive=True) == "build/x.py"
    assert await project.text("Glob", pattern="**/*.js", path="src/node_modules") == "src/node_modules/z/index.js"


async def test_an_ignore_file_that_is_a_pipe_stops_nothing(project: Project) -> None:
    os.mkfifo(project.root / ".gitignore")
    project.write("a.py", "x")
    assert await project.text("Glob", pattern="*.py") == "a.py"


async def test_links_are_not_followed_when_walking(project: Project) -> None:
    project.write("a/x.txt", "needle")
    (project.root / "a" / "up").symlink_to("..")
    (project.root / "etc").symlink_to("/etc")
    assert await project.text("Grep", pattern="needle") == "a/x.txt:1: needle"
    assert await project.text("Glob", pattern="**/x.txt") == "a/x.txt"


async def test_a_walk_in_a_thread_ends_when_its_call_is_cancelled(project: Project) -> None:
    project.write("a/b")
    begun = trio.Event()

    def walk_forever() -> None:
        trio.from_thread.run_sync(begun.set)
        while True:
            for _ in walk(project.root, project.root):
                pass

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, walk_forever)
            await begun.wait()
            nursery.cancel_scope.cancel()
    assert nursery.cancel_scope.cancelled_caught


async def test_grep_names_path_and_line(project: Project) -> None:
    project.write("src/a.py", "import os\r\n\r\ndef main():\r\n    pass\r\n")
    project.write("b.py", "def other(): ...")
    assert await project.text("Grep", pattern=r"^def \w+") == "b.py:1: def other(): ...\nsrc/a.py:3: def main():"
    assert await project.text("Grep", pattern="DEF", path="src", case_insensitive=True) == "src/a.py:3: def main():"
    assert await project.text("Grep", pattern="pass$", path="src/a.py") == "src/a.py:4:     pass"
    assert "No line in . matches DEF" in await project.text("Grep", pattern="DEF")


async def test_grep_leaves_out_binaries_pipes_and_what_is_ignored(project: Project) -> None:
    project.write("a.bin", b"needle\0")
    project.write("a.log", "needle")
    project.write(".gitignore", "*.log")
    project.write("a.txt", "needle")
    os.mkfifo(project.root / "pipe")
    assert await project.text("Grep", pattern="needle") == "a.txt:1: needle"
    assert await project.text("Grep", pattern="needle", path="a.log") == "a.log:1: needle"
    assert "named pipe" in await project.refusal("Grep", pattern="needle", path="pipe")


async def test_grep_is_bounded_and_says_so(project: Project) -> None:
    project.write("a.txt", "needle\n" * (MOST_MATCHES + 1))
    project.write("big.txt", b"needle\n" + b"x" * LARGEST_FILE)
    lines = (await project.text("Grep", pattern="needle")).split("\n")
    assert len(lines) == MOST_MATCHES + 1
    assert lines[-1].startswith(f"[more than {MOST_MATCHES} lines match")
    assert "big.txt]" in await project.text("Grep", pattern="nothing like it")


async def test_grep_cuts_a_long_line_around_its_match(project: Project) -> None:
    project.write("a.js", "x" * 10_000 + "needle" + "y" * 10_000)
    text = await project.text("Grep", pattern="needle")
    assert "needle" in text
    assert len(text) < LONGEST_LINE + 30


async def test_a_pattern_that_is_no_regular_expression_is_refused(project: Project) -> None:
    assert "no valid Python regular expression" in await project.refusal("Grep", pattern="foo(")
    assert "does not exist" in await project.refusal("Grep", pattern="x", path="missing")


async def test_glob_finds_files_by_pattern_sorted(project: Project) -> None:
    for name in ("a.py", "src/b.py", "src/x/c.py", "src/x/c.ts", "src/x/d.md", ".github/w.py"):
        project.write(name)
    text = partial(project.text, "Glob")
    assert await text(pattern="**/*.py") == ".github/w.py\na.py\nsrc/b.py\nsrc/x/c.py"
    assert await text(pattern="*.py") == "a.py"
    assert await text(pattern="src/**/*.{py,ts}") == "src/b.py\nsrc/x/c.py\nsrc/x/c.ts"
    assert await text(pattern="./src/*/[cd].??") == "src/x/c.py\nsrc/x/c.ts\nsrc/x/d.md"
    assert await text(pattern="*.py", path="src") == "src/b.py"
    assert await text(pattern=f"{project.root}/src/*.py") == "src/b.py"


async def test_glob_finds_names_in_whatever_unicode_form(project: Project) -> None:
    forms: list[tuple[Literal["NFC", "NFD"], Literal["NFC", "NFD"]]] = [("NFC", "NFD"), ("NFD", "NFC")]
    for there, given in forms:
        project.write(unicodedata.normalize(there, f"ö{there}/café.txt"), "x")
        pattern = unicodedata.normalize(given, f"ö{there}/caf[é].t?t")
        assert await project.text("Glob", pattern=pattern) == unicodedata.normalize(there, f"ö{there}/café.txt")
        assert "café.txt" in unicodedata.normalize("NFC", await project.text("List", file_path=f"ö{there}"))


async def test_glob_without_a_match_says_how_to_look_deeper(project: Project) -> None:
    project.write("src/a.py")
    assert "**/*.py looks into all folders below" in await project.text("Glob", pattern="*.py")
    assert "No file in . matches missing/*.py" in await project.text("Glob", pattern="missing/*.py")


async def test_glob_refuses_what_is_outside_or_means_nothing(project: Project) -> None:
    assert "outside the project" in await project.refusal("Glob", pattern="/etc/*")
    assert "`..`" in await project.refusal("Glob", pattern="../*")
    assert "empty" in await project.refusal("Glob", pattern="")
    assert "more than 256" in await project.refusal("Glob", pattern="{a,b}" * 20)


async def test_glob_is_bounded_and_says_so(project: Project) -> None:
    for n in range(MOST_FILES + 1):
        project.write(f"{n:05}")
    lines = (await project.text("Glob", pattern="*")).split("\n")
    assert len(lines) == MOST_FILES + 1
    assert lines[-1].startswith(f"[more than {MOST_FILES} files")


async def test_names_that_are_no_text_or_hold_control_characters_do_no_harm(project: Project) -> None:
    for name in (b"caf\xe9", b"two\nlines", b"\x1b[31mred"):
        (project.root / os.fsdecode(name)).write_text("needle")
    for call in (
        project.text("List"),
        project.text("List", recursive=True),
        project.text("Glob", pattern="*"),
    ):
        assert (await call).split("\n") == ["\\x1b[31mred", "caf\ufffd", "two\\nlines"]
    assert len((await project.text("Grep", pattern="needle")).split("\n")) == 3
