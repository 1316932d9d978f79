"""Agents: the built-in ones, the files, and which of them wins."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from protocol.tool_names import TOOL_EFFECTS, tools_of
from supervisor.agents import MAX_FILE_BYTES, MAX_FILES, load_agents, narrower_trust
from supervisor.builtin_agents import BUILTIN_AGENTS
from supervisor.errors import AgentFileInvalid, UnknownAgent

READING = ("Read", "List", "Grep", "Glob")


def write_agent(folder: Path, name: str, **fields: object) -> None:
    """An agent file in ``folder``'s agents/."""
    (folder / "agents").mkdir(parents=True, exist_ok=True)
    (folder / "agents" / f"{name}.json").write_text(json.dumps({"name": name, "system_prompt": "x", **fields}))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config" / "corral"


def test_the_built_in_agents_have_the_tools_that_they_are_for(project: Path, config: Path) -> None:
    catalog = load_agents(project, config)
    tools = {name: tools_of(catalog.get(name)) for name in catalog.names()}
    assert tools == {
        "default": tuple(TOOL_EFFECTS),
        "task": tuple(TOOL_EFFECTS),
        "explore": READING,
        "plan": READING,
        "verify": (*READING, "Bash"),
    }
    assert catalog.notes == ()


def test_agents_that_only_read_have_no_tool_with_another_effect() -> None:
    for spec in BUILTIN_AGENTS:
        if spec.trust == "plan":
            assert {TOOL_EFFECTS[name] for name in tools_of(spec)} == {"read"}


def test_every_built_in_agent_says_what_it_is_for() -> None:
    for spec in BUILTIN_AGENTS:
        assert spec.description
        assert spec.system_prompt


def test_the_project_wins_over_the_user_and_the_user_over_the_built_in(project: Path, config: Path) -> None:
    for name in ("explore", "plan"):
        write_agent(config, name, description="the user's")
    write_agent(project, "plan", description="the project's")
    catalog = load_agents(project, config)
    assert catalog.get("explore").description == "the user's"
    assert catalog.get("plan").description == "the project's"
    assert catalog.get("verify") in BUILTIN_AGENTS


def test_a_configuration_folder_inside_the_project_works(project: Path) -> None:
    """Where XDG_CONFIG_HOME is the project itself."""
    write_agent(project, "default", max_iterations=1)
    write_agent(project / "corral", "own")
    catalog = load_agents(project, project / "corral")
    assert catalog.get("default").max_iterations == 1
    assert catalog.get("own").name == "own"


BROKEN = {
    "empty": "",
    "no JSON": "{",
    "no object": "[]",
    "a missing field": '{"name": "broken"}',
    "a wrong type": '{"name": "broken", "system_prompt": "x", "max_iterations": "many"}',
    "an unknown field": '{"name": "broken", "system_prompt": "x", "base_url": "http://evil.test"}',
    "another name": '{"name": "other", "system_prompt": "x"}',
    "no iterations": '{"name": "broken", "system_prompt": "x", "max_iterations": 0}',
    "a negative temperature": '{"name": "broken", "system_prompt": "x", "temperature": -1}',
    "an unknown provider": '{"name": "broken", "system_prompt": "x", "provider": "acme"}',
    "a wrong trust": '{"name": "broken", "system_prompt": "x", "trust": "root"}',
    "deep nesting": "[" * 100_000,
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_no_agent_is_a_note_and_an_error_only_when_asked_for(
    project: Path, config: Path, content: str
) -> None:
    write_agent(project, "good")
    path = project / "agents" / "broken.json"
    path.write_text(content)
    catalog = load_agents(project, config)
    assert catalog.get("good").name == "good"
    assert "broken" not in catalog.names()
    (note,) = catalog.notes
    assert note.startswith(f"{path} is no agent: ")
    with pytest.raises(AgentFileInvalid) as caught:
        catalog.get("broken")
    assert str(caught.value) == note


def test_a_broken_file_does_not_let_the_built_in_agent_run_in_its_place(project: Path, config: Path) -> None:
    write_agent(project, "explore", max_tokens=-1)
    with pytest.raises(AgentFileInvalid, match="max_tokens must be at least 1"):
        load_agents(project, config).get("explore")


def test_an_unknown_agent_is_answered_with_those_there_are(project: Path, config: Path) -> None:
    with pytest.raises(UnknownAgent, match="there is no agent 'nobody'; there are default, explore, plan"):
        load_agents(project, config).get("nobody")


@pytest.mark.parametrize("name", ["-dash", "a b", "a\x1b[31m", "x" * 65])
def test_a_name_that_is_no_name_is_refused(project: Path, config: Path, name: str) -> None:
    write_agent(project, name)
    with pytest.raises(AgentFileInvalid, match="is no name"):
        load_agents(project, config).get(name)


def test_an_unknown_tool_is_a_note_and_nothing_more(project: Path, config: Path) -> None:
    write_agent(project, "own", allowed_tools=["Read", "Teleport"], disallowed_tools=["Bake"])
    catalog = load_agents(project, config)
    assert tools_of(catalog.get("own")) == ("Read",)
    assert catalog.notes == (f"{project / 'agents' / 'own.json'}: there is no tool Bake, Teleport",)


def test_what_is_no_regular_file_is_not_waited_for(project: Path, config: Path) -> None:
    (project / "agents").mkdir()
    os.mkfifo(project / "agents" / "pipe.json")
    (project / "agents" / "folder.json").mkdir()
    (project / "agents" / "dangling.json").symlink_to(project / "nowhere")
    (project / "agents" / "huge.json").write_bytes(b" " * (MAX_FILE_BYTES + 1))
    (project / "agents" / "notes.txt").write_text("no agent and no concern of ours")
    notes = load_agents(project, config).notes
    assert len(notes) == 4
    assert all("can't be read: " in note for note in notes)


def test_a_folder_full_of_something_else_is_read_up_to_a_limit(project: Path, config: Path) -> None:
    for number in range(MAX_FILES + 1):
        write_agent(project, f"agent-{number:03}")
    catalog = load_agents(project, config)
    assert any(f"only the first {MAX_FILES} are read" in note for note in catalog.notes)
    with pytest.raises(UnknownAgent):
        catalog.get(f"agent-{MAX_FILES:03}")


def test_trust_is_only_ever_narrowed() -> None:
    explore = next(spec for spec in BUILTIN_AGENTS if spec.name == "explore")
    task = next(spec for spec in BUILTIN_AGENTS if spec.name == "task")
    assert narrower_trust("auto", explore) == "plan"
    assert narrower_trust("plan", task) == "plan"
    assert narrower_trust("safe", task) == "safe"
