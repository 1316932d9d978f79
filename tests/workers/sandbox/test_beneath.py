"""Folders below the root, by the kernel's one look-up and by walking: both must hold to the same."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workers.sandbox import beneath
from workers.sandbox.beneath import (
    ON_THE_WAY,
    by_openat2,
    by_walking,
    entries_of,
    has_openat2,
    opened_folder,
    status_of,
)
from workers.sandbox.paths import existing, missing, resolve_inside
from workers.sandbox.regular_file import read_regular, replace_regular
from workers.tools.tool import ToolError

Opener = Callable[[int, tuple[str, ...], int], int]
OPENERS = [
    pytest.param(by_openat2, marks=pytest.mark.skipif(not has_openat2(), reason="this kernel has no openat2")),
    by_walking,
]


@pytest.fixture(params=OPENERS)
def opener(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Opener:
    chosen: Opener = request.param
    monkeypatch.setattr(beneath, "opener", lambda: chosen)
    return chosen


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "project"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("secret")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "up").symlink_to("..")
    (root / "in").symlink_to("a")
    (root / "magic").symlink_to("/proc/self/root")
    return root


def is_same(descriptor: int, path: Path) -> bool:
    return os.path.samestat(os.fstat(descriptor), path.stat())


def test_linux_has_the_one_look_up() -> None:
    if not sys.platform.startswith("linux"):
        assert not has_openat2()
    elif tuple(map(int, os.uname().release.split(".")[:2])) < (5, 6):
        pytest.skip("openat2 came with Linux 5.6")
    else:
        assert has_openat2()


def test_a_folder_below_is_opened(root: Path, opener: Opener) -> None:
    for folder in (root, root / "a", root / "a" / "b"):
        with opened_folder(root, folder) as descriptor:
            assert is_same(descriptor, folder)


@pytest.mark.parametrize("name", ["out", "up", "in", "magic", "in/b", "out/x", "magic/etc", "up/project/a"])
def test_no_link_is_followed_wherever_it_leads(root: Path, opener: Opener, name: str) -> None:
    with pytest.raises(OSError) as refused, opened_folder(root, root / name):
        pass
    assert refused.value.errno in (errno.ELOOP, errno.ENOTDIR)


def test_no_look_up_goes_up(root: Path, opener: Opener) -> None:
    with pytest.raises(OSError), opened_folder(root, root / "a" / ".." / ".." / "outside"):
        pass


def test_what_is_no_folder_and_what_is_not_there_are_errors(root: Path, opener: Opener) -> None:
    for name, number in (("a/b/file", errno.ENOTDIR), ("a/x", errno.ENOENT), ("a/x/y", errno.ENOENT)):
        with pytest.raises(OSError) as refused, opened_folder(root, root / name):
            pass
        assert refused.value.errno == number


def test_the_status_is_of_a_link_itself(root: Path, opener: Opener) -> None:
    status = status_of(root, root / "out")
    assert status is not None
    assert os.path.samestat(status, (root / "out").lstat())
    assert status_of(root, root / "a" / "missing") is status_of(root, root / "a" / "b" / "file" / "x") is None
    root_status = status_of(root, root)
    assert root_status is not None
    assert os.path.samestat(root_status, root.stat())


def test_entries_are_sorted_and_links_are_links(root: Path, opener: Opener) -> None:
    kinds = {entry.name: (entry.is_folder, entry.is_link) for entry in entries_of(root, root)}
    assert list(kinds) == ["a", "in", "magic", "out", "up"]
    assert kinds["a"] == (True, False)
    assert {kinds[name] for name in ("in", "magic", "out", "up")} == {(False, True)}


def test_a_root_that_was_swapped_for_a_link_is_not_followed(root: Path, opener: Opener, tmp_path: Path) -> None:
    root.rename(tmp_path / "moved")
    root.symlink_to(tmp_path / "outside")
    with pytest.raises(OSError):
        entries_of(root, root)


def test_links_that_stay_inside_go_on_working_absolute_ones_too(root: Path, opener: Opener) -> None:
    (root / "absolute").symlink_to(root / "a")
    (root / "chain").symlink_to("absolute/b")
    for name in (
        "in/b/file",
        "absolute/b/file",
        "chain/file",
        f"{root}/chain/file",
        "/proc/self/root/{root}/in/b/file",
    ):
        path = resolve_inside(root, name.format(root=root))
        assert read_regular(root, path, 100) == b"inside"
    replace_regular(root, resolve_inside(root, "chain/new"), b"x")
    assert (root / "a" / "b" / "new").read_bytes() == b"x"


def test_a_hard_link_is_read_and_a_write_leaves_its_other_name(root: Path, opener: Opener, tmp_path: Path) -> None:
    (root / "hard").hardlink_to(tmp_path / "outside" / "file")
    assert read_regular(root, root / "hard", 100) == b"secret"
    replace_regular(root, root / "hard", b"mine")
    assert (tmp_path / "outside" / "file").read_text() == "secret"
    assert (root / "hard").read_text() == "mine"


def test_no_descriptor_stays_open(root: Path, opener: Opener) -> None:
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208 - the folder of a process's own descriptors
    for name in ("a/b", "out/x", "a/b/file", "missing/x"):
        try:
            with opened_folder(root, root / name, ON_THE_WAY):
                pass
        except OSError:
            pass
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208 - as above


def test_a_project_that_is_gone_is_said_to_be_so(root: Path, opener: Opener, tmp_path: Path) -> None:
    root.rename(tmp_path / "moved")
    for error in (missing(root, root / "a"), missing(root, root / "a" / "b" / "c")):
        assert str(error).startswith("cwd_gone: ")
    with pytest.raises(ToolError, match="cwd_gone"):
        existing(root, root / "a")
    with pytest.raises(ToolError, match="cwd_gone"):
        read_regular(root, root / "a" / "b" / "file", 10)
    with pytest.raises(ToolError, match="cwd_gone"):
        replace_regular(root, root / "a" / "b" / "file", b"x")
