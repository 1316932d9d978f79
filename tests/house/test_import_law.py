"""The law holds here, and the checker that says so knows a breach when it sees one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.import_law import Breach, breaches
from tests.house.sample_tree import write_tree

ROOT = Path(__file__).resolve().parent.parent.parent


def breaches_in(tmp_path: Path, files: dict[str, str]) -> list[Breach]:
    return breaches(write_tree(tmp_path, files))


def test_this_checkout_keeps_the_law() -> None:
    assert [str(breach) for breach in breaches(ROOT)] == []


def test_the_checker_sees_the_three_packages_of_this_checkout() -> None:
    for package in ("protocol", "supervisor", "workers"):
        assert (ROOT / package / "__init__.py").is_file()


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("protocol/a.py", "import trio", "protocol may import trio in protocol/frame_stream.py alone"),
        ("protocol/a.py", "from workers.agent import main", "protocol may not import workers"),
        ("protocol/a.py", "import httpx", "protocol may not import httpx"),
        ("workers/a.py", "import supervisor.cli", "workers may not import supervisor"),
        ("workers/a.py", "from supervisor import cli", "workers may not import supervisor"),
        ("workers/a.py", "import tests.stubs", "workers may not import tests"),
        ("workers/a.py", "import requests", "workers may not import requests"),
        ("workers/a.py", "import httpx", "workers may import httpx in workers/providers/http_transport.py alone"),
        ("workers/tools/a.py", "from httpx import Client", "workers may import httpx in workers/providers/http_"),
        ("supervisor/a.py", "from workers.core.turn import Turn", "supervisor may not import workers"),
        ("supervisor/a.py", "import httpx", "supervisor may not import httpx"),
        ("supervisor/a.py", 'ENTRY = "workers.agent:main"', "supervisor may not name workers.agent:main"),
        ("workers/a.py", 'ENTRY = "supervisor.cli"', "workers may not name supervisor.cli"),
        ("workers/tools/__init__.py", '"""Doc."""\nimport json', "a package's __init__ is a docstring only"),
        ("supervisor/events.py", "", "supervisord installs supervisor/events too: choose another name"),
        ("supervisor/web/__init__.py", "", "supervisord installs supervisor/web too: choose another name"),
        ("workers/a.py", "def (", "can't be parsed"),
    ],
)
def test_a_breach_is_found(tmp_path: Path, path: str, source: str, message: str) -> None:
    found = breaches_in(tmp_path, {path: source})
    assert len(found) == 1
    assert found[0].path == path
    assert found[0].message.startswith(message)


@pytest.mark.parametrize(
    "source",
    [
        "def late():\n    import supervisor",
        "class Late:\n    def method(self):\n        from supervisor import cli",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import supervisor.cli",
        "try:\n    import supervisor\nexcept ImportError:\n    pass",
        "import importlib\nimportlib.import_module('supervisor')",
        "from importlib import import_module\nimport_module('supervisor')",
        "__import__('supervisor')",
    ],
)
def test_an_import_counts_wherever_it_stands(tmp_path: Path, source: str) -> None:
    assert [breach.message for breach in breaches_in(tmp_path, {"workers/a.py": source})] == [
        "workers may not import supervisor"
    ]


@pytest.mark.parametrize("name", ["trio", "httpx", "subprocess", "socket", "time", "random", "os"])
@pytest.mark.parametrize(
    "path",
    [
        "workers/core/turn.py",
        "supervisor/core/deeper/grants.py",
        "workers/providers/sse.py",
        "workers/providers/chat_stream.py",
        "workers/providers/retry_after.py",
        "workers/acp/jsonrpc.py",
        "workers/acp/session.py",
        "workers/acp/translate.py",
    ],
)
def test_a_pure_module_imports_nothing_that_knows_the_world(tmp_path: Path, path: str, name: str) -> None:
    found = breaches_in(tmp_path, {path: f"from {name} import something"})
    assert f"a pure module may not import {name}" in [breach.message for breach in found]


def test_the_same_imports_are_free_to_a_shell(tmp_path: Path) -> None:
    source = "import os, random, socket, subprocess, time, trio"
    assert breaches_in(tmp_path, {"workers/agent.py": source, "supervisor/run.py": source}) == []


def test_a_pure_module_does_not_reach_the_world_through_another_module(tmp_path: Path) -> None:
    files = {
        "workers/core/turn.py": "from workers.tools import tool",
        "workers/tools/tool.py": "from . import deeper",
        "workers/tools/deeper.py": "import os.path",
    }
    assert breaches_in(tmp_path, files) == [
        Breach(
            "workers/core/turn.py",
            1,
            "a pure module may not import os, by way of workers.tools.tool, workers.tools.deeper",
        )
    ]


def test_modules_that_import_each_other_end_the_search(tmp_path: Path) -> None:
    files = {
        "workers/core/turn.py": "import workers.one",
        "workers/one.py": "import workers.two",
        "workers/two.py": "import workers.one",
    }
    assert breaches_in(tmp_path, files) == []


@pytest.mark.parametrize("call", ["datetime.now()", "datetime.datetime.now(UTC)", "date.today()", "datetime.utcnow()"])
def test_a_pure_module_does_not_read_the_clock(tmp_path: Path, call: str) -> None:
    found = breaches_in(tmp_path, {"workers/providers/retry_after.py": f"import datetime\nx = {call}"})
    assert [(breach.line, breach.message.startswith("a pure module may not read the clock")) for breach in found] == [
        (2, True)
    ]


def test_what_the_law_allows_is_no_breach(tmp_path: Path) -> None:
    files = {
        "protocol/__init__.py": '"""The contract."""\n',
        "protocol/frame_stream.py": "import trio\nimport msgspec\nfrom protocol import framing",
        "protocol/framing.py": "import struct",
        "protocol/entries.py": 'AGENT = "workers.agent:main"',
        "workers/__init__.py": "",
        "workers/providers/http_transport.py": "import httpx",
        "workers/providers/table.py": 'PROVIDERS = {"openai_chat": "workers.providers.openai_chat:make"}',
        "workers/core/turn.py": "from protocol.content import ToolCall\nfrom . import guard\nimport json, re, hashlib",
        "workers/core/guard.py": "from datetime import datetime\nEPOCH = datetime.fromtimestamp(0)",
        "supervisor/sinks/events.py": "import sqlite3, trio",
    }
    assert breaches_in(tmp_path, files) == []


def test_a_relative_import_is_resolved_from_its_own_package(tmp_path: Path) -> None:
    files = {"workers/core/turn.py": "from ..agent import run", "workers/agent.py": "import trio"}
    assert [breach.message for breach in breaches_in(tmp_path, files)] == [
        "a pure module may not import trio, by way of workers.agent"
    ]


def test_the_command_prints_the_place_and_fails(tmp_path: Path) -> None:
    write_tree(tmp_path, {"workers/a.py": "\nimport supervisor"})
    command = [sys.executable, "-m", "scripts.import_law", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "workers/a.py:2: workers may not import supervisor\n")


def test_the_command_says_nothing_where_the_law_is_kept(tmp_path: Path) -> None:
    write_tree(tmp_path, {"workers/a.py": "import protocol"})
    command = [sys.executable, "-m", "scripts.import_law", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")
