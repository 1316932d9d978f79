"""External agents that go on: the session that one keeps on its own side outlives its process, and ours."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.acceptance.test_external_agents import FAKE, agents_of, run_alone, write_external
from tests.stubs.acp_client import acp_client, opened
from tests.stubs.corral_run import LiveRun, Place, Run
from tests.stubs.model_server import ModelServer, per_prompt, scripted
from tests.stubs.process_table import ended_within
from tests.stubs.replies import delegations, plain_text, text, tool_calls

CAPABILITIES: dict[str, object] = {
    "session/resume": {"loadSession": True, "sessionCapabilities": {"resume": {}}},
    "session/load": {"loadSession": True, "sessionCapabilities": {"resume": None}},
}


@pytest.fixture(params=CAPABILITIES)
def way_back(request: pytest.FixtureRequest, place: Place) -> str:
    """Each way to take a session up again; the agent ``fake`` knows it."""
    way: str = request.param
    write_remembering(place, CAPABILITIES[way])
    return way


def write_remembering(place: Place, capabilities: object, name: str = "fake", **env: str) -> None:
    folder = place.folder
    given = {"FAKE_SESSIONS": str(folder / "sessions"), "FAKE_METHODS": str(folder / "methods")}
    given |= {"FAKE_CAPABILITIES": json.dumps(capabilities), "FAKE_MODE": "remembering"}
    write_external(place, name, str(FAKE), **given, **env)


def say_to(place: Place, prompt: str, *flags: str, name: str = "fake") -> Run:
    root = ["--project-root", str(place.project)]
    return place.command("-p", prompt, "-a", name, "--output-format", "stream-json", *root, *flags)


def prompts_said(run: Run) -> list[str]:
    """What the agent says that its session holds."""
    said: list[str] = json.loads(run.one("run_summary")["response"])
    return said


def methods(place: Place) -> list[str]:
    """What the agent was called with since this was last asked."""
    path = place.folder / "methods"
    called = path.read_text().split()
    path.unlink()
    return called


def wait_until_told(live: LiveRun) -> str:
    """The session, once its agent has said that it waits."""
    (said,) = live.wait_for(lambda line: line["type"] == "text_delta")
    assert said["text"] == "I wait"
    session_id: str = said["session_id"]
    return session_id


def test_a_resumed_run_goes_on_with_the_agent_s_session(place: Place, way_back: str) -> None:
    first = say_to(place, "one")
    assert prompts_said(first) == ["one"]
    assert methods(place) == ["initialize", "session/new", "session/prompt"]
    again = say_to(place, "two", "--session", first.session_id)
    assert again.returncode == 0, again
    assert prompts_said(again) == ["one", "two"]
    assert methods(place) == ["initialize", way_back, "session/prompt"]
    third = say_to(place, "three", "--session", first.session_id)
    assert prompts_said(third) == ["one", "two", "three"]


def test_a_replayed_session_is_neither_said_again_nor_counted(place: Place, way_back: str) -> None:
    first = say_to(place, "one")
    again = say_to(place, "two", "--session", first.session_id)
    assert again.types()[3:-3] == ["text_delta", "info"]  # the note on usage that was not reported
    assert again.one("text_delta")["text"] == '["one", "two"]'
    assert again.one("run_summary")["usage"]["api_calls"] == 0


def test_an_agent_that_announces_nothing_is_told_the_history(place: Place) -> None:
    write_remembering(place, {"loadSession": False, "sessionCapabilities": {}})
    first = say_to(place, "one")
    again = say_to(place, "two", "--session", first.session_id)
    (told,) = prompts_said(again)
    assert told.endswith('User: one\n\nYou: ["one"]\n\nNow:\n\ntwo')
    assert [line["message"] for line in again.of_type("info") if "session" in line["message"]] == []


def test_a_session_that_the_agent_has_forgotten_is_begun_anew_with_the_history(place: Place, way_back: str) -> None:
    first = say_to(place, "one")
    for session in (place.folder / "sessions").iterdir():
        session.rename(place.folder / "forgotten")
    methods(place)
    again = say_to(place, "two", "--session", first.session_id)
    assert again.returncode == 0, again
    *tried, begun, prompted = methods(place)
    ways = ["session/resume", "session/load"]
    assert tried == ["initialize", *ways[ways.index(way_back) :]]
    assert (begun, prompted) == ("session/new", "session/prompt")
    (told,) = prompts_said(again)
    assert told.endswith('User: one\n\nYou: ["one"]\n\nNow:\n\ntwo')
    (note,) = [line["message"] for line in again.of_type("info") if "session" in line["message"]]
    assert note.startswith("fake could not go on with its session, so it begins a new one and is told what was said")
    assert "there is no such session" in note
    third = say_to(place, "three", "--session", first.session_id)
    assert prompts_said(third) == [told, "three"], "the new session counts from then on"


def test_an_agent_is_told_what_was_said_without_it(place: Place, way_back: str) -> None:
    write_external(place, "other", str(FAKE))
    first = say_to(place, "one")
    say_to(place, "two", "--session", first.session_id, name="other")
    third = say_to(place, "three", "--session", first.session_id)
    missed = "What was said since, without you:\n\nUser: two\n\nYou: hello from the fake\n\nNow:\n\nthree"
    assert prompts_said(third) == ["one", missed]


def test_an_interrupt_ends_the_turn_and_keeps_the_session(place: Place, way_back: str) -> None:
    with place.start("http://127.0.0.1:9/v1", "-a", "fake", "-p", "wait for it") as live:
        session_id = wait_until_told(live)
        live.signal(signal.SIGINT)
        run = live.finish()
    assert run.returncode == 130
    assert methods(place)[-1] == "session/cancel"
    assert prompts_said(say_to(place, "two", "--session", session_id)) == ["wait for it", "two"]


def test_the_session_outlives_a_killed_supervisor(place: Place, way_back: str) -> None:
    first = say_to(place, "one")
    resumed = ["--session", first.session_id]
    with place.start("http://127.0.0.1:9/v1", "-a", "fake", "-p", "wait for it", *resumed) as live:
        wait_until_told(live)
        live.signal(signal.SIGKILL)
        live.finish(checked=False)
    *before, last = prompts_said(say_to(place, "two", *resumed))
    assert before == ["one", "wait for it"]
    # What may not have been stored yet when the supervisor died is told again.
    assert last in ("two", "What was said since, without you:\n\nUser: wait for it\n\nNow:\n\ntwo")


def test_a_worker_that_dies_is_started_again_and_its_agent_goes_on(place: Place) -> None:
    pids = place.folder / "pids"
    write_remembering(place, CAPABILITIES["session/resume"], FAKE_PIDS=str(pids))
    first = tool_calls([*delegations("fake", "wait"), *delegations("task", "one")])
    replies = {"one": [plain_text("one is done")]}
    with (
        ModelServer(scripted([first, text("All done.")], per_prompt(replies))) as server,
        place.start(server) as live,
    ):
        live.wait_for(lambda line: line["type"] == "text_delta" and line.get("parent_id") == "to-wait")
        (agent,) = map(int, pids.read_text().split())
        worker = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(worker, signal.SIGKILL)
        assert ended_within(agent, 5), "the program outlived its worker"
        run = live.finish()
    assert run.returncode == 0, run
    assert (run.one("agent_crashed")["agent_name"], run.one("agent_crashed")["restart"]) == ("fake", 1)
    ended = agents_of(run)
    assert {name: line["outcome"] for name, line in ended.items()} == {"to-wait": "complete", "to-one": "complete"}
    assert ended["to-wait"]["restarts"] == 1
    begun, note = json.loads(run.outputs()["to-wait"].removeprefix("I wait"))
    assert (begun, "Go on where you were" in note) == ("wait", True)
    assert methods(place) == ["initialize", "session/new", "session/prompt", "initialize", "session/resume",
                              "session/prompt"]  # fmt: skip


def test_an_agent_that_takes_too_long_costs_that_one_alone(place: Place) -> None:
    for name, mode in (("fake", "plain"), ("slow", "silent")):
        write_external(place, name, str(FAKE), FAKE_MODE=mode)
    path = place.config / "corral" / "agents" / "slow.json"
    described = json.loads(path.read_text())
    described["acp"]["timeout"] = 0.5
    path.write_text(json.dumps(described))
    first = tool_calls([*delegations("slow", "a"), *delegations("fake", "b"), *delegations("task", "c")])
    with ModelServer(scripted([first, text("All done.")], per_prompt({"c": [plain_text("c is done")]}))) as server:
        run = place.run(server)
    assert run.returncode == 0, run
    outcomes = {name: line["outcome"] for name, line in agents_of(run).items()}
    assert outcomes == {"to-a": "limit", "to-b": "complete", "to-c": "complete"}
    assert "0.5 s" in run.outputs()["to-a"]


@pytest.mark.parametrize("timeout", [0, -1, "soon"])
def test_a_timeout_that_is_none_is_one_sentence(place: Place, timeout: object) -> None:
    folder = place.config / "corral" / "agents"
    folder.mkdir(parents=True)
    acp = {"command": sys.executable, "timeout": timeout}
    (folder / "wrong.json").write_text(json.dumps({"name": "wrong", "acp": acp}))
    run = run_alone(place, "wrong")
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, b"", 1)
    assert "timeout" in run.stderr


def test_the_prompts_of_a_client_s_session_are_those_of_the_agent_s(place: Place, way_back: str) -> None:
    with acp_client(place, None, "-a", "fake") as client:
        session = opened(client, place)
        client.turn(session, "one")
        client.turn(session, "two")
        assert client.text(session) == '["one"]["one", "two"]'
    assert methods(place).count(way_back) == 1
