"""External agents beside our own: a program that speaks the Agent Client Protocol, named by an agent file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.stubs.corral_run import Place, Run
from tests.stubs.model_server import ModelServer, per_prompt, scripted
from tests.stubs.process_table import ended_within
from tests.stubs.replies import Pause, Reply, delegations, hang, plain_text, text, tool_calls
from tests.stubs.stream_rules import Line, check_stream

STUBS = Path(__file__).parents[1] / "stubs"
FAKE = STUBS / "fake_acp_agent.py"

WORKING = f"""
import sys
sys.path.insert(0, {str(STUBS)!r})
from fake_acp_agent import *

def update(**fields):
    write({{"method": "session/update", "params": {{"sessionId": SESSION, "update": fields}}}})

open_session()
request, text = next_prompt()
update(sessionUpdate="agent_thought_chunk", content={{"type": "text", "text": "Hm."}})
update(sessionUpdate="plan", entries=[{{"content": "write", "status": "completed", "priority": "high"}}])
update(sessionUpdate="tool_call", toolCallId="w", kind="edit", status="in_progress", rawInput={{"path": "a.txt"}})
Path("a.txt").write_text("by the fake")
update(sessionUpdate="tool_call_update", toolCallId="w", status="completed", rawOutput="written")
say("I wrote it.")
usage = {{"inputTokens": 70, "outputTokens": 20, "totalTokens": 90}}
answer(request, {{"stopReason": "end_turn", "usage": usage}})
"""
"""An external agent that thinks, plans, writes a file and reports what it used."""

WAITS_FOR_A_FILE = """open_session()
open(os.environ["GATE"]).read()
"""
"""In the place of its opening: an agent that works on only once whoever writes to that pipe has closed it."""

STUBBORN = f"""
import sys
sys.path.insert(0, {str(STUBS)!r})
from fake_acp_agent import *

signal.signal(signal.SIGTERM, signal.SIG_IGN)
open_session()
next_prompt()
say(str(os.getpid()))
signal.pause()
"""


def write_external(place: Place, name: str, *arguments: str, command: str = sys.executable, **env: str) -> None:
    """An agent file in the user's own folder."""
    folder = place.config / "corral" / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    acp = {"command": command, "args": arguments, "env": env}
    (folder / f"{name}.json").write_text(json.dumps({"name": name, "acp": acp, "description": "Somebody else's."}))


def run_alone(place: Place, name: str, *flags: str, form: str = "stream-json") -> Run:
    """A one-shot whose main agent is the external one: no model of ours is named."""
    root = str(place.project)
    run = place.command("-p", "Do it", "-a", name, "--output-format", form, "--project-root", root, *flags)
    if form == "stream-json" and run.returncode != 2:
        check_stream(run.lines, run.returncode)
    return run


def together(place: Place) -> tuple[Reply, list[str]]:
    """A reply that asks for an external agent and two of our own, and the prompts of the latter."""
    return tool_calls([*delegations("fake", "outside"), *delegations("task", "one", "two")]), ["one", "two"]


def held(gate: threading.Event, *names: str) -> dict[str, list[Reply]]:
    """Replies to the prompts ``names`` that wait for the gate."""
    return {name: [Reply(steps=(Pause(gate), *plain_text(f"{name} is done").steps), keep_alive=True)] for name in names}


def agents_of(run: Run) -> dict[str, Line]:
    """The last line of each sub-agent, by the call that asked for it."""
    return {line["parent_id"]: line for line in run.of_type("sub_agent_end")}


# -- alone ------------------------------------------------------------------------------------------------------------


def test_an_external_agent_is_the_main_agent_of_a_run_without_any_model(place: Place) -> None:
    write_external(place, "fake", "-c", WORKING)
    run = run_alone(place, "fake")
    assert run.returncode == 0, run
    ready = run.one("session_ready")
    assert (ready["provider"], ready["model"], ready["tools"]) == ("acp", "fake", [])
    assert run.types()[3:-3] == [
        "thinking_delta", "todo_update", "tool_call_start", "tool_call_result", "text_delta",
    ]  # fmt: skip
    assert run.one("tool_call_start")["args"] == {"path": "a.txt"}
    assert run.outputs() == {"w": "written"}
    summary = run.one("run_summary")
    assert summary["response"] == "I wrote it."
    used = summary["usage"]
    assert (used["prompt_tokens"], used["completion_tokens"], used["api_calls"]) == (70, 20, 1)
    assert (place.project / "a.txt").read_text() == "by the fake"


def test_the_next_turn_is_told_what_was_said_before(place: Place) -> None:
    write_external(place, "fake", str(FAKE), FAKE_MODE="plain", FAKE_MESSAGES=str(place.folder / "messages"))
    first = run_alone(place, "fake")
    again = run_alone(place, "fake", "--session", first.session_id)
    assert again.returncode == 0, again
    messages = map(json.loads, (place.folder / "messages").read_text().splitlines())
    prompts = [each["params"]["prompt"][0]["text"] for each in messages if each["method"] == "session/prompt"]
    assert prompts[0] == "Do it"
    assert "User: Do it\n\nYou: hello from the fake" in prompts[1]


def test_usage_that_is_not_reported_is_told_once(place: Place) -> None:
    write_external(place, "fake", str(FAKE))
    run = run_alone(place, "fake")
    assert "does not report what it used" in run.one("info")["message"]
    assert run.one("run_summary")["usage"]["api_calls"] == 0


def test_a_missing_program_is_one_sentence_that_says_what_to_do(place: Place) -> None:
    write_external(place, "lost", command="no-such-agent")
    run = run_alone(place, "lost", form="text")
    assert (run.returncode, run.stdout) == (1, b"")
    assert run.stderr == "corral: failed: there is no program 'no-such-agent': install it, or give its whole path\n"


def test_sigterm_reaches_the_agent_as_a_cancel(place: Place) -> None:
    cancels = place.folder / "cancels"
    write_external(place, "fake", str(FAKE), FAKE_MODE="cancellable", FAKE_CANCELS=str(cancels))
    with place.start("http://127.0.0.1:9/v1", "-a", "fake") as live:
        live.wait_for(lambda line: line["type"] == "text_delta")
        live.signal(signal.SIGTERM)
        run = live.finish()
    assert run.returncode == 143
    assert cancels.read_text() == "session/cancel\n"


def test_an_agent_without_manners_is_gone_when_the_run_is(place: Place) -> None:
    """It takes no notice of a cancel, of the end of its input or of SIGTERM; `Place` finds whoever is left."""
    pids = place.folder / "pids"
    write_external(place, "fake", str(FAKE), FAKE_MODE="lingering", FAKE_PIDS=str(pids))
    run = run_alone(place, "fake")
    assert run.one("run_summary")["response"] == "hello from the fake"
    assert len(pids.read_text().split()) == 2


def test_an_agent_that_takes_no_notice_of_a_cancel_or_of_sigterm_is_killed(place: Place) -> None:
    write_external(place, "fake", "-c", STUBBORN)
    with place.start("http://127.0.0.1:9/v1", "-a", "fake") as live:
        (said,) = live.wait_for(lambda line: line["type"] == "text_delta")
        live.signal(signal.SIGTERM)
        run = live.finish()
        assert ended_within(int(said["text"]), 5)
    assert run.returncode == 143


def test_a_key_of_ours_does_not_reach_an_external_agent(place: Place) -> None:
    write_external(place, "fake", str(FAKE), FAKE_MODE="environment", GIVEN="by the file")
    root = str(place.project)
    arguments = ["-p", "x", "-a", "fake", "--output-format", "stream-json", "--project-root", root]
    ours = {"OPENAI_API_KEY": "sk-canary", "OTHER_TOKEN": "t-canary", "WANTED_TOKEN": "wanted"}
    run = place.command(*arguments, "--pass-env", "WANTED_TOKEN", environment=ours)
    seen = json.loads(run.one("run_summary")["response"])
    assert "canary" not in json.dumps(seen)
    assert (seen["GIVEN"], seen["WANTED_TOKEN"]) == ("by the file", "wanted")


# -- beside our own ---------------------------------------------------------------------------------------------------


def test_external_and_own_agents_work_under_one_parent_each_event_tagged(place: Place) -> None:
    write_external(place, "fake", "-c", WORKING)
    first, prompts = together(place)
    replies = {prompt: [plain_text(f"{prompt} is done")] for prompt in prompts}
    with ModelServer(scripted([first, text("All done.")], per_prompt(replies))) as server:
        run = place.run(server)
    assert run.returncode == 0, run
    outside = [line["type"] for line in run.lines if line.get("parent_id") == "to-outside"]
    assert outside == [
        "sub_agent_start", "thinking_delta", "todo_update", "tool_call_start", "tool_call_result", "text_delta",
        "sub_agent_end",
    ]  # fmt: skip
    assert {name: run.outputs()[f"to-{name}"] for name in ("outside", "one", "two")} == {
        "outside": "I wrote it.", "one": "one is done", "two": "two is done",
    }  # fmt: skip
    by_agent = run.one("run_summary")["usage_by_agent"]
    assert (by_agent["fake"]["prompt_tokens"], by_agent["fake"]["api_calls"]) == (70, 1)


@pytest.mark.parametrize("victim", ["agent", "worker"])
def test_one_that_is_killed_costs_that_one_alone(place: Place, victim: str) -> None:
    """The program itself, or the worker of ours that runs it; neither is started again."""
    pids = place.folder / "pids"
    write_external(place, "fake", str(FAKE), FAKE_MODE="deaf", FAKE_PIDS=str(pids))
    first, prompts = together(place)
    replies = {prompt: [plain_text(f"{prompt} is done")] for prompt in prompts}
    gate = threading.Event()
    replies |= held(gate, "one")
    with (
        ModelServer(scripted([first, text("All done.")], per_prompt(replies))) as server,
        place.start(server) as live,
    ):
        live.wait_for(lambda line: line["type"] == "text_delta" and line.get("parent_id") == "to-outside")
        (agent,) = map(int, pids.read_text().split())
        parent = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(agent if victim == "agent" else parent, signal.SIGKILL)
        assert ended_within(agent, 5), "the program outlived its worker"
        gate.set()
        run = live.finish()
    assert run.returncode == 0, run
    ended = agents_of(run)
    assert [ended[f"to-{name}"]["outcome"] for name in prompts] == ["complete", "complete"]
    assert ended["to-outside"]["outcome"] == ("error" if victim == "agent" else "crashed")
    assert ended["to-outside"]["restarts"] == 0
    assert len(pids.read_text().split()) == 1


def test_two_external_agents_and_two_of_ours_work_at_once_and_one_is_killed(place: Place) -> None:
    """All four are at work when one of the programs is killed; the others end only then."""
    pids = place.folder / "pids"
    write_external(place, "fake", str(FAKE), FAKE_MODE="deaf", FAKE_PIDS=str(pids))
    write_external(place, "other", "-c", WORKING.replace("open_session()", WAITS_FOR_A_FILE), GATE=str(pids) + ".go")
    os.mkfifo(f"{pids}.go")
    names = ["outside", "beyond", "one", "two"]
    first = tool_calls(
        [*delegations("fake", "outside"), *delegations("other", "beyond"), *delegations("task", "one", "two")]
    )
    gate = threading.Event()
    with (
        ModelServer(scripted([first, text("All done.")], per_prompt(held(gate, "one", "two")))) as server,
        place.start(server) as live,
    ):
        live.wait_for(lambda line: line["type"] == "text_delta" and line.get("parent_id") == "to-outside")
        server.wait_for_requests(3)
        gate_of_other = os.open(f"{pids}.go", os.O_WRONLY)  # opens once the program waits there
        assert not [line for line in live.wait_for(lambda line: "parent_id" in line) if line["type"] == "sub_agent_end"]
        os.kill(int(pids.read_text()), signal.SIGKILL)
        os.close(gate_of_other)
        gate.set()
        run = live.finish()
    assert run.returncode == 0, run
    ended = {name.removeprefix("to-"): line["outcome"] for name, line in agents_of(run).items()}
    assert ended == {"outside": "error", "beyond": "complete", "one": "complete", "two": "complete"}
    assert {name: run.outputs()[f"to-{name}"] for name in names[1:]} == {
        "beyond": "I wrote it.", "one": "one is done", "two": "two is done",
    }  # fmt: skip
    by_agent = {f"to-{name}": [line for line in run.lines if line.get("parent_id") == f"to-{name}"] for name in names}
    assert all(lines[0]["type"] == "sub_agent_start" for lines in by_agent.values())
    assert all(lines[-1]["type"] == "sub_agent_end" for lines in by_agent.values())
    said = {line["text"]: line["parent_id"] for line in run.of_type("text_delta") if "parent_id" in line}
    assert said == {
        "I am at it": "to-outside", "I wrote it.": "to-beyond", "one is done": "to-one", "two is done": "to-two",
    }  # fmt: skip


def test_corral_kill_of_an_external_agent_costs_that_one_alone(place: Place) -> None:
    cancels = place.folder / "cancels"
    write_external(place, "fake", str(FAKE), FAKE_MODE="cancellable", FAKE_CANCELS=str(cancels))
    first, prompts = together(place)
    gate = threading.Event()
    with (
        ModelServer(scripted([first, text("All done.")], per_prompt(held(gate, *prompts)))) as server,
        place.start(server) as live,
    ):
        live.wait_for(lambda line: line["type"] == "text_delta" and line.get("parent_id") == "to-outside")
        (started,) = [
            line
            for line in live.wait_for(lambda line: line["type"] == "sub_agent_start")
            if line["agent_name"] == "fake"
        ]
        kill = [str(place.executable), "kill", started["session_id"], started["agent_id"]]
        subprocess.run(kill, env=place.environment(), stdin=subprocess.DEVNULL, timeout=30, check=True)
        gate.set()
        run = live.finish()
    assert run.returncode == 0, run
    outcomes = {name: line["outcome"] for name, line in agents_of(run).items()}
    assert outcomes == {"to-outside": "cancelled", "to-one": "complete", "to-two": "complete"}
    assert cancels.read_text() == "session/cancel\n"


def test_a_timeout_of_the_run_ends_an_external_agent_too(place: Place) -> None:
    write_external(place, "fake", str(FAKE), FAKE_MODE="silent")
    first = tool_calls([*delegations("fake", "outside"), *delegations("task", "one")])
    with ModelServer(scripted([first], lambda _: hang())) as server:
        run = place.run(server, "--timeout", "2")
    assert run.returncode == 3
    assert {line["outcome"] for line in agents_of(run).values()} == {"cancelled"}


# -- whose command it is ----------------------------------------------------------------------------------------------


def test_a_project_s_external_agent_is_refused_until_the_project_is_trusted(place: Place) -> None:
    path = place.write_agent("theirs", acp={"command": "touch", "args": [str(place.folder / "touched")]})
    run = run_alone(place, "theirs")
    assert (run.returncode, run.stdout) == (2, b"")
    assert run.stderr.startswith(f"corral: {path} is no agent: it may not set 'acp': it names a command in a project")
    assert f"`corral trust {place.project}` or add --trust-project" in run.stderr
    assert not (place.folder / "touched").exists()


@pytest.mark.parametrize("way", ["corral trust", "--trust-project"])
def test_a_project_s_external_agent_runs_once_the_project_is_trusted_and_as_long_as_its_files_stay(
    place: Place, way: str
) -> None:
    acp = {"command": sys.executable, "args": [str(FAKE)]}
    place.write_agent("theirs", acp=acp)
    if way == "corral trust":
        assert place.command("trust", str(place.project)).returncode == 0
    flags = ["--trust-project"] if way == "--trust-project" else []
    run = run_alone(place, "theirs", *flags)
    assert run.returncode == 0, run
    place.write_agent("theirs", acp={**acp, "env": {"FAKE_MODE": "plain"}})
    assert run_alone(place, "theirs").returncode == 2


def test_a_project_s_external_agent_takes_no_one_else_s_name(place: Place) -> None:
    """Asked for through a parent it is refused as well, and nothing else runs in its place."""
    place.write_agent("task", acp={"command": "touch", "args": [str(place.folder / "touched")]})
    with ModelServer(scripted([tool_calls(delegations("task", "one")), text("Done.")])) as server:
        run = place.run(server)
    assert run.outcomes() == {"to-one": "error"}
    assert "may not set 'acp'" in run.outputs()["to-one"]
    assert not (place.folder / "touched").exists()


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "no command": ({"acp": {"args": []}}, "missing required field `command`"),
    "an empty command": ({"acp": {"command": " "}}, "acp.command is empty"),
    "a command of the project": ({"acp": {"command": "./agent"}}, "a name that PATH finds, or a whole path"),
    "a variable without a name": ({"acp": {"command": "x", "env": {"": "1"}}}, "is no name of a variable"),
    "a model": ({"acp": {"command": "x"}, "model": "gpt"}, "an external agent has its own: leave out model"),
    "a command in the wrong place": ({"command": "x", "system_prompt": ""}, "are fields of 'acp'"),
    "neither": ({}, "it needs a system_prompt"),
}


@pytest.mark.parametrize(("fields", "fault"), WRONG.values(), ids=WRONG)
def test_a_file_that_is_no_external_agent_is_one_sentence(place: Place, fields: dict[str, object], fault: str) -> None:
    folder = place.config / "corral" / "agents"
    folder.mkdir(parents=True)
    (folder / "wrong.json").write_text(json.dumps({"name": "wrong", **fields}))
    run = run_alone(place, "wrong")
    assert (run.returncode, run.stdout) == (2, b"")
    assert fault in run.stderr
    assert run.stderr.count("\n") == 1


def test_a_folder_of_the_user_s_that_lies_in_the_project_names_no_command(place: Place) -> None:
    folder = place.project / "corral" / "agents"
    folder.mkdir(parents=True)
    (folder / "theirs.json").write_text(json.dumps({"name": "theirs", "acp": {"command": "touch", "args": ["x"]}}))
    arguments = ["-p", "x", "-a", "theirs", "--project-root", str(place.project), "--trust-project"]
    run = place.command(*arguments, environment={"XDG_CONFIG_HOME": str(place.project)})
    assert run.returncode == 2
    assert "it lies in the project" in run.stderr
