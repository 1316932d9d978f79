"""The v1 wire as a client meets it, with the numbers that existing v1 clients rely on.

Every run here is also held to the rules of `tests.stubs.stream_rules`, and each usage to what the server billed.
Source: the v1 wire contract; the numbers are those of the protocol's own acceptance test.
"""

from __future__ import annotations

import json
import signal
from importlib import metadata
from typing import Any

from protocol.usage import Usage
from tests.stubs.corral_run import Place, Run
from tests.stubs.model_server import Handler, ModelServer, ReceivedRequest, scripted
from tests.stubs.replies import (
    Reply,
    charge,
    content,
    finish,
    hang,
    plain,
    plain_calls,
    plain_text,
    sse,
    status,
    stream,
    text,
    tool_call,
    tool_calls,
    used,
)

TRUE = {"command": "true"}


def billed(usage: dict[str, Any]) -> Usage:
    """A line's usage as the server counts it."""
    return Usage(**usage)


def simple_run(place: Place, *replies: Reply) -> Run:
    """A run against streamed replies alone; what it reports is what the server billed."""
    with ModelServer(scripted(replies)) as server:
        run = place.run(server)
    assert billed(run.one("turn_summary")["usage"]) == server.billed, run
    return run


# -- framing ----------------------------------------------------------------------------------------------------------


def test_a_run_opens_with_hello_and_the_session_and_closes_with_its_summaries(place: Place) -> None:
    run = simple_run(place)
    assert run.returncode == 0, run
    assert run.types()[:3] == ["hello", "session_ready", "turn_start"]
    assert run.types()[-3:] == ["turn_summary", "turn_end", "run_summary"]
    hello, ready = run.lines[:2]
    assert hello["protocol_version"] == 1
    assert hello["koda_version"] == metadata.version("corral")
    assert hello["capabilities"] == ["one_shot", "self_answer"]
    assert (ready["provider"], ready["model"], ready["trust"]) == ("lm-studio", "stub", "auto")
    assert ready["context_window"] > 0
    assert {"Read", "Bash"} <= set(ready["tools"])


def test_each_line_names_its_session_and_each_line_of_the_turn_its_turn(place: Place) -> None:
    run = simple_run(place)
    hello, ready, *turn, last = run.lines
    assert not {"session_id", "turn_id"} & hello.keys()
    assert ready["session_id"]
    assert {line["session_id"] for line in [ready, *turn, last]} == {ready["session_id"]}
    assert {line["turn_id"] for line in turn} == {run.one("turn_start")["turn_id"]}
    assert "turn_id" not in ready
    assert "turn_id" not in last


def test_nothing_on_the_wire_is_presentation(place: Place) -> None:
    run = simple_run(place)
    shown = {"spinner_start", "spinner_stop", "status_update", "response_start", "footer", "model_usage"}
    assert not shown & set(run.types()), run


# -- tools and sub-agents ---------------------------------------------------------------------------------------------


def test_a_tool_result_says_how_its_call_ended(place: Place) -> None:
    run = simple_run(
        place,
        tool_call("good", "Bash", TRUE),
        tool_call("exit", "Bash", {"command": "false"}),
        tool_call("gone", "Read", {"file_path": "missing.txt"}),
    )
    assert run.outcomes() == {"good": "success", "exit": "error", "gone": "error"}


def reading_child(request: ReceivedRequest) -> Reply:
    """A sub-agent that reads the file its task names, then is done."""
    name = "alpha" if "find alpha" in request.prompt else "beta"
    if request.results:
        return plain_text("found")
    return plain_calls((f"read-{name}", "Read", {"file_path": f"{name}.txt"}))


def test_lines_of_a_sub_agent_name_the_call_that_started_it_and_its_tokens_count(place: Place) -> None:
    place.write("alpha.txt", "a")
    place.write("beta.txt", "b")
    delegate = tool_calls(
        [
            ("agent-1", "InvokeAgent", {"agent_name": "explore", "prompt": "find alpha"}),
            ("agent-2", "InvokeAgent", {"agent_name": "explore", "prompt": "find beta"}),
        ]
    )
    with ModelServer(scripted([delegate], reading_child)) as server:
        run = place.run(server)

    assert sorted(line["parent_id"] for line in run.of_type("sub_agent_start")) == ["agent-1", "agent-2"]
    parents = {line["id"]: line.get("parent_id") for line in run.of_type("tool_call_start")}
    assert parents == {"agent-1": None, "agent-2": None, "read-alpha": "agent-1", "read-beta": "agent-2"}
    assert b"is_sub_agent" not in run.stdout

    usage = run.one("turn_summary")["usage"]
    assert (usage["api_calls"], usage["prompt_tokens"]) == (6, 100 + 200 + 4 * 30)
    assert billed(usage) == server.billed
    summary = run.one("run_summary")
    assert summary["usage"] == usage
    assert summary["usage_by_agent"]["main"]["api_calls"] == 2
    assert summary["usage_by_agent"]["explore"]["api_calls"] == 4


# -- typed state ------------------------------------------------------------------------------------------------------


def test_a_rate_limit_is_a_typed_retry_after_one_second(place: Place) -> None:
    run = simple_run(place, status(429, "slow down"))
    retry = run.one("retry")
    assert {key: retry[key] for key in ("reason", "attempt", "max_attempts", "delay_ms")} == {
        "reason": "rate_limit",
        "attempt": 1,
        "max_attempts": 5,
        "delay_ms": 1000,
    }
    assert not run.of_type("warn")
    assert run.end["kind"] == "complete"


def test_a_server_error_is_retried_after_the_time_that_the_server_names(place: Place) -> None:
    run = simple_run(place, status(500, "boom", [("retry-after", "0")]))
    assert run.returncode == 0, run
    retry = run.one("retry")
    assert (retry["reason"], retry["delay_ms"]) == ("server_error", 0)


def test_a_reply_that_breaks_off_is_asked_for_again(place: Place) -> None:
    with ModelServer(scripted([stream(content("half a re"))])) as server:
        run = place.run(server)
    assert run.returncode == 0, run
    retry = run.one("retry")
    assert (retry["reason"], retry["attempt"], retry["max_attempts"]) == ("stream_failed", 1, 5)
    assert len(server.chats) == 2


def test_an_empty_reply_is_a_typed_retry_and_its_tokens_count(place: Place) -> None:
    empty = sse([finish("stop"), used(50, 0)], charge(50, 0))
    run = simple_run(place, tool_call("a", "Bash", TRUE), empty)
    assert run.one("retry")["reason"] == "empty_response"
    usage = run.one("turn_summary")["usage"]
    assert (usage["api_calls"], usage["prompt_tokens"]) == (3, 100 + 50 + 200)


def test_the_loop_guard_speaks_at_the_fifth_equal_call_and_stops_at_the_tenth(place: Place) -> None:
    run = simple_run(place, *(tool_call("same", "Bash", TRUE) for _ in range(10)))
    guards = run.of_type("loop_guard")
    assert [guard["action"] for guard in guards] == ["feedback", "stop"]
    assert "Bash" in guards[0]["detail"]
    assert b"Loop detected" not in run.stdout
    assert b"Loop guard:" not in run.stdout


def test_an_agent_file_of_the_project_sets_the_cap_of_model_calls(place: Place) -> None:
    place.write("agents/default.json", json.dumps({"name": "default", "system_prompt": "Test.", "max_iterations": 1}))
    place.config = place.project
    run = simple_run(place, tool_call("one", "List", {}))
    assert run.one("loop_cap_request")["cap"] == 1


def filling_handler() -> Handler:
    """A model that reads one big file after another until it was asked for a summary."""
    calls = 0
    summarized = False

    def answer(request: ReceivedRequest) -> Reply:
        nonlocal calls, summarized
        if not request.streaming:
            summarized = True
            return plain({"content": "<summary>Read notes.</summary>"}, 70, 7)
        if summarized:
            return text("Done.")
        calls += 1
        return tool_call(f"read-{calls}", "Read", {"file_path": f"notes_{calls % 40}.txt"})

    return answer


def test_a_compaction_is_typed_and_its_tokens_count(place: Place) -> None:
    for number in range(40):
        place.write(f"notes_{number}.txt", f"note {number}: nothing to see in this file\n" * 400)
    with ModelServer(filling_handler()) as server:
        run = place.run(server, "--max-context-tokens", "12000")

    steps = [line for line in run.of_type("compaction") if line["trigger"] == "threshold"]
    assert steps[0]["status"] == "started", run
    assert steps[0]["context_percent"] >= 80
    done = [step for step in steps if step["status"] == "completed"]
    assert len(done) == 1, run
    assert done[0]["messages_removed"] > 0
    assert done[0]["summary_tokens"] > 0
    assert b"compacting before" not in run.stdout

    reads = len(run.of_type("tool_call_start"))
    usage = run.one("turn_summary")["usage"]
    assert usage["api_calls"] == reads + 2, "the reads, one summary, the reply"
    assert usage["prompt_tokens"] == reads * 100 + 70 + 200
    assert billed(usage) == server.billed


# -- what a turn used -------------------------------------------------------------------------------------------------


def test_the_turn_summary_adds_up_the_turn(place: Place) -> None:
    summary = simple_run(place, tool_call("a", "Bash", TRUE)).one("turn_summary")
    assert summary["usage"] == {
        "prompt_tokens": 300,
        "completion_tokens": 30,
        "cache_read_tokens": 0,
        "cache_creation_tokens": 0,
        "thinking_tokens": 0,
        "api_calls": 2,
    }
    assert type(summary["elapsed_ms"]) is int


def test_a_failed_turn_still_says_what_it_used(place: Place) -> None:
    run = simple_run(place, tool_call("a", "Bash", TRUE), status(400, "boom"))
    assert run.returncode == 1, run
    assert run.end["kind"] == "error"
    usage = run.one("turn_summary")["usage"]
    assert (usage["api_calls"], usage["prompt_tokens"]) == (1, 100)


def test_a_cancelled_turn_still_says_what_it_used(place: Place) -> None:
    with ModelServer(scripted([tool_call("a", "Bash", TRUE), hang()])) as server, place.start(server) as live:
        server.wait_for_requests(2)
        live.signal(signal.SIGINT)
        run = live.finish()
    assert run.end["kind"] == "cancelled", run
    usage = run.one("turn_summary")["usage"]
    assert (usage["api_calls"], usage["prompt_tokens"]) == (1, 100)


def test_a_resumed_turn_counts_itself_and_the_run_the_whole_session(place: Place) -> None:
    with ModelServer(scripted([])) as server:
        first = place.run(server)
        second = place.run(server, "-s", first.session_id)
    assert (first.returncode, second.returncode) == (0, 0), second
    assert second.session_id == first.session_id
    turn = second.one("turn_summary")["usage"]
    assert (turn["api_calls"], turn["prompt_tokens"]) == (1, 200)
    session = second.one("run_summary")["usage"]
    assert (session["api_calls"], session["prompt_tokens"]) == (2, 400)


# -- formats ----------------------------------------------------------------------------------------------------------


def test_the_json_format_is_the_run_summary_alone(place: Place) -> None:
    with ModelServer(scripted([])) as server:
        run = place.run(server, form="json")
    summary = json.loads(run.stdout)
    assert summary["type"] == "run_summary"
    assert summary["success"] is True
    assert summary["response"] == "Done."
    assert type(summary["session_id"]) is str
    assert summary["usage"]["prompt_tokens"] == 200
