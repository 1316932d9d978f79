"""What a user gets: the wheel, what is in it, and how its command behaves in a folder that nobody vouches for."""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.house.installation import ROOT, Installation, install_wheel, run, set_traps

SCENARIO = {
    "agents": {
        "main": [
            {
                "when": {"step": 1},
                "reply": {"tool_calls": [{"name": "InvokeAgent", "arguments": {"agent_name": "task", "prompt": "go"}}]},
            },
            {"reply": {"text": "All is well."}},
        ],
        "task": [
            {
                "when": {"step": 1},
                "reply": {"tool_calls": [{"name": "Bash", "arguments": {"command": "echo it ran > ran.txt"}}]},
            },
            {"reply": {"text": "It ran."}},
        ],
    }
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    folder = tmp_path / "hostile"
    folder.mkdir()
    return folder


def environ_of_a_user(home: Path) -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}


def modules_imported(installed: Installation, flag: str, cwd: Path) -> set[str]:
    """What the command imports, by the interpreter's own account."""
    ended = run([installed.python, "-X", "importtime", installed.corral, flag], cwd=cwd, environ=environ_of_a_user(cwd))
    assert ended.returncode == 0, ended.stderr
    return {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines() if line.startswith("import time:")}


def test_the_wheel_holds_the_three_packages_and_its_metadata(installed: Installation) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {
        "protocol",
        "supervisor",
        "workers",
    }
    assert [name for name in names if "tests" in name.split("/") or "scripts" in name.split("/")] == []
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_holds_every_module_of_the_packages(installed: Installation) -> None:
    modules = {
        file.relative_to(ROOT).as_posix()
        for package in ("protocol", "supervisor", "workers")
        for file in (ROOT / package).rglob("*.py")
    }
    assert modules == {name for name in zipfile.ZipFile(installed.wheel).namelist() if name.endswith(".py")}


def test_the_wheel_asks_for_what_pyproject_names(installed: Installation) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wheel = zipfile.ZipFile(installed.wheel)
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(path).decode())
    assert (metadata["Name"], metadata["Version"]) == ("corral", project["version"])
    extras = project["optional-dependencies"].items()
    optional = [f"{each}; extra == {name!r}" for name, needed in extras for each in needed]
    assert sorted(metadata.get_all("Requires-Dist") or []) == sorted([*project["dependencies"], *optional])


def test_the_version_is_that_of_the_distribution(installed: Installation, tmp_path: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    ended = run([installed.corral, "--version"], cwd=tmp_path, environ=environ_of_a_user(tmp_path))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"corral {version}\n", "")
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_version_and_help_open_without_the_heavy_imports(installed: Installation, tmp_path: Path, flag: str) -> None:
    imported = modules_imported(installed, flag, tmp_path)
    assert "supervisor.cli" in imported
    assert {name.partition(".")[0] for name in imported} & {"trio", "msgspec", "httpx", "asyncio", "sqlite3"} == set()


def test_the_traps_of_a_hostile_folder_would_spring(installed: Installation, hostile: Path) -> None:
    sprung = set_traps(hostile)
    ended = run([installed.python, "-c", "import supervisor.cli"], cwd=hostile, environ=environ_of_a_user(hostile))
    assert ended.returncode == 0, ended.stderr
    assert sprung.read_text(encoding="utf-8").split() == ["supervisor", "supervisor.cli"]


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_a_hostile_folder_has_no_say_in_version_and_help(installed: Installation, hostile: Path, flag: str) -> None:
    sprung = set_traps(hostile)
    ended = run([installed.corral, flag], cwd=hostile, environ=environ_of_a_user(hostile))
    assert ended.returncode == 0, ended.stderr
    assert "corral" in ended.stdout
    assert not sprung.exists()


def test_a_run_in_a_hostile_folder_uses_the_installed_code_in_all_its_processes(
    installed: Installation, hostile: Path, tmp_path: Path
) -> None:
    sprung = set_traps(hostile)
    scenario = tmp_path / "scenario.json"
    scenario.write_text(json.dumps(SCENARIO), encoding="utf-8")
    home = tmp_path / "home"
    home.mkdir()
    command: list[str | Path] = [installed.corral, "-p", "go", "--provider", "scripted", "--script", scenario]
    ended = run([*command, "--output-format", "json"], cwd=hostile, environ=environ_of_a_user(home))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads(ended.stdout)
    assert (summary["success"], summary["response"]) == (True, "All is well.")
    assert (hostile / "ran.txt").read_text(encoding="utf-8") == "it ran\n"
    assert not sprung.exists()
