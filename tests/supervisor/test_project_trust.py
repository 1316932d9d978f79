"""Trust in a project's commands: bound to the content of its files."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from supervisor.project_trust import TrustStore, files_with_commands


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "agents").mkdir(parents=True)
    write(folder, "plain")
    return folder


def write(project: Path, name: str, **fields: object) -> None:
    (project / "agents" / f"{name}.json").write_text(json.dumps({"name": name, "system_prompt": "x", **fields}))


def test_only_files_that_name_a_command_need_trust(project: Path, tmp_path: Path) -> None:
    assert files_with_commands(project) == {}
    assert TrustStore(tmp_path).is_trusted(project, {})
    write(project, "external", acp={"command": ["codex"]})
    os.mkfifo(project / "agents" / "pipe.json")
    (project / "agents" / "broken.json").write_text("{")
    assert list(files_with_commands(project)) == ["agents/external.json"]


def test_trust_lasts_until_a_file_is_changed_added_or_taken_away(project: Path, tmp_path: Path) -> None:
    store = TrustStore(tmp_path / "state")
    write(project, "one", acp={"command": ["a"]})
    write(project, "two", command="b")
    files = files_with_commands(project)
    assert not store.is_trusted(project, files)
    store.trust(project, files)
    write(project, "plain", description="another text")
    assert store.is_trusted(project, files_with_commands(project))
    write(project, "one", acp={"command": ["evil"]})
    assert not store.is_trusted(project, files_with_commands(project))
    write(project, "one", acp={"command": ["a"]})
    assert store.is_trusted(project, files_with_commands(project))
    write(project, "three", hooks=["c"])
    assert not store.is_trusted(project, files_with_commands(project))
    for name in ("three", "two"):
        (project / "agents" / f"{name}.json").unlink()
    assert not store.is_trusted(project, files_with_commands(project))


def test_trust_is_in_one_place_and_can_be_taken_back(project: Path, tmp_path: Path) -> None:
    store = TrustStore(tmp_path / "state")
    write(project, "one", acp={})
    files = files_with_commands(project)
    store.trust(project, files)
    assert not store.is_trusted(tmp_path / "a copy elsewhere", files)
    assert store.forget(project)
    assert not store.forget(project)
    assert not store.is_trusted(project, files)


def test_the_record_is_the_owner_s_alone_and_a_broken_one_is_none(project: Path, tmp_path: Path) -> None:
    store = TrustStore(tmp_path / "state")
    write(project, "one", acp={})
    files = files_with_commands(project)
    before = os.umask(0)
    try:
        store.trust(project, files)
    finally:
        os.umask(before)
    (record,) = (tmp_path / "state" / "trust").iterdir()
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    record.write_text("{}")
    assert not store.is_trusted(project, files)
