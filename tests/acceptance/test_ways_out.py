"""Every way in which a run may end: its exit code, its last lines, and nothing left behind.

Source: the v1 wire contract, "Formats and exit codes" and "Flags and environment".
"""

from __future__ import annotations

import os
import signal
import threading

import pytest

from protocol.usage import Usage
from tests.stubs.corral_run import LiveRun, Place, Run
from tests.stubs.model_server import Handler, ModelServer, ReceivedRequest, per_prompt, scripted, unused_address
from tests.stubs.process_table import ended_within, lineage
from tests.stubs.replies import (
    DONE,
    CallTuple,
    Pause,
    Reply,
    call_delta,
    calls,
    content,
    delegations,
    hang,
    plain_calls,
    plain_text,
    status,
    stream,
    tool_call,
    tool_calls,
)

QUICK = ("--retry-delay", "0.01")
LAST = ["turn_summary", "turn_end", "run_summary"]


def sleeper(seconds: str, call_id: str = "sleep") -> CallTuple:
    """A command that says so and then sleeps; ``seconds`` tells it from others in the process table."""
    return (call_id, "Bash", {"command": f"echo begun; sleep {seconds}"})


def with_children(streamed: Handler, seconds: str) -> Handler:
    """Sub-agents with the prompt "look" sleep in Bash; all others are done at once."""

    def answer(request: ReceivedRequest) -> Reply:
        if request.streaming:
            return streamed(request)
        if request.prompt == "look" and not request.results:
            return plain_calls(sleeper(seconds))
        return plain_text(f"{request.prompt} is done")

    return answer


def two_workers(live: LiveRun, one_sleeps: str, other_sleeps: str) -> tuple[int, int]:
    """The pids of the workers of two agents, each with a command: where the ways down to their commands part."""
    one = lineage(live.process.pid, f"sleep {one_sleeps}")
    other = lineage(live.process.pid, f"sleep {other_sleeps}")
    return next(pid for pid in one if pid not in other), next(pid for pid in other if pid not in one)


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=lambda value: str(value),
)
def test_a_signal_cancels_the_turn_and_the_last_lines_are_written(
    place: Place, number: signal.Signals, code: int
) -> None:
    with ModelServer(scripted([hang()])) as server, place.start(server) as live:
        server.wait_for_requests(1)
        live.signal(number)
        run = live.finish(15)
    assert run.returncode == code, run
    assert run.types()[-3:] == LAST
    assert run.end["kind"] == "cancelled"
    assert run.one("turn_summary")["usage"]["api_calls"] == 0


def test_a_signal_in_the_middle_of_a_reply_cancels_it_too(place: Place) -> None:
    slow = stream(content("so far"), *hang().steps)
    with ModelServer(scripted([slow])) as server, place.start(server) as live:
        live.wait_for(lambda line: line["type"] == "text_delta")
        live.signal(signal.SIGTERM)
        run = live.finish(15)
    assert run.returncode == 143, run
    assert run.end["kind"] == "cancelled"


def test_a_signal_while_a_retry_waits_ends_the_run_at_once(place: Place) -> None:
    with ModelServer(scripted([status(429, "later", [("retry-after", "100")])])) as server, place.start(server) as live:
        live.wait_for(lambda line: line["type"] == "retry")
        live.signal(signal.SIGINT)
        run = live.finish(10)
    assert run.returncode == 130, run


def test_a_second_sigint_does_not_wait_for_the_grace(place: Place) -> None:
    # A stopped worker takes no cancel: only a kill ends it, and the grace is far longer than the test.
    handler = scripted([tool_calls([sleeper("611.1", "own"), *delegations("task", "look")])])
    with ModelServer(with_children(handler, "611.2")) as server, place.start(server, "--cancel-grace", "30") as live:
        live.wait_for_output("begun", count=2)
        main, _child = two_workers(live, "611.1", "611.2")
        os.kill(main, signal.SIGSTOP)
        live.signal(signal.SIGINT)
        live.wait_for(lambda line: line["type"] == "sub_agent_end")
        live.signal(signal.SIGINT)
        run = live.finish(10)
    assert run.returncode == 130, run
    assert run.types()[-3:] == LAST


def test_an_ignored_sighup_stays_ignored(place: Place) -> None:
    with ModelServer(scripted([hang()])) as server, place.start(server, prefix=("nohup",)) as live:
        server.wait_for_requests(1)
        live.signal(signal.SIGHUP)
        live.signal(signal.SIGINT)
        run = live.finish(15)
    assert run.returncode == 130, run


# -- stdout -----------------------------------------------------------------------------------------------------------


def test_a_stdout_that_is_closed_from_the_start_is_141(place: Place) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with ModelServer(scripted([hang()])) as server, place.start(server, stdout=writer) as live:
        os.close(writer)
        run = live.finish(15, checked=False)
    assert run.returncode == 141, run


def test_a_stdout_that_is_closed_in_the_middle_is_141_and_ends_the_tools(place: Place) -> None:
    reader, writer = os.pipe()
    gate = threading.Event()
    # The second half of the reply comes when nobody reads any more; only the closed stdout can end the command.
    reply = stream(Pause(gate), calls(call_delta('{"command": "echo x; sleep 600"}', id="a", name="Bash")), DONE)
    with ModelServer(scripted([reply])) as server, place.start(server, stdout=writer) as live:
        os.close(writer)
        server.wait_for_requests(1)
        os.close(reader)
        gate.set()
        run = live.finish(15, checked=False)
    assert run.returncode == 141, run


# -- the model --------------------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_75_and_named(place: Place) -> None:
    address = unused_address()
    run = place.run(address, *QUICK)
    assert run.returncode == 75, run
    assert [line["reason"] for line in run.of_type("retry")] == ["network"] * 5
    assert address.removeprefix("http://").removesuffix("/v1") in run.end["message"]
    assert run.one("turn_summary")["usage"]["api_calls"] == 0


def test_a_refused_request_is_1(place: Place) -> None:
    with ModelServer(scripted([status(400, "boom")])) as server:
        run = place.run(server)
    assert run.returncode == 1, run
    assert len(server.chats) == 1
    assert "boom" in run.end["message"]


# -- wrong usage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--no-such-flag"], "--no-such-flag"),
        (["--max-turns", "many"], "--max-turns"),
        (["--max-turns", "0"], "--max-turns"),
        (["--output-format", "xml"], "--output-format"),
        (["--provider", "nobody"], "nobody"),
        (["-s", "no-such-session"], "no-such-session"),
        (["-s", "../../etc"], "../../etc"),
        (["-a", "no-such-agent"], "no-such-agent"),
        (["-a", "broken"], "broken"),
        (["--project-root", "/no/such/folder"], "/no/such/folder"),
    ],
    ids=str,
)
def test_wrong_usage_is_2_with_one_sentence_and_nothing_on_stdout(place: Place, flags: list[str], named: str) -> None:
    place.write("agents/broken.json", '{"name": "broken", "system_prompt": 5}')
    with ModelServer(scripted([])) as server:
        run = place.run(server, *flags)
    assert run.returncode == 2, run
    assert run.stdout == b""
    assert named in run.stderr
    assert server.requests == []


def test_a_broken_agent_file_that_nobody_asks_for_is_a_note(place: Place) -> None:
    place.write("agents/broken.json", "{")
    with ModelServer(scripted([])) as server:
        run = place.run(server)
    assert run.returncode == 0, run
    assert "broken.json" in run.stderr


# -- limits -----------------------------------------------------------------------------------------------------------


def limited_run(place: Place, *flags: str, replies: int = 20) -> tuple[Run, ModelServer]:
    """A run that would make ``replies`` different calls, if it were not for the limit."""
    handler = scripted([tool_call(f"call-{n}", "Bash", {"command": f"echo {n}"}) for n in range(replies)])
    with ModelServer(handler) as server:
        run = place.run(server, *flags)
    assert run.returncode == 3, run
    assert run.end["kind"] == "limit"
    assert run.end["message"]
    return run, server


def test_the_limit_of_model_calls_is_3_and_holds_to_the_call(place: Place) -> None:
    run, server = limited_run(place, "--max-turns", "2")
    assert len(server.chats) == 2
    assert run.end["code"] == "max_turns"


def test_the_limit_of_model_calls_holds_for_the_whole_tree(place: Place) -> None:
    endless = {
        word: [plain_calls((f"{word}-{n}", "Bash", {"command": f"echo {n}"})) for n in range(20)] for word in "abc"
    }
    handler = scripted([tool_calls(delegations("task", *"abc"))], per_prompt(endless))
    with ModelServer(handler) as server:
        run = place.run(server, "--max-turns", "7")
    assert run.returncode == 3, run
    assert len(server.chats) == 7
    assert run.one("turn_summary")["usage"]["api_calls"] == 7
    assert {line["outcome"] for line in run.of_type("sub_agent_end")} == {"limit"}


def test_the_limit_of_tokens_is_3(place: Place) -> None:
    run, server = limited_run(place, "--max-tokens-total", "4000", replies=100)
    assert run.end["code"] == "max_tokens_total"
    usage = run.one("turn_summary")["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] <= 4000
    assert Usage(**usage) == server.billed


def test_the_limit_of_time_is_3_also_for_a_silent_model(place: Place) -> None:
    with ModelServer(scripted([hang()])) as server:
        run = place.run(server, "--timeout", "1.5", timeout=15)
    assert run.returncode == 3, run
    assert run.end["kind"] == "limit"


def test_one_agent_too_many_is_an_error_that_its_parent_hears_of(place: Place) -> None:
    words = ("one", "two", "three")
    replies = {word: [plain_text(f"{word} is done")] for word in words}
    with ModelServer(scripted([tool_calls(delegations("task", *words))], per_prompt(replies))) as server:
        run = place.run(server, "--max-agents", "2")
    assert run.returncode == 0, run
    assert sorted(run.outcomes().values()) == ["error", "success", "success"]
    assert len(run.of_type("sub_agent_start")) == 2
    refused = next(call_id for call_id, outcome in run.outcomes().items() if outcome == "error")
    assert "2" in run.outputs()[refused]
    assert run.outputs()[refused] in server.chats[-1].results


def test_an_agent_too_deep_is_an_error_that_its_parent_hears_of(place: Place) -> None:
    replies = {"down": [plain_calls(*delegations("task", "deeper")), plain_text("no deeper than this")]}
    with ModelServer(scripted([tool_calls(delegations("task", "down"))], per_prompt(replies))) as server:
        run = place.run(server, "--max-agent-depth", "1")
    assert run.returncode == 0, run
    assert run.outcomes() == {"to-down": "success", "to-deeper": "error"}
    assert len(run.of_type("sub_agent_start")) == 1


def test_parents_that_wait_hold_no_place_so_one_place_is_enough(place: Place) -> None:
    replies = {
        "a": [plain_calls(*delegations("task", "a-deep")), plain_text("a is done")],
        "b": [plain_calls(*delegations("task", "b-deep")), plain_text("b is done")],
        "a-deep": [plain_text("a-deep is done")],
        "b-deep": [plain_text("b-deep is done")],
    }
    with ModelServer(scripted([tool_calls(delegations("task", "a", "b"))], per_prompt(replies))) as server:
        run = place.run(server, "--max-parallel-agents", "1")
    assert run.returncode == 0, run
    assert set(run.outcomes().values()) == {"success"}


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_a_session_that_is_in_use_is_4_and_names_the_process(place: Place) -> None:
    with ModelServer(scripted([hang()])) as server, place.start(server) as live:
        server.wait_for_requests(1)
        session_id = live.wait_for(lambda line: line["type"] == "session_ready")[0]["session_id"]
        second = place.run(server, "-s", session_id)
        live.signal(signal.SIGINT)
        live.finish()
    assert second.returncode == 4, second
    assert str(live.process.pid) in second.stderr


# -- the prompt -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["-p", "-"], b"Fix the parser\n"),
        (["Fix the parser"], None),
        ([], b"Fix the parser"),
        (["-p", "Fix the parser"], b""),
        (["--prompt=Fix the parser"], None),
    ],
    ids=["-p -", "positional", "piped", "-p TEXT with empty stdin", "--prompt=TEXT"],
)
def test_the_prompt_may_come_in_several_ways(place: Place, arguments: list[str], stdin: bytes | None) -> None:
    with ModelServer(scripted([])) as server:
        run = place.command(*arguments, *place.model_flags(server), stdin=stdin)
    assert run.returncode == 0, run
    assert server.chats[0].prompt.strip() == "Fix the parser"
    assert run.stdout == b"Done.\n", "text is the default format"


def test_no_prompt_at_all_is_wrong_usage(place: Place) -> None:
    with ModelServer(scripted([])) as server:
        run = place.command(*place.model_flags(server), stdin=b"")
    assert run.returncode == 2, run
    assert run.stdout == b""
    assert server.requests == []


# -- crashes ----------------------------------------------------------------------------------------------------------


def test_each_sub_agent_is_a_process_of_its_own(place: Place) -> None:
    replies = {"red": [plain_calls(sleeper("655.1"))], "green": [plain_calls(sleeper("655.2"))]}
    first = tool_calls(delegations("task", *replies))
    with ModelServer(scripted([first], per_prompt(replies))) as server, place.start(server) as live:
        live.wait_for_output("begun", count=2)
        red, green = two_workers(live, "655.1", "655.2")
        live.signal(signal.SIGINT)
        run = live.finish(15)
    assert len({red, green, live.process.pid}) == 3
    assert run.returncode == 130, run


def test_a_killed_sub_agent_costs_its_parent_a_tool_error_and_its_siblings_nothing(place: Place) -> None:
    first = tool_calls([sleeper("622.1", "own"), *delegations("task", "look", "work")])
    with (
        ModelServer(with_children(scripted([first]), "622.2")) as server,
        place.start(server, "--no-restart") as live,
    ):
        live.wait_for_output("begun", count=2)
        live.wait_for(lambda line: line["type"] == "sub_agent_end")
        _main, child = two_workers(live, "622.1", "622.2")
        os.kill(child, signal.SIGKILL)
        live.wait_for(lambda line: line["type"] == "agent_crashed", timeout=10)
        live.wait_for(lambda line: line["type"] == "tool_call_result" and line["id"] == "to-look")
        end_command(live, "622.1")
        run = live.finish()
    crash = run.one("agent_crashed")
    assert (crash["cause"], crash["signal"], crash["restart"], crash["parent_id"]) == ("signal", 9, None, "to-look")
    ends = {line["parent_id"]: line["outcome"] for line in run.of_type("sub_agent_end")}
    assert ends == {"to-look": "crashed", "to-work": "complete"}
    assert (run.outcomes()["to-look"], run.outcomes()["to-work"]) == ("error", "success")
    assert run.outputs()["to-look"] in server.chats[-1].results
    assert run.returncode == 0, run
    assert Usage(**run.one("turn_summary")["usage"]) == server.billed, "what the dead agent had used is kept"


def end_command(live: LiveRun, seconds: str) -> None:
    """End a sleeping command of the run, so that its call is over."""
    pid = lineage(live.process.pid, f"sleep {seconds}")[-1]
    os.kill(pid, signal.SIGTERM)
    assert ended_within(pid, 5)


def test_a_killed_main_agent_ends_the_turn_as_an_error_and_its_sub_agents_with_it(place: Place) -> None:
    first = tool_calls([sleeper("633.1", "own"), *delegations("task", "look")])
    with (
        ModelServer(with_children(scripted([first]), "633.2")) as server,
        place.start(server, "--no-restart") as live,
    ):
        live.wait_for_output("begun", count=2)
        main, child = two_workers(live, "633.1", "633.2")
        os.kill(main, signal.SIGKILL)
        run = live.finish(15)
    assert ended_within(child, 1)
    assert run.returncode == 1, run
    assert run.end["kind"] == "error"
    assert run.types()[-3:] == LAST
    crash = run.one("agent_crashed")
    assert (crash["cause"], crash["signal"]) == ("signal", 9)
    assert "parent_id" not in crash
    assert Usage(**run.one("turn_summary")["usage"]) == server.billed


def test_a_killed_supervisor_takes_everything_with_it_and_the_session_can_go_on(place: Place) -> None:
    first = tool_calls([sleeper("644.1", "own"), *delegations("task", "look")])
    with ModelServer(with_children(scripted([first]), "644.2")) as server:
        with place.start(server) as live:
            session_id = live.wait_for(lambda line: line["type"] == "session_ready")[0]["session_id"]
            live.wait_for_output("begun", count=2)
            live.signal(signal.SIGKILL)
            live.finish(5, checked=False)
        run = place.run(server, "-s", session_id, prompt="Go on")
    assert run.returncode == 0, run
    assert run.session_id == session_id
    first_call = Usage(prompt_tokens=100, completion_tokens=10, api_calls=1)
    assert Usage(**run.one("run_summary")["usage_by_agent"]["task"]) == Usage(
        prompt_tokens=30, completion_tokens=3, api_calls=1
    )
    assert Usage(**run.one("run_summary")["usage_by_agent"]["main"]) == first_call + Usage(
        prompt_tokens=200, completion_tokens=20, api_calls=1
    )
