"""The documents say what is so: commands, flags, codes, paths and samples are looked up or run, never believed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.agent_spec import AgentSpec
from protocol.tool_names import TOOL_EFFECTS
from supervisor import exit_codes
from supervisor.agents import read_agent_file
from supervisor.builtin_agents import BUILTIN_AGENTS
from supervisor.cli import COMMANDS
from supervisor.flags import EPILOG, ONE_SHOT_FLAGS, one_shot_parser, parse_one_shot
from supervisor.provider_table import OPENAI_COMPATIBLE, PROVIDERS

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(sys.executable).with_name("corral")
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "docs/batch.md",
    "docs/first-use.md",
    "docs/scripted-model.md",
    "docs/tools.md",
)
SECONDS = 60.0

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*\b")
SHORT_FLAG = re.compile(r"`(-[A-Za-z])`")
SIGNALS = (1, 2, 15)
MACHINE_PATH = re.compile(r"(?<![\w~.])/(?:work|home|root|tmp|Users|mnt|opt|private|var/folders)/", re.IGNORECASE)
VOLATILE = {"id", "parent_id", "seq", "elapsed_ms", "usage"}
"""Fields of the sample that are others in the next run."""


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def section(document: str, heading: str) -> str:
    """The text below a heading of the second level."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text_of(document), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{document} has no section {heading!r}"
    return found[1]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def commands_of(text: str) -> Iterator[list[str]]:
    """The arguments of every ``corral`` in the indented lines; pipes and variables around it are left out."""
    for line in re.findall(r"^    (.+)$", text, re.MULTILINE):
        for words in split_at_pipes(shlex.split(line, comments=True)):
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words and words[0] == "corral":
                yield words[1:]


def split_at_pipes(words: list[str]) -> Iterator[list[str]]:
    while "|" in words:
        position = words.index("|")
        yield words[:position]
        words = words[position + 1 :]
    yield words


# -- README -----------------------------------------------------------------------------------------------------------


def test_the_readme_can_be_read_at_one_sitting() -> None:
    assert len(text_of("README.md").splitlines()) < 150


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_scripts_that_a_document_names_are_there_and_can_be_run(document: str) -> None:
    for name in re.findall(r"(?:\./)?(scripts/[a-z]+|\.ci/run)\b(?![./_])", text_of(document)):
        assert os.access(ROOT / name, os.X_OK), name


def test_the_two_commands_to_begin_with_come_first() -> None:
    beginning = text_of("README.md").split("\n## ")[0]
    assert re.findall(r"^    (\./scripts/\w+)", beginning, re.MULTILINE) == ["./scripts/demo", "./scripts/test"]


def test_every_command_line_in_the_readme_is_one_that_corral_takes() -> None:
    found = list(commands_of(text_of("README.md")))
    assert len(found) > 4
    for arguments in found:
        if arguments[0] not in COMMANDS:
            parse_one_shot(arguments, {})


def test_every_command_beside_the_run_is_shown() -> None:
    shown = {words[0] for words in commands_of(text_of("README.md"))}
    assert shown.union(re.findall(r"`corral ([a-z]+) [^`]*`", text_of("README.md"))) >= set(COMMANDS)


def test_every_flag_that_the_readme_names_is_one() -> None:
    known = set(one_shot_parser()._option_string_actions)  # pyright: ignore[reportPrivateUsage]  # argparse tells it nowhere else
    elsewhere = {flag for flag in FLAG.findall(text_of("README.md")) if flag not in known}
    targets = {target.partition(":")[0].rpartition(".")[0].replace(".", "/") for target in COMMANDS.values()}
    sources = "".join(file.read_text(encoding="utf-8") for folder in targets for file in (ROOT / folder).glob("*.py"))
    assert {flag for flag in elsewhere if f'"{flag}"' not in sources} == set()


def test_the_table_of_flags_has_every_flag_once_with_its_short_form() -> None:
    shown = [cells[1] for cells in rows(section("README.md", "Flags"))]
    flags = [flag for group in ONE_SHOT_FLAGS.values() for flag in group]
    assert sorted(FLAG.findall(" ".join(shown))) == sorted(
        [f"--{flag.name}" for flag in flags] + ["--help", "--version"]
    )
    short = sorted(set(SHORT_FLAG.findall(" ".join(shown))))
    assert short == sorted({flag.short for flag in flags if flag.short} | {"-h"})


def test_the_defaults_in_the_table_of_flags_are_those_of_the_help() -> None:
    helps = {flag.name: flag.help for group in ONE_SHOT_FLAGS.values() for flag in group}
    shown = re.findall(r"`--([a-z-]+)` \(([0-9]+[KMG]?)\)", section("README.md", "Flags"))
    assert len(shown) > 5
    for name, default in shown:
        assert f"default: {default})" in helps[name], name


def codes_of_module() -> set[int]:
    numbers = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    return numbers | {exit_codes.of_signal(number) for number in SIGNALS}


def test_the_table_of_exit_codes_is_that_of_the_code_and_so_is_the_help() -> None:
    shown = [int(code) for cells in rows(section("README.md", "Exit codes of a run")) for code in cells[0].split(",")]
    assert sorted(shown) == sorted(codes_of_module())
    told = re.findall(r"\b\d+\b", EPILOG.partition("exit codes:")[2])
    assert {int(code) for code in told} == codes_of_module()


def test_the_tools_and_the_agents_are_those_that_there_are() -> None:
    text = " ".join(section("README.md", "Tools and agents").split())
    tools = re.search(r"The tools are (.+?)\.", text)
    assert tools is not None
    assert re.split(r", | and ", tools[1]) == list(TOOL_EFFECTS)
    agents = re.search(r"The built-in agents are (.+?)\. A file", text)
    assert agents is not None
    assert re.findall(r"`(\w+)`", agents[1]) == [agent.name for agent in BUILTIN_AGENTS]


def test_the_agent_file_of_the_readme_is_one_and_every_field_is_named(tmp_path: Path) -> None:
    text = section("README.md", "Tools and agents")
    (example,) = blocks(text, "json")
    fields: dict[str, Any] = json.loads(example)
    path = tmp_path / f"{fields['name']}.json"
    path.write_text(example)
    assert read_agent_file(path).name == fields["name"]
    others = re.findall(r"`(\w+)`", text.partition("Other fields:")[2].partition(".")[0])
    assert {*fields, *others} == {field.name for field in msgspec.structs.fields(AgentSpec)}


def test_every_provider_is_named() -> None:
    text = section("README.md", "Install and run")
    missing = {entry.name for entry in PROVIDERS if not re.search(rf"\b{re.escape(entry.name)}\b", text)}
    assert missing <= {OPENAI_COMPATIBLE}


def projects_of(line: dict[str, Any], sample: dict[str, Any]) -> bool:
    """Whether a line of the stream is what a line of the sample was shortened from."""
    if not set(sample) <= set(line):
        return False
    return all(line[name] == value for name, value in sample.items() if name not in VOLATILE)


def test_the_sample_of_the_stream_is_what_the_run_above_it_writes(tmp_path: Path) -> None:
    """The scenario is the example of its own page; a sample line may lack fields, and lines may be left out."""
    scenario, *_ = blocks(section("docs/scripted-model.md", "An example"), "json")
    (tmp_path / "hello.json").write_text(scenario)
    (tmp_path / "Makefile").write_text("test:\n\tpytest\n")
    arguments = next(words for words in commands_of(text_of("README.md")) if "hello.json" in words)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    command = [str(COMMAND), *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    stream = iter([json.loads(line) for line in done.stdout.splitlines()])
    (sample,) = blocks(section("README.md", "What you read"), "json")
    for line in sample.splitlines():
        shortened: dict[str, Any] = json.loads(line)
        assert any(projects_of(real, shortened) for real in stream), f"no such line, or not at its place: {line}"
    assert list(stream) == [], "the sample ends with the last line"


# -- ARCHITECTURE -----------------------------------------------------------------------------------------------------


def paths_in_tree(lines: Iterable[str]) -> Iterator[str]:
    """The paths of an indented tree: on a line a folder, or files of the folder above it, then two spaces and words."""
    folders: list[str] = []
    for line in lines:
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r" {2,}", line.strip())[0].split()
        del folders[depth:]
        above = "".join(folders)
        yield from (above + name for name in names)
        if names and names[0].endswith("/"):
            folders.append(names[0])


def test_the_paths_of_a_tree_are_read() -> None:
    tree = ["a/      one", "  b.py c.py   two", "  d/   three", "    e.py", "f.py"]
    assert list(paths_in_tree(tree)) == ["a/", "a/b.py", "a/c.py", "a/d/", "a/d/e.py", "f.py"]


def test_every_path_in_the_tree_of_the_architecture_exists() -> None:
    (tree,) = blocks(text_of("ARCHITECTURE.md"), "text")
    paths = list(paths_in_tree(tree.splitlines()))
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_folder_of_the_packages_is_in_the_tree_of_the_architecture() -> None:
    (tree,) = blocks(text_of("ARCHITECTURE.md"), "text")
    named = set(paths_in_tree(tree.splitlines()))
    folders = {
        file.parent.relative_to(ROOT).as_posix() + "/"
        for package in ("protocol", "supervisor", "workers")
        for file in (ROOT / package).rglob("*.py")
    }
    assert folders - named == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_and_link_in_a_document_leads_to_something(document: str) -> None:
    text = text_of(document)
    known = r"(?:protocol|supervisor|workers|tests|scripts|docs)"
    named = re.findall(rf"`({known}/[\w./]*\w/?)`", text)
    linked = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    missing = [name for name in named if not (ROOT / name).exists()]
    missing += [link for link in linked if not ((ROOT / document).parent / link).exists()]
    assert missing == []


# -- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_document_names_a_path_of_the_machine_that_it_was_written_on(document: str) -> None:
    assert MACHINE_PATH.findall(text_of(document)) == []


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("in /home/me/x", True), ("(/tmp/a)", True), ("~/.local/state", False), ("a/tmp/b", False), ("/dev/null", False)],
)
def test_what_a_path_of_a_machine_is(text: str, is_one: bool) -> None:
    assert bool(MACHINE_PATH.search(text)) is is_one


def test_the_changelog_begins_with_the_version_that_is_built() -> None:
    version = tomllib.loads(text_of("pyproject.toml"))["project"]["version"]
    first = re.search(r"^## \[(.+?)\] - (unreleased|\d{4}-\d{2}-\d{2})$", text_of("CHANGELOG.md"), re.MULTILINE)
    assert first is not None
    assert first[1] == version
