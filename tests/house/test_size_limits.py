"""The limits hold here, and each of them has an edge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.size_limits import function_lengths, ninth_decile, over_limit, oversizes
from tests.house.sample_tree import write_tree

ROOT = Path(__file__).resolve().parent.parent.parent


def function_of(lines: int, name: str = "f") -> str:
    return "\n".join([f"def {name}():", *["    x = 1"] * (lines - 1)]) + "\n"


def test_this_checkout_keeps_the_limits() -> None:
    assert oversizes(ROOT) == []


@pytest.mark.parametrize(("lines", "over"), [(60, []), (61, ["a.py:1: f has 61 lines, a function at most 60"])])
def test_a_function_has_at_most_sixty_lines(lines: int, over: list[str]) -> None:
    assert list(over_limit("a.py", function_of(lines))) == over


def test_an_async_method_is_a_function_too() -> None:
    source = "class C:\n    async def long(self):\n" + "        x = 1\n" * 60
    assert list(over_limit("a.py", source)) == ["a.py:2: long has 61 lines, a function at most 60"]


@pytest.mark.parametrize(("lines", "over"), [(200, []), (201, ["a.py:1: C has 201 lines, a class at most 200"])])
def test_a_class_has_at_most_two_hundred_lines(lines: int, over: list[str]) -> None:
    assert list(over_limit("a.py", "class C:\n" + "    x = 1\n" * (lines - 1))) == over


@pytest.mark.parametrize(("lines", "over"), [(600, []), (601, ["a.py: a module of 601 lines, at most 600"])])
def test_a_module_has_at_most_six_hundred_lines(lines: int, over: list[str]) -> None:
    assert list(over_limit("a.py", "x = 1\n" * lines)) == over


def test_a_docstring_counts_and_a_decorator_does_not() -> None:
    assert function_lengths('@cache\ndef f():\n    """One.\n\n    Two.\n    """\n') == [5]


def test_a_nested_function_is_counted_by_itself_and_in_its_surroundings() -> None:
    assert sorted(function_lengths("def outer():\n    def inner():\n        pass\n    return inner\n")) == [2, 4]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([], 0), ([7], 7), (list(range(1, 11)), 9), ([1] * 9 + [50], 1), ([1] * 8 + [50] * 2, 50)],
)
def test_the_ninth_decile_is_the_length_that_nine_of_ten_do_not_exceed(lengths: list[int], expected: int) -> None:
    assert ninth_decile(lengths) == expected


def test_a_package_of_long_functions_is_named_even_when_none_is_over_its_own_limit(tmp_path: Path) -> None:
    write_tree(tmp_path, {"workers/a.py": function_of(35), "protocol/a.py": function_of(34)})
    assert oversizes(tmp_path) == [
        "workers: nine of ten functions must have fewer than 35 lines, the ninth decile is 35"
    ]


def test_the_command_prints_what_is_over_and_fails(tmp_path: Path) -> None:
    write_tree(tmp_path, {"tests/a.py": "x = 1\n" * 601})
    command = [sys.executable, "-m", "scripts.size_limits", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "tests/a.py: a module of 601 lines, at most 600\n")
