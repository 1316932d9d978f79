"""AGENTS.md and CLAUDE.md in every agent's system prompt."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.agents import load_agents
from supervisor.project_instructions import MAX_BYTES, read_instructions


def test_agents_md_comes_before_claude_md(tmp_path: Path) -> None:
    assert read_instructions(tmp_path) == ("", ())
    (tmp_path / "CLAUDE.md").write_text("Use tabs.\n")
    assert read_instructions(tmp_path)[0].endswith("CLAUDE.md:\n\nUse tabs.")
    (tmp_path / "AGENTS.md").write_text("Use blanks.\n")
    assert read_instructions(tmp_path)[0].endswith("AGENTS.md:\n\nUse blanks.")


def test_the_instructions_join_the_system_prompt_of_every_agent(tmp_path: Path) -> None:
    catalog = load_agents(tmp_path, tmp_path / "config").with_instructions("Use blanks.")
    assert {spec.system_prompt.rpartition("\n\n")[2] for spec in catalog.specs().values()} == {"Use blanks."}


def test_a_link_within_the_project_is_followed_and_one_out_of_it_is_not(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "secret").write_text("hidden")
    (project / "CLAUDE.md").write_text("Use tabs.")
    (project / "AGENTS.md").symlink_to("CLAUDE.md")
    assert "Use tabs." in read_instructions(project)[0]
    (project / "AGENTS.md").unlink()
    (project / "AGENTS.md").symlink_to("../secret")
    assert read_instructions(project) == ("", (f"{project / 'AGENTS.md'} is ignored: it leads out of the project",))


@pytest.mark.parametrize("kind", ["fifo", "folder", "loop"])
def test_what_is_no_file_is_a_note_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "AGENTS.md"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path)
    text, notes = read_instructions(tmp_path)
    assert text == ""
    assert notes[0].startswith(f"{path} is ignored: ")


def test_the_instructions_are_bounded_and_need_not_be_text(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_bytes(b"\xff" + b"x" * MAX_BYTES)
    text, notes = read_instructions(tmp_path)
    assert text.endswith("\ufffd" + "x" * (MAX_BYTES - 1))
    assert notes == (f"{tmp_path / 'AGENTS.md'} is cut after {MAX_BYTES} bytes",)
