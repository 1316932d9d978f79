from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Literal

import pytest

from workers.sandbox.paths import OutsideProject, missing, resolve_inside, resolve_name_inside, shown, visible
from workers.tools.tool import ToolError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("")
    (tmp_path / "secret.txt").write_text("secret")
    (root / "out").symlink_to(tmp_path)
    (root / "out.txt").symlink_to(tmp_path / "secret.txt")
    (root / "in").symlink_to("src")
    (root / "loop").symlink_to("loop")
    return root


def test_relative_and_absolute_paths_inside_are_taken(root: Path) -> None:
    main = root / "src" / "main.py"
    for given in ("src/main.py", "./src/../src/main.py", str(main), "in/main.py", f"{root}/in/../src/main.py"):
        assert resolve_inside(root, given) == main
    for given in ("", ".", "src/..", str(root)):
        assert resolve_inside(root, given) == root


def test_a_path_that_does_not_exist_yet_is_taken(root: Path) -> None:
    assert resolve_inside(root, "new/folder/file") == root / "new" / "folder" / "file"


@pytest.mark.parametrize(
    "given",
    [
        "..",
        "../secret.txt",
        "/etc/passwd",
        "out/secret.txt",
        "out.txt",
        "out/new",
        "src/../../secret.txt",
        "/proc/self/root",
    ],
)
def test_a_path_that_leads_out_is_refused_with_a_sentence_that_says_so(root: Path, given: str) -> None:
    with pytest.raises(OutsideProject, match="outside the project"):
        resolve_inside(root, given)


def test_a_folder_whose_name_only_begins_like_the_root_is_outside(root: Path) -> None:
    sibling = root.with_name("project2")
    sibling.mkdir()
    with pytest.raises(OutsideProject):
        resolve_inside(root, str(sibling))


@pytest.mark.parametrize("given", ["a\0b", "\ud800"])
def test_what_can_be_no_path_is_refused(root: Path, given: str) -> None:
    with pytest.raises(ToolError) as refused:
        resolve_inside(root, given)
    str(refused.value).encode()


def test_a_missing_file_is_answered_with_the_names_that_come_near(root: Path) -> None:
    for wrong in ("src/mian.py", "src/Main.py", "src/main.pyx", "src/main.ts"):
        assert "Did you mean src/main.py?" in str(missing(root, root / wrong))
    assert "Did you mean" not in str(missing(root, root / "src/zzz"))


def test_a_missing_folder_is_answered_with_the_last_one_that_exists(root: Path) -> None:
    assert str(missing(root, root / "src/a/b/c.py")).endswith("the last folder on its way that does is src.")


def test_file_names_come_out_on_one_line_and_encodable() -> None:
    assert visible("a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    assert visible(os.fsdecode(b"caf\xe9")) == "caf\ufffd"
    assert visible("naïve 名前 🎉") == "naïve 名前 🎉"
    assert shown(Path("/p"), Path("/p")) == "."


Form = Literal["NFC", "NFD"]
FORMS: list[tuple[Form, Form]] = [("NFC", "NFD"), ("NFD", "NFC")]


@pytest.mark.parametrize(("there", "given"), FORMS)
def test_a_name_is_found_in_whatever_unicode_form_it_is_given(root: Path, there: Form, given: Form) -> None:
    folder, name = (unicodedata.normalize(there, text) for text in ("Größe", "café.txt"))
    (root / folder).mkdir()
    (root / folder / name).write_text("")
    wanted = unicodedata.normalize(given, f"{folder}/{name}")
    for path in (wanted, f"{root}/{wanted}", unicodedata.normalize(given, f"./src/../{folder}/new")):
        resolved = resolve_inside(root, path)
        assert resolved.parent == root / folder
        assert resolved.name == name or path.endswith("new")
    assert resolve_name_inside(root, wanted) == root / folder / name


def test_of_two_names_that_differ_in_form_only_the_one_that_was_given_is_taken(root: Path) -> None:
    names = [unicodedata.normalize(form, "é") for form, _ in FORMS]
    for name in names:
        (root / name).write_text(name)
    for name in names:
        assert resolve_inside(root, name).read_text() == name
        assert resolve_inside(root, f"{root}/{name}").read_text() == name


def test_a_link_that_is_found_in_another_form_leads_out_no_more_than_any(root: Path, tmp_path: Path) -> None:
    (root / unicodedata.normalize("NFD", "é")).symlink_to(tmp_path)
    with pytest.raises(OutsideProject):
        resolve_inside(root, unicodedata.normalize("NFC", "é/secret.txt"))


def test_the_name_of_a_link_can_be_had_without_following_it(root: Path) -> None:
    assert resolve_name_inside(root, "out.txt") == root / "out.txt"
    assert resolve_name_inside(root, "in/main.py") == root / "src" / "main.py"
    assert resolve_name_inside(root, ".") == resolve_name_inside(root, "src/..") == root
    for given in ("out/secret.txt", "..", "../x", "/etc/passwd"):
        with pytest.raises(OutsideProject):
            resolve_name_inside(root, given)
