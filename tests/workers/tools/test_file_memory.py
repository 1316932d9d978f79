from __future__ import annotations

from pathlib import Path

from workers.tools.file_memory import FileMemory


def test_a_file_is_stale_once_its_content_is_another_one() -> None:
    memory = FileMemory()
    path = Path("/p/a")
    assert not memory.is_stale(path, b"unseen")
    memory.remember(path, b"one")
    assert not memory.is_stale(path, b"one")
    assert memory.is_stale(path, b"two")
    memory.remember(path, b"two")
    assert not memory.is_stale(path, b"two")


def test_a_later_process_takes_up_what_was_known() -> None:
    memory = FileMemory()
    memory.remember(Path("/p/a"), b"one")
    later = FileMemory(memory.take_news())
    assert later.is_stale(Path("/p/a"), b"two")
    assert not later.knows(Path("/p/b"))
