"""A folder of the project is swapped for a link that leads out, all the time, while the tools work in it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.workers.sandbox.swapping import CanNotSwap, swapping
from workers.sandbox import beneath
from workers.sandbox.beneath import by_openat2, by_walking, entries_of, has_openat2, opened_parent
from workers.sandbox.paths import OutsideProject, missing, resolve_inside, resolve_name_inside
from workers.sandbox.regular_file import read_regular, replace_regular
from workers.tools.file_tree import IgnoreRules
from workers.tools.tool import ToolError

ROUNDS = 400
MANY_ROUNDS = 10_000


class Arena:
    """``folder`` holds a file ``f``; where it is swapped for a link, so does the folder outside that it leads to."""

    def __init__(self, base: Path) -> None:
        self.root = base.resolve() / "project"
        self.folder = self.root / "d"
        self.outside = base.resolve() / "outside"
        self.folder.mkdir(parents=True)
        self.outside.mkdir()
        (self.folder / "f").write_text("inside")
        for name in ("f", "only_outside"):
            (self.outside / name).write_text("secret")
        (self.root / "link").symlink_to(self.outside)

    def outside_is_untouched(self) -> bool:
        contents = {path.name: path.read_text() for path in self.outside.iterdir()}
        return contents == {"f": "secret", "only_outside": "secret"}


@pytest.fixture(params=[by_openat2, by_walking])
def arena(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Arena]:
    if request.param is by_openat2 and not has_openat2():
        pytest.skip("this kernel has no openat2")
    monkeypatch.setattr(beneath, "opener", lambda: request.param)
    arena = Arena(tmp_path)
    try:
        with swapping(arena.folder, arena.root / "link"):
            yield arena
    except CanNotSwap:
        pytest.skip("this system can't swap two names at one stroke")


def read(arena: Arena) -> None:
    content = read_regular(arena.root, resolve_inside(arena.root, "d/f"), 100)
    assert content == b"inside"


def write(arena: Arena) -> None:
    replace_regular(arena.root, resolve_inside(arena.root, "d/f"), b"inside")


def write_new(arena: Arena) -> None:
    replace_regular(arena.root, resolve_inside(arena.root, "d/new/deep/file"), b"x")


def delete(arena: Arena) -> None:
    path = resolve_name_inside(arena.root, "d/only_outside")
    with opened_parent(arena.root, path) as (folder, name):
        os.unlink(name, dir_fd=folder)


def list_folder(arena: Arena) -> None:
    names = [entry.name for entry in entries_of(arena.root, resolve_inside(arena.root, "d"))]
    assert "only_outside" not in names


def look_for_near_names(arena: Arena) -> None:
    assert "only_outside" not in str(missing(arena.root, arena.folder / "only_outsid"))


def read_ignore_rules(arena: Arena) -> None:
    assert not IgnoreRules().within(arena.root, "d/", ["f"]).levels


Work = Callable[[Arena], None]
WORK = [read, write, write_new, delete, list_folder]


def tried(work: Work, arena: Arena, rounds: int) -> Counter[str]:
    """How often the work was done and how often refused, in at least so many rounds and until both were seen."""
    ends: Counter[str] = Counter()
    for turn in range(rounds * 50):
        if turn >= rounds and 0 < ends["done"] < turn:
            break
        try:
            work(arena)
            ends["done"] += 1
        except FileNotFoundError:
            ends["done"] += 1  # the work of deleting came to the folder inside, which has no such file
        except (ToolError, OSError) as refusal:
            ends["outside" if isinstance(refusal, OutsideProject) else "swapped"] += 1
    return ends


def test_who_goes_by_the_path_alone_does_come_out(arena: Arena) -> None:
    """What the other tests show is worth something only where this holds."""
    seen = {(arena.folder / "f").read_text() for _ in range(ROUNDS * 10)}
    assert seen == {"inside", "secret"}


@pytest.mark.parametrize("work", WORK)
def test_whatever_is_swapped_nothing_outside_is_read_or_written(arena: Arena, work: Work) -> None:
    ends = tried(work, arena, ROUNDS)
    assert ends["done"] > 0
    assert ends["outside"] + ends["swapped"] > 0
    assert arena.outside_is_untouched()


def test_no_hint_names_what_lies_outside(arena: Arena) -> None:
    for _ in range(ROUNDS):
        look_for_near_names(arena)
        read_ignore_rules(arena)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("work", WORK)
def test_ten_thousand_swaps_open_no_way_out(arena: Arena, work: Work) -> None:
    ends = tried(work, arena, MANY_ROUNDS)
    assert sum(ends.values()) >= MANY_ROUNDS
    assert ends["swapped"] > 0, "the swap never fell between the look and the work"
    assert arena.outside_is_untouched()
