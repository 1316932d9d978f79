"""A new tool, provider or sink is one file and one line in its table: no file without its line, no line without a file.

A module is one of these when it has what its table takes: a tool a ``TOOL``, a provider a ``make``, a sink a class
named for it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house.sample_tree import write_tree

ROOT = Path(__file__).resolve().parent.parent.parent
TABLES = {"workers/tools": "TOOL", "workers/providers": "make", "supervisor/sinks": r"\w+Sink"}
"""Folder to what its table takes of each module: a pattern for the name."""
ENTRY = re.compile(r"(?:protocol|supervisor|workers)(?:\.\w+)+:\w+")
NO_OUTPUT_FORMAT = {"notes"}
"""Sinks that are there whatever the output format is, so have no line in the table of formats."""


def modules_with(folder: Path, name: str) -> set[str]:
    """The modules of ``folder`` that define ``name``, a pattern, at their top level."""
    return {
        file.stem
        for file in folder.glob("*.py")
        if file.stem not in {"__init__", "table"} and any(re.fullmatch(name, found) for found in top_level_names(file))
    }


def top_level_names(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def modules_in_table(folder: Path, package: str, name: str) -> set[str]:
    """The modules that ``table.py`` takes ``name`` of: imported, as an attribute, or in ``"package.module:name"``."""
    tree = ast.parse((folder / "table.py").read_text(encoding="utf-8"))
    taken: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(re.fullmatch(name, alias.name) for alias in node.names):
            taken.add((node.module or "").rpartition(".")[2])
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and re.fullmatch(name, node.attr):
            taken.add(node.value.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(package + "."):
            module, _, entry = node.value.removeprefix(package + ".").partition(":")
            if re.fullmatch(name, entry):
                taken.add(module)
    return taken


@pytest.mark.parametrize("folder", [folder for folder in TABLES if (ROOT / folder / "table.py").is_file()])
def test_every_module_is_in_its_table_and_every_line_has_its_module(folder: str) -> None:
    name = TABLES[folder]
    found = modules_with(ROOT / folder, name) - NO_OUTPUT_FORMAT
    assert found
    assert found == modules_in_table(ROOT / folder, folder.replace("/", "."), name)


def missing_entries(root: Path) -> list[str]:
    """The strings ``package.module:name`` in the three packages that name nothing."""
    missing: list[str] = []
    for file in sorted(root.glob("*/**/*.py")):
        if file.relative_to(root).parts[0] not in {"protocol", "supervisor", "workers"}:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and ENTRY.fullmatch(node.value):
                module, _, name = node.value.partition(":")
                target = root / (module.replace(".", "/") + ".py")
                if not target.is_file() or name not in top_level_names(target):
                    missing.append(node.value)
    return missing


def test_every_entry_that_a_string_names_exists() -> None:
    assert missing_entries(ROOT) == []


def test_an_entry_that_is_not_there_is_seen(tmp_path: Path) -> None:
    files = {
        "protocol/entries.py": 'A = "workers.start:run"\nB = "workers.start:gone"\nC = "workers.gone:run"\nD = "a:b"',
        "workers/start.py": "def run(): ...",
    }
    assert missing_entries(write_tree(tmp_path, files)) == ["workers.start:gone", "workers.gone:run"]


def test_a_module_without_its_line_and_a_line_without_its_module_are_seen(tmp_path: Path) -> None:
    files = {
        "workers/tools/table.py": """
            from workers.tools import glob
            from workers.tools.read import TOOL as READ

            TOOLS = (READ, glob.TOOL, gone.TOOL)
        """,
        "workers/tools/read.py": "TOOL = 1",
        "workers/tools/glob.py": "TOOL: int = 1",
        "workers/tools/forgotten.py": "TOOL = 1",
        "workers/tools/tool.py": "class Tool: ...",
    }
    folder = write_tree(tmp_path, files) / "workers/tools"
    assert modules_with(folder, "TOOL") == {"read", "glob", "forgotten"}
    assert modules_in_table(folder, "workers.tools", "TOOL") == {"read", "glob", "gone"}


def test_a_table_of_entry_names_is_read_too(tmp_path: Path) -> None:
    files = {
        "workers/providers/table.py": """
            PROVIDERS = {"chat": "workers.providers.openai_chat:make", "gone": "workers.providers.gone:make"}
            OTHER = "workers.providers.scripted:load"
        """,
        "workers/providers/openai_chat.py": "def make(settings): ...",
        "workers/providers/scripted.py": "async def make(settings): ...",
    }
    folder = write_tree(tmp_path, files) / "workers/providers"
    assert modules_with(folder, "make") == {"openai_chat", "scripted"}
    assert modules_in_table(folder, "workers.providers", "make") == {"openai_chat", "gone"}


def test_a_sink_is_known_by_its_class(tmp_path: Path) -> None:
    table = "from supervisor.sinks.json import JsonSink\nfrom supervisor.sinks.sink import Sink"
    files = {
        "supervisor/sinks/table.py": table,
        "supervisor/sinks/json.py": "class JsonSink: ...",
        "supervisor/sinks/sink.py": "class Sink: ...",
        "supervisor/sinks/forgotten.py": "class ForgottenSink: ...",
    }
    folder = write_tree(tmp_path, files) / "supervisor/sinks"
    assert modules_with(folder, TABLES["supervisor/sinks"]) == {"json", "forgotten"}
    assert modules_in_table(folder, "supervisor.sinks", TABLES["supervisor/sinks"]) == {"json"}
