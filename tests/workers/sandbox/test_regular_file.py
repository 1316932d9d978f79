from __future__ import annotations

import resource
import threading
from pathlib import Path

import pytest

from workers.sandbox.regular_file import read_regular, replace_regular
from workers.tools.tool import ToolError


def test_whoever_reads_during_a_replacement_sees_the_old_or_the_new_content(tmp_path: Path) -> None:
    path = tmp_path / "a"
    contents = {letter * 100_000 for letter in (b"a", b"b")}
    replace_regular(tmp_path, path, b"a" * 100_000)
    seen: set[bytes | None] = set()
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.add(read_regular(tmp_path, path, 1_000_000))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(50):
        for content in contents:
            replace_regular(tmp_path, path, content)
    over.set()
    reader.join(10)
    assert seen
    assert seen <= contents
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_half_way_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(ToolError, match="file too large"):
            replace_regular(tmp_path, path, b"x" * 5_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_root_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    root = tmp_path / "project"
    with pytest.raises(ToolError):
        replace_regular(root, root / "a" / "b", b"x")
    assert not root.exists()


def test_what_is_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular(tmp_path, tmp_path / "a", 5) == b"12345"
    assert read_regular(tmp_path, tmp_path / "a", 4) is None


def test_a_link_put_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to("secret")
    with pytest.raises(ToolError, match="symbolic link"):
        read_regular(tmp_path, tmp_path / "link", 100)
    with pytest.raises(ToolError, match="symbolic link"):
        replace_regular(tmp_path, tmp_path / "link", b"x")
    assert (tmp_path / "secret").read_text() == "secret"
