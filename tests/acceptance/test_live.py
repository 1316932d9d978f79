"""A second shell on a live run: ``corral ps``, ``corral tail`` and ``corral kill``, all as real processes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.live.tail_sink import QUEUE_BYTES
from tests.stubs.corral_run import LiveRun, Place
from tests.stubs.model_server import Handler, ModelServer, ReceivedRequest, scripted
from tests.stubs.process_table import ended_within
from tests.stubs.replies import (
    Close,
    Pause,
    Reply,
    content,
    delegations,
    hang,
    plain_calls,
    plain_text,
    stream,
    text,
    tool_call,
    tool_calls,
)
from tests.stubs.stream_rules import Line

SECONDS = 30.0
TICKING = tool_call("tick", "Bash", {"command": "until [ -e stop ]; do echo tick; sleep 0.05; done"})
LAST = ["turn_summary", "turn_end", "run_summary"]


class SecondShell:
    """The commands of live control, in the environment of a run but with no other tie to it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.sockets = place.home / "state" / "corral" / "run"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command to its end."""
        return subprocess.run(
            [str(self._place.executable), *arguments],
            env=self._place.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
            text=True,
        )

    def agents(self) -> dict[str, Line]:
        """The agents of the only live run, by the prompt that a delegation gave them; "" for the main agent."""
        done = self.run("ps", "--json")
        assert (done.returncode, done.stderr) == (0, ""), done
        (run,) = [json.loads(line) for line in done.stdout.splitlines()]
        return {(agent["parent_call_id"] or "").removeprefix("to-"): agent for agent in run["agents"]}

    @contextmanager
    def start(self, *arguments: str) -> Generator[subprocess.Popen[bytes], None, None]:
        """A command that goes on; it is killed at the end of the block if it still does."""
        command = [str(self._place.executable), *arguments]
        process = subprocess.Popen(
            command, env=self._place.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def shell(place: Place) -> SecondShell:
    """A second shell beside the run."""
    return SecondShell(place)


def children(answers: dict[str, Reply], *prompts: str) -> Handler:
    """A main agent that has a sub-agent for each prompt, and their replies."""

    def child(request: ReceivedRequest) -> Reply:
        return answers[request.prompt]

    return scripted([tool_calls(delegations("task", *prompts)), text("All told.")], child)


def session_of(live: LiveRun) -> str:
    (ready,) = live.wait_for(lambda line: line["type"] == "session_ready")
    session_id: str = ready["session_id"]
    return session_id


@contextmanager
def hanging_run(place: Place) -> Generator[LiveRun, None, None]:
    """A run that waits for its model until the block ends."""
    with ModelServer(scripted([hang()])) as server, place.start(server) as live:
        server.wait_for_requests(1)
        yield live
        live.signal(signal.SIGINT)
        live.finish()


@contextmanager
def ticking_run(place: Place, *, last_words: str = "Done.") -> Generator[tuple[LiveRun, Path], None, None]:
    """A run whose tool writes a line again and again until the file that is returned is there."""
    stop = place.project / "stop"
    with ModelServer(scripted([TICKING, text(last_words)])) as server, place.start(server) as live:
        live.wait_for_output("tick")
        yield live, stop
        stop.touch()
        live.finish()


# -- ps ---------------------------------------------------------------------------------------------------------------


def test_ps_shows_the_agents_of_every_live_run_and_nothing_once_they_are_over(place: Place, shell: SecondShell) -> None:
    replies = {"one": hang(), "two": hang()}
    with ModelServer(children(replies, *replies)) as server, place.start(server) as live:
        server.wait_for_requests(3)
        agents = shell.agents()
        text_form = shell.run("ps")
        live.signal(signal.SIGINT)
        live.finish()
    after = shell.run("ps", "--json")
    assert set(agents) == {"", "one", "two"}
    assert (agents[""]["state"], agents["one"]["state"]) == ("waiting", "running")
    assert (agents[""]["tool"]["name"], agents[""]["tool"]["others"]) == ("InvokeAgent", 1)
    assert agents["one"]["parent_agent_id"] == agents[""]["agent_id"]
    assert agents[""]["usage"]["api_calls"] == 1
    assert len({agent["pid"] for agent in agents.values()} | {live.process.pid}) == 4
    for each in (str(live.process.pid), str(place.project), *(agent["agent_id"] for agent in agents.values())):
        assert each in text_form.stdout
    assert (after.returncode, after.stdout) == (0, "")
    assert list(shell.sockets.iterdir()) == []


def test_ps_finds_a_run_in_each_output_format(place: Place, shell: SecondShell) -> None:
    with hanging_run(place) as live, ModelServer(scripted([hang()])) as server:
        arguments = ["-p", "x", "--output-format", "text", *place.model_flags(server)]
        with shell.start(*arguments) as plain:
            server.wait_for_requests(1)
            runs = [json.loads(line) for line in shell.run("ps", "--json").stdout.splitlines()]
            ended = shell.run("kill", str(plain.pid))
            assert plain.wait(SECONDS) == 143
    assert {run["pid"] for run in runs} == {live.process.pid, plain.pid}
    assert ended.returncode == 0, ended


# -- kill -------------------------------------------------------------------------------------------------------------


def test_killing_one_of_three_sub_agents_costs_that_agent_alone(place: Place, shell: SecondShell) -> None:
    gate = threading.Event()
    one, three = (Reply(steps=(Pause(gate), *plain_text(word).steps), keep_alive=True) for word in ("1", "3"))
    handler = children({"one": one, "two": hang(), "three": three}, "one", "two", "three")
    with ModelServer(handler) as server, place.start(server) as live:
        session_id = session_of(live)
        server.wait_for_requests(4)
        two = shell.agents()["two"]
        killed = shell.run("kill", session_id, two["agent_id"])
        assert ended_within(two["pid"], 3)
        present = shell.agents()
        gate.set()
        run = live.finish()
    assert (killed.returncode, killed.stdout) == (0, f"agent {two['agent_id']} was ended\n"), killed
    assert (present["two"]["state"], present["two"]["outcome"]) == ("ended", "cancelled")
    assert (present["one"]["state"], present["three"]["state"]) == ("running", "running")
    assert run.returncode == 0, run
    outcomes = run.outcomes()
    assert outcomes.pop("to-two") in ("error", "cancelled")
    assert set(outcomes.values()) == {"success"}
    assert "corral kill" in run.outputs()["to-two"]
    assert run.outputs()["to-two"] in server.chats[-1].results
    ends = {line["agent_id"]: line["outcome"] for line in run.of_type("sub_agent_end")}
    assert ends.pop(two["agent_id"]) == "cancelled"
    assert list(ends.values()) == ["complete", "complete"]


def test_killing_an_agent_ends_those_below_it_too(place: Place, shell: SecondShell) -> None:
    def child(request: ReceivedRequest) -> Reply:
        if request.prompt == "deep":
            return hang()
        return plain_calls(*delegations("task", "deep"))

    handler = scripted([tool_calls(delegations("task", "top"))], child)
    with ModelServer(handler) as server, place.start(server) as live:
        session_id = session_of(live)
        server.wait_for_requests(3)
        agents = shell.agents()
        killed = shell.run("kill", session_id, agents["top"]["agent_id"])
        run = live.finish()
    assert f", and with it {agents['deep']['agent_id']}\n" in killed.stdout, killed
    assert run.returncode == 0, run
    assert {line["outcome"] for line in run.of_type("sub_agent_end")} == {"cancelled"}


def test_killing_an_agent_that_has_ended_says_so(place: Place, shell: SecondShell) -> None:
    handler = children({"quick": plain_text("here"), "slow": hang()}, "quick", "slow")
    with ModelServer(handler) as server, place.start(server) as live:
        live.wait_for(lambda line: line["type"] == "sub_agent_end")
        agent_id = shell.agents()["quick"]["agent_id"]
        killed = shell.run("kill", session_of(live), agent_id)
        live.signal(signal.SIGINT)
        live.finish()
    assert (killed.returncode, killed.stdout) == (0, f"agent {agent_id} had ended already (complete)\n"), killed


def test_killing_a_run_is_a_sigterm_and_returns_once_it_is_gone(place: Place, shell: SecondShell) -> None:
    with ModelServer(scripted([hang()])) as server, place.start(server) as live:
        session_id = session_of(live)
        server.wait_for_requests(1)
        killed = shell.run("kill", session_id[:-3])
        assert live.process.poll() == 143
        run = live.finish()
    assert (killed.returncode, killed.stdout) == (0, f"run {session_id} (pid {live.process.pid}) was ended\n"), killed
    assert run.types()[-3:] == LAST
    assert run.end["kind"] == "cancelled"


# -- tail -------------------------------------------------------------------------------------------------------------


def test_tail_sees_the_same_lines_byte_for_byte_to_the_end_of_the_run(place: Place, shell: SecondShell) -> None:
    with ticking_run(place) as (live, stop), shell.start("tail", session_of(live)) as tail:
        assert tail.stdout is not None
        first = tail.stdout.readline()
        stop.touch()
        # `communicate` would leave out what was read ahead with the first line.
        rest = tail.stdout.read()
        assert tail.stderr is not None
        stderr = tail.stderr.read()
        assert tail.wait(SECONDS) == 0
        run = live.finish()
    seen = first + rest
    assert stderr == b""
    assert run.stdout.endswith(b"\n" + seen)
    assert [json.loads(line)["type"] for line in seen.splitlines()][-3:] == LAST


def test_tail_of_one_agent_has_its_lines_alone(place: Place, shell: SecondShell) -> None:
    gate = threading.Event()
    one = Reply(steps=(Pause(gate), *plain_text("the first").steps), keep_alive=True)
    with ModelServer(children({"one": one, "two": hang()}, "one", "two")) as server, place.start(server) as live:
        session_id = session_of(live)
        server.wait_for_requests(3)
        agents = shell.agents()
        with subscribed(shell, live, agents["one"]["agent_id"]) as reader:
            shell.run("kill", session_id, agents["two"]["agent_id"])
            gate.set()
            *lines, end = [json.loads(line) for line in reader]
        live.finish()
    assert {line["parent_id"] for line in lines} == {"to-one"}
    assert [line["type"] for line in lines][-1] == "sub_agent_end"
    assert "".join(line.get("text", "") for line in lines) == "the first"
    assert end == {"type": "tail_end", "reason": "agent_ended"}


@contextmanager
def subscribed(
    shell: SecondShell, live: LiveRun, agent_id: str | None = None
) -> Generator[Iterator[bytes], None, None]:
    """A tail without the command, which can be told apart from one that has yet to begin; the lines that come."""
    (path,) = [each for each in shell.sockets.iterdir() if each.name.endswith(f".{live.process.pid}.sock")]
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as connection:
        (Path(folder) / "f").symlink_to(path.parent)
        connection.settimeout(SECONDS)
        connection.connect(f"{folder}/f/{path.name}")
        connection.sendall(json.dumps({"type": "tail", "agent": agent_id}).encode() + b"\n")
        with connection.makefile("rb") as reader:
            assert json.loads(reader.readline())["type"] == "tailing"
            yield reader


def test_a_tail_that_never_reads_does_not_hold_up_the_run(place: Place, shell: SecondShell) -> None:
    # Much text, none of which is kept: each time the reply breaks off and is asked for again.
    gate = threading.Event()
    much = stream(Pause(gate), *[content("x" * 50_000)] * 70, Close())
    with ModelServer(scripted([much] * 3)) as server, place.start(server, "--retry-delay", "0.01") as live:
        server.wait_for_requests(1)
        with subscribed(shell, live) as reader:
            gate.set()
            run = live.finish()
            before_the_cut = b"".join(reader)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout) > 2 * QUEUE_BYTES
    whole_lines, _newline, _cut_or_end = before_the_cut.rpartition(b"\n")
    lines = [line for line in whole_lines.splitlines() if not line.startswith(b'{"type":"tail_end"')]
    assert b"\n".join(lines) in run.stdout


def test_plain_tail_is_for_reading_and_can_t_steer_the_terminal(place: Place, shell: SecondShell) -> None:
    with (
        ticking_run(place, last_words="\x1b[31mAll\x1b[0m\x07 done.") as (live, stop),
        shell.start("tail", session_of(live), "--plain") as tail,
    ):
        assert tail.stdout is not None
        assert tail.stdout.readline() == b"main: | tick\n"
        stop.touch()
        rest, stderr = tail.communicate(timeout=SECONDS)
    assert (tail.returncode, stderr) == (0, b"")
    assert b"main: All done.\n" in rest
    assert rest.endswith(b"main: run over: exit code 0\n")
    assert b"\x1b" not in rest


def test_ctrl_c_ends_the_tail_with_130_and_the_run_goes_on(place: Place, shell: SecondShell) -> None:
    with ticking_run(place) as (live, _stop):
        with shell.start("tail", session_of(live)) as tail:
            assert tail.stdout is not None
            tail.stdout.readline()
            tail.send_signal(signal.SIGINT)
            _rest, stderr = tail.communicate(timeout=SECONDS)
        assert (tail.returncode, stderr) == (130, b"")
        assert live.process.poll() is None


def test_a_tail_whose_stdout_is_closed_ends_with_141(place: Place, shell: SecondShell) -> None:
    with ticking_run(place) as (live, _stop), shell.start("tail", session_of(live)) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        tail.stdout.readline()
        tail.stdout.close()
        assert tail.wait(SECONDS) == 141
        assert tail.stderr.read() == b""


def test_a_tail_says_when_its_run_was_killed_and_ps_clears_what_is_left_of_it(place: Place, shell: SecondShell) -> None:
    with ModelServer(scripted([TICKING])) as server, place.start(server) as live:
        live.wait_for_output("tick")
        session_id = session_of(live)
        with shell.start("tail", session_id) as tail:
            assert tail.stdout is not None
            tail.stdout.readline()
            live.signal(signal.SIGKILL)
            rest, stderr = tail.communicate(timeout=SECONDS)
        live.finish(checked=False)
    assert tail.returncode == 5
    assert rest == b"" or rest.endswith(b"\n")
    assert stderr.startswith(f"corral: no connection to run {session_id}".encode())
    assert stderr.count(b"\n") == 1
    assert len(list(shell.sockets.iterdir())) == 1
    assert shell.run("ps").stdout == ""
    assert list(shell.sockets.iterdir()) == []


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["kill"], 2, "corral: RUN is missing (corral kill --help shows how it is used)\n"),
        (["tail"], 2, "corral: RUN is missing (corral tail --help shows how it is used)\n"),
        (["tail", "2", "--plain", "--json"], 2, None),
        (["ps", "x"], 2, None),
        (["kill", "1", "2", "3"], 2, None),
        (["kill", "nobody"], 3, "corral: there is no live run 'nobody': corral ps shows those that there are\n"),
        (["tail", "\x1b[31m"], 3, None),
        (["kill", "2", "nobody"], 3, None),
        (["tail", "2", "nobody"], 3, None),
    ],
    ids=str,
)
def test_wrong_words_are_one_sentence_and_touch_nothing(
    place: Place, shell: SecondShell, arguments: list[str], code: int, sentence: str | None
) -> None:
    with hanging_run(place) as live:
        done = shell.run(*arguments)
        assert live.process.poll() is None
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr == sentence or (sentence is None and done.stderr.count("\n") == 1)
    assert "\x1b" not in done.stderr


def test_words_that_fit_two_runs_name_both(place: Place, shell: SecondShell) -> None:
    with (
        hanging_run(place) as one,
        ModelServer(scripted([hang()])) as server,
        shell.start("-p", "x", *place.model_flags(server)) as other,
    ):
        server.wait_for_requests(1)
        done = shell.run("kill", session_of(one)[:2])
        assert (one.process.poll(), other.poll()) == (None, None)
        shell.run("kill", str(other.pid))
    assert done.returncode == 2
    assert f"(pid {one.process.pid})" in done.stderr
    assert f"(pid {other.pid})" in done.stderr


@pytest.mark.parametrize("command", ["ps", "tail", "kill"])
def test_each_command_explains_itself_and_opens_without_trio(place: Place, shell: SecondShell, command: str) -> None:
    shown = shell.run(command, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith(f"usage: corral {command}")
    probe = (
        "import sys; from supervisor.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(sorted({'trio', 'httpx', 'asyncio'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, *([command] if command == "ps" else [command, "nobody"])],
        env=place.environment(),
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.stderr.endswith(b"[]\n")
