"""Agents that other people wrote, run as external agents against a model server of this machine."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.usage import Usage
from tests.interop.acp_schema import AcpSchema
from tests.interop.any_model_server import HELLO, AnyModelServer, Api, said_as_message
from tests.interop.real_agents import AGENTS, COMMAND, PROMPT, write_agent
from tests.interop.tap import Json, conversation
from tests.stubs.corral_run import Place, Run
from tests.stubs.model_server import ReceivedRequest
from tests.stubs.process_table import ended_within, lineage
from tests.stubs.replies import Pause, Reply, delegations, hang, plain_calls, plain_text, text, tool_calls
from tests.stubs.stream_rules import Line, check_stream

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SECONDS = 120.0
ASKING = [name for name, agent in AGENTS.items() if agent.shell is not None]
WITH_MODEL = [name for name, agent in AGENTS.items() if agent.says == HELLO]


@dataclass(frozen=True)
class Alone:
    """A one-shot whose main agent is the external one, and what the two said to each other."""

    run: Run
    ours: list[Json]
    theirs: list[Json]

    def method(self, name: str) -> list[Json]:
        """The messages of one method, whoever said them."""
        return [message for message in [*self.ours, *self.theirs] if message.get("method") == name]


def run_alone(place: Place, name: str, server: AnyModelServer, *flags: str) -> Alone:
    """The run to its end; every message of both sides must be valid."""
    record = place.folder / "record"
    write_agent(place, name, server, record=record)
    arguments = ["-p", PROMPT, "-a", name, "--output-format", "stream-json", "--project-root", str(place.project)]
    run = place.command(*arguments, *flags, timeout=SECONDS)
    check_stream(run.lines, run.returncode)
    ours, theirs = conversation(record)
    assert AcpSchema().faults(ours, theirs, agent_may_add=True) == []
    return Alone(run, ours, theirs)


# -- one at a time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AGENTS)
def test_a_whole_turn(place: Place, name: str) -> None:
    with AnyModelServer() as server:
        alone = run_alone(place, name, server)
    run = alone.run
    assert run.returncode == 0, str(run)
    assert run.one("run_summary")["response"].endswith(AGENTS[name].says)
    reported = AGENTS[name].usage
    assert Usage(**run.one("run_summary")["usage"]) == (reported or Usage()), str(run)
    notes = [line["message"] for line in run.of_type("info")]
    assert any("does not report what it used" in note for note in notes) is (reported is None), str(run)


@pytest.mark.parametrize("trust", ["auto", "safe"])
@pytest.mark.parametrize("name", ASKING)
def test_a_call_that_asks_for_consent_is_as_free_as_trust(place: Place, name: str, trust: str) -> None:
    shell = AGENTS[name].shell
    assert shell is not None
    with AnyModelServer([shell]) as server:
        alone = run_alone(place, name, server, "--trust", trust)
    assert len(alone.method("session/request_permission")) == 1
    run = alone.run
    started = run.one("tool_call_start")
    assert started["name"] == "execute", str(run)
    assert COMMAND in str(started["args"]), str(run)
    assert run.outcomes()[started["id"]] == ("success" if trust == "auto" else "denied"), str(run)
    assert (place.project / "made.txt").exists() is (trust == "auto")
    # Codex ends its turn as cancelled where it is refused.
    assert run.returncode == (1 if (name, trust) == ("codex", "safe") else 0), str(run)


@pytest.mark.parametrize("name", WITH_MODEL)
def test_a_turn_is_cancelled_while_the_model_thinks(place: Place, name: str) -> None:
    record = place.folder / "record"
    with AnyModelServer([hang()]) as server:
        write_agent(place, name, server, record=record)
        with place.start(server, "-a", name) as live:
            assert server.has_asked.wait(SECONDS)
            live.signal(signal.SIGTERM)
            run = live.finish(SECONDS)
    assert run.returncode == 143
    ours, theirs = conversation(record)
    assert [message.get("method") for message in ours].count("session/cancel") == 1
    assert AcpSchema().faults(ours, theirs, agent_may_add=True) == []


# -- at once ----------------------------------------------------------------------------------------------------------


def test_two_real_agents_and_two_of_ours_work_at_once_and_one_is_killed(place: Place) -> None:
    """The killed one is codex; it and the other three are in the middle of a model call each at that time."""
    place.write("a.txt", "one\n")
    released = threading.Event()
    wanted = [*delegations("codex", "a"), *delegations("claude", "b"), *delegations("task", "c", "d")]
    main = deque([tool_calls(wanted), text("All done.")])

    def answer(request: ReceivedRequest) -> Reply:
        """Children of ours read a file and are done; their first reply waits until they are ``released``."""
        if request.streaming:
            return main.popleft()
        if request.results:
            return plain_text(f"{request.prompt} is done")
        return after(released, plain_calls(("look", "Read", {"file_path": "a.txt"})))

    replies: dict[Api, list[Reply]] = {"responses": [hang()], "messages": [after(released, said_as_message(HELLO))]}
    with AnyModelServer(chat=answer, by_api=replies) as server:
        write_agent(place, "codex", server)
        write_agent(place, "claude", server)
        with place.start(server) as live:
            assert server.asked("responses").wait(SECONDS) and server.asked("messages").wait(SECONDS)
            server.wait_for_requests(3, SECONDS)
            victim = lineage(live.process.pid, "codex-acp")[-1]
            os.kill(victim, signal.SIGKILL)
            live.wait_for(lambda line: line["type"] == "sub_agent_end" and line["parent_id"] == "to-a", timeout=SECONDS)
            released.set()
            run = live.finish(SECONDS)
            assert ended_within(victim, 5)
    check_four(run)


def check_four(run: Run) -> None:
    """Three are complete, one is not; all that the four did is tagged; the run goes on to its end."""
    assert run.returncode == 0, str(run)
    assert run.one("run_summary")["response"] == "All done."
    ended: dict[str, Line] = {line["parent_id"]: line for line in run.of_type("sub_agent_end")}
    assert {call: line["outcome"] for call, line in ended.items()} == {
        "to-a": "error", "to-b": "complete", "to-c": "complete", "to-d": "complete",
    }  # fmt: skip
    kinds = run.types()
    starts = [index for index, kind in enumerate(kinds) if kind == "sub_agent_start"]
    assert len(starts) == 4 and starts[-1] < kinds.index("sub_agent_end"), "they were not at work at the same time"
    read = [line["parent_id"] for line in run.of_type("tool_call_start") if line["name"] == "Read"]
    assert sorted(read) == ["to-c", "to-d"]
    outputs = run.outputs()
    assert (outputs["to-b"], outputs["to-c"], outputs["to-d"]) == (HELLO, "c is done", "d is done")


def after(event: threading.Event, reply: Reply) -> Reply:
    """The reply, once ``event`` is set."""
    return Reply(steps=(Pause(event), *reply.steps), usage=reply.usage, keep_alive=reply.keep_alive)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A project and a home of its own."""
    return Place(tmp_path)
