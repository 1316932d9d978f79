"""The two engines that search lines: they find the same, and neither can hold up the agent."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.tools.project import Project
from workers.tools import grep
from workers.tools.grep import MOST_MATCHES
from workers.tools.line_search import Engine, Expression, Match, engines, search_lines
from workers.tools.ripgrep_pattern import ripgrep_pattern

BESIDE_PYTHON = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
needs_ripgrep = pytest.mark.skipif(shutil.which("rg", path=BESIDE_PYTHON) is None, reason="ripgrep is not installed")


@pytest.fixture
def without_ripgrep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")


@pytest.fixture
def with_ripgrep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", BESIDE_PYTHON)


def lines_found(engine: Engine, text: str) -> set[int]:
    done = subprocess.run(engine.command, input=text.encode(), capture_output=True, timeout=30, check=False, env={})
    assert done.returncode in engine.good_codes, done.stderr
    return {int(line.split(b":", 1)[0]) for line in done.stdout.splitlines()}


def by_python(pattern: str, ignore_case: bool, text: str) -> set[int]:
    expression = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    return {number for number, line in enumerate(text.split("\n"), 1) if expression.search(line)}


# -- what is translated -----------------------------------------------------------------------------------------------

NOT_TAKEN = ("Cn", "Cs", "Co")  # unassigned, of surrogates, private
CHARACTERS = "\n".join(
    chr(number)
    for number in [*range(10), *range(11, 0x3100), *range(0x3100, sys.maxunicode, 11)]
    if unicodedata.category(chr(number)) not in NOT_TAKEN
)
PIECES = [
    r"\w",
    r"\W",
    r"\d",
    r"\D",
    r"\s",
    r"\S",
    ".",
    "[a-z]",
    r"[\w.]",
    r"[^\w]",
    r"[^\s\d]",
    "[]x]",
    r"[\]-]",
    "a|[^b]",
]


@needs_ripgrep
@pytest.mark.parametrize("pattern", PIECES)
def test_a_piece_takes_the_same_characters_in_both(pattern: str, with_ripgrep: None) -> None:
    best = engines(Expression(pattern=pattern, ignore_case=False), Path("/nonexistent"), 10_000_000)[0]
    assert "rg" in best.command[0]
    assert lines_found(best, CHARACTERS) == by_python(pattern, False, CHARACTERS)


@needs_ripgrep
@pytest.mark.parametrize("pattern", ["i", "k", "s", "E", r"\w", r"\d", r"\s"])
def test_both_mean_the_same_by_either_case(pattern: str, with_ripgrep: None) -> None:
    best = engines(Expression(pattern=pattern, ignore_case=True), Path("/nonexistent"), 10_000_000)[0]
    assert "rg" in best.command[0]
    assert lines_found(best, CHARACTERS) == by_python(pattern, True, CHARACTERS)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bword\b",
        r"(a)\1",
        "(?i)a",
        "(?=a)",
        "(?P<name>a)",
        "a*+",
        "a{,3}",
        "a{x",
        "{",
        r"\Aa",
        r"a\Z",
        r"\x41",
        r"\u0041",
        r"\n",
        "a\nb",
        "\0",
        r"[\W]",
        "\ud800",
    ],
)
def test_what_may_mean_something_else_is_not_translated(pattern: str) -> None:
    assert ripgrep_pattern(pattern, ignore_case=False) is None


def test_sets_and_letters_beyond_ascii_are_not_translated_where_case_is_ignored() -> None:
    assert ripgrep_pattern("[a-z]", ignore_case=True) is ripgrep_pattern("ß", ignore_case=True) is None
    assert ripgrep_pattern("ß", ignore_case=False) == "ß"


ATOMS = st.sampled_from(
    [
        *PIECES,
        "a",
        "b",
        "_",
        "-",
        " ",
        "é",
        r"\.",
        r"\-",
        r"\<",
        "#",
        "(a|b)",
        "(?:ab)",
        "[a-]",
        "[^]a]",
        "[a[]",
        "[&&a]",
    ]
)
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "*?", "+?", "{2}", "{1,}", "{1,2}"])
PATTERNS = st.lists(st.tuples(ATOMS, REPEATS).map("".join), min_size=1, max_size=5).flatmap(
    lambda parts: st.sampled_from(["{}", "^{}", "{}$", "^{}$"]).map(lambda shape: shape.format("".join(parts)))
)
LINES = st.lists(st.text(alphabet="abAB_-. .é[]&<#1\t\x1c", max_size=8), min_size=1, max_size=20).map("\n".join)


@needs_ripgrep
@settings(max_examples=40, deadline=None)
@given(PATTERNS, LINES)
def test_whatever_is_translated_finds_the_same_lines(pattern: str, text: str) -> None:
    translated = ripgrep_pattern(pattern, ignore_case=False)
    assert translated is not None
    program = shutil.which("rg", path=BESIDE_PYTHON)
    assert program is not None
    command = [program, "--no-config", "--text", "--encoding=none", "-n", "-s", f"--regexp={translated}", "-"]
    assert lines_found(Engine(command, frozenset({0, 1})), f"{text}\n") == by_python(pattern, False, text)


# -- the engines ------------------------------------------------------------------------------------------------------


def fill(project: Project) -> None:
    project.write("a.py", "def one():\n    return 1\r\n\r\n# naïve Straße\n")
    project.write("sub/b.txt", "one\ntwo " + "x" * 900 + " one\n")
    project.write("sub/c.txt", "é one".encode("latin-1"))
    project.write("sub/d.txt", "one\nzwei\n".encode("utf-16"))
    project.write("sub/e.bin", b"one\0")
    project.write("sub/f.txt", b"x" * 10_000 + b"\0one\none")
    project.write("sub/ignored/g.txt", "one")
    project.write("sub/.gitignore", "ignored/\n")
    project.write("empty.txt")
    project.write("no_end.txt", "last one")
    project.write("many.txt", "needle\n" * (MOST_MATCHES + 5))
    project.write("mark.txt", "\ufeff\ufeffone\n")


CALLS: list[dict[str, object]] = [
    {"pattern": "one"},
    {"pattern": "ONE", "case_insensitive": True},
    {"pattern": "^one$"},
    {"pattern": r"o\w+\s*\(", "path": "a.py"},
    {"pattern": "needle"},
    {"pattern": "", "path": "sub"},
    {"pattern": "Stra(ß|ss)e"},
    {"pattern": r"\bone\b"},
    {"pattern": "nothing like it"},
    {"pattern": r"^\ufeff?one", "path": "mark.txt"},
    {"pattern": "x{400}"},
]


@needs_ripgrep
@pytest.mark.parametrize("call", CALLS, ids=str)
async def test_grep_answers_the_same_with_ripgrep_and_without(
    project: Project, monkeypatch: pytest.MonkeyPatch, call: dict[str, object]
) -> None:
    fill(project)
    answers: list[str] = []
    for path in (BESIDE_PYTHON, "/nonexistent"):
        monkeypatch.setenv("PATH", path)
        answers.append(await project.text("Grep", **call))
    assert answers[0] == answers[1]
    assert answers[0]


@needs_ripgrep
async def test_a_pattern_that_ripgrep_finds_too_large_is_left_to_python(project: Project, with_ripgrep: None) -> None:
    project.write("a.txt", "a" * 1_000)
    pattern = r"(?:(?:b{999}){999}){9}|^a"
    assert ripgrep_pattern(pattern, ignore_case=False) is not None
    assert (await project.text("Grep", pattern=pattern)).startswith("a.txt:1: a")


async def test_a_program_called_rg_in_the_project_is_not_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("rg", "#!/bin/sh\ntouch ran\n").chmod(0o755)
    project.write("a.txt", "one")
    monkeypatch.setenv("PATH", str(project.root))
    assert await project.text("Grep", pattern="one") == "a.txt:1: one"
    assert "ran" not in project.names()


async def test_a_pattern_that_takes_ages_holds_nobody_up(
    project: Project, without_ripgrep: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grep, "LONGEST_SEARCH", 1.0)
    project.write("a.txt", "found: ab\n" + "a" * 60 + "b\n")
    text = await project.text("Grep", pattern="^(a+)+$|found")
    assert text == "a.txt:1: found: ab\n[stopped after 1 s, not at the end; give a narrower path or pattern]"


@needs_ripgrep
async def test_with_ripgrep_the_same_pattern_takes_no_time(project: Project, with_ripgrep: None) -> None:
    project.write("a.txt", "a" * 60 + "b\n")
    assert await project.text("Grep", pattern="^(a+)+$") == "No line in . matches ^(a+)+$."


async def test_a_cancelled_search_leaves_no_process(project: Project, without_ripgrep: None) -> None:
    begun = trio.Event()
    expression = Expression(pattern="^(a+)+$", ignore_case=False)
    (engine,) = engines(expression, project.root, 10)
    pieces = [b"a" * 60 + b"b\n", b"x\n"]

    async def next_piece() -> bytes:
        begun.set()
        return pieces.pop(0) if pieces else b""

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(search_lines, engine, project.root, next_piece, print)
            await begun.wait()
            nursery.cancel_scope.cancel()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


async def test_matches_come_with_their_number_and_their_place(project: Project, without_ripgrep: None) -> None:
    (engine,) = engines(Expression(pattern="ü|b:c", ignore_case=False), project.root, 2)
    pieces = ["ä ü\nx\n".encode(), b"a b:c\n", b"b:c\n", b""]
    found: list[Match] = []

    async def next_piece() -> bytes:
        await trio.lowlevel.checkpoint()
        return pieces.pop(0)

    with trio.fail_after(20):
        assert await search_lines(engine, project.root, next_piece, found.append)
    assert found == [Match(1, 3, "ä ü".encode()), Match(3, 2, b"a b:c")]


async def test_a_project_that_is_gone_is_said_to_be_so(project: Project) -> None:
    project.root.rmdir()
    for tool, arguments in (("Grep", {"pattern": "x"}), ("Glob", {"pattern": "*"}), ("List", {})):
        assert (await project.refusal(tool, **arguments)).startswith("cwd_gone: ")
