"""What the cases of `test_wire_v1` hold for, tried where they do not look: in nested, failing and cancelled agents.

Every run is held to the rules of `tests.stubs.stream_rules` too: order, tags, one result per call, sums of usage.
"""

from __future__ import annotations

import json
import signal
import threading

import pytest

from protocol.usage import Usage
from tests.stubs.corral_run import Place, Run
from tests.stubs.model_server import Handler, ModelServer, ReceivedRequest, per_prompt, scripted
from tests.stubs.replies import (
    Reply,
    call_delta,
    calls,
    charge,
    content,
    delegations,
    delta,
    event,
    finish,
    hang,
    json_reply,
    plain,
    plain_calls,
    plain_text,
    sse,
    status,
    stream,
    text,
    tool_call,
    tool_calls,
)

TRUE = {"command": "true"}
QUICK = ("--retry-delay", "0.01")


def delegating_run(place: Place, replies: dict[str, list[Reply]], *flags: str, agent: str = "task") -> Run:
    """A run that hands each prompt of ``replies`` to a sub-agent at once; its usage must be what the server billed."""
    with ModelServer(scripted([tool_calls(delegations(agent, *replies))], per_prompt(replies))) as server:
        run = place.run(server, *flags)
    assert Usage(**run.one("turn_summary")["usage"]) == server.billed, run
    return run


# -- framing ----------------------------------------------------------------------------------------------------------


def test_a_run_that_fails_at_its_first_call_still_opens_and_closes_in_order(place: Place) -> None:
    with ModelServer(scripted([status(401, '{"error": {"message": "who are you?"}}')])) as server:
        run = place.run(server)
    assert run.returncode == 1, run
    assert "who are you?" in run.one("run_summary")["error"]


def test_a_resumed_session_numbers_its_lines_from_one_in_a_new_epoch(place: Place) -> None:
    with ModelServer(scripted([])) as server:
        first = place.run(server)
        second = place.run(server, "-s", first.session_id)
    epochs = [run.one("session_ready")["epoch"] for run in (first, second)]
    assert epochs[1] > epochs[0]
    turns = [run.one("turn_start")["turn_id"] for run in (first, second)]
    assert turns[0] != turns[1]


def test_retries_guards_and_sub_agents_bring_no_presentation_with_them(place: Place) -> None:
    same = tool_calls([(f"same-{number}", "Bash", TRUE) for number in range(5)])
    replies = [status(503), same, tool_calls(delegations("explore", "look"))]
    with ModelServer(scripted(replies, per_prompt({"look": [status(429), plain_text("seen")]}))) as server:
        run = place.run(server, *QUICK)
    assert {"retry", "loop_guard", "sub_agent_end"} <= set(run.types()), run
    for words in (b"Loop detected", b"Loop guard:", b"is_sub_agent", b"spinner"):
        assert words not in run.stdout


# -- tools and sub-agents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Bash", {"command": "kill -9 $$"}),
        ("Bash", {"command": "echo before; sleep 600", "timeout": 1}),
        ("Bash", {}),
        ("Read", {"file_path": "."}),
        ("Edit", {"file_path": "gone.txt", "replacements": [{"old_str": "a", "new_str": "b"}]}),
        ("NoSuchTool", {"x": 1}),
        ("InvokeAgent", {"agent_name": "nobody", "prompt": "hello"}),
    ],
)
def test_a_call_that_can_not_work_is_an_error_that_the_model_hears_of(
    place: Place, name: str, arguments: dict[str, object]
) -> None:
    with ModelServer(scripted([tool_call("bad", name, arguments)])) as server:
        run = place.run(server)
    assert run.outcomes() == {"bad": "error"}, run
    assert server.chats[1].results == [run.outputs()["bad"]]
    assert run.returncode == 0


def test_three_sub_agents_that_delegate_again_keep_their_lines_apart(place: Place) -> None:
    words = ("red", "green", "blue")
    replies: dict[str, list[Reply]] = {}
    for word in words:
        replies[word] = [plain_calls(*delegations("explore", f"{word}-deep")), plain_text(f"{word} is done")]
        replies[f"{word}-deep"] = [
            plain_calls((f"read-{word}", "Read", {"file_path": f"{word}.txt"})),
            plain_text(f"{word} was read"),
        ]
        place.write(f"{word}.txt", word)
    first = tool_calls(delegations("task", *words))
    with ModelServer(scripted([first], per_prompt(replies))) as server:
        run = place.run(server)

    parents = {line["id"]: line.get("parent_id") for line in run.of_type("tool_call_start")}
    for word in words:
        assert parents[f"to-{word}"] is None
        assert parents[f"to-{word}-deep"] == f"to-{word}"
        assert parents[f"read-{word}"] == f"to-{word}-deep"
        assert word in run.outputs()[f"read-{word}"]
    assert server.chats[-1].results == [f"{word} is done" for word in words], "in call order"
    by_name = run.one("run_summary")["usage_by_agent"]
    assert {name: usage["api_calls"] for name, usage in by_name.items()} == {"main": 2, "task": 6, "explore": 6}
    assert Usage(**run.one("turn_summary")["usage"]) == server.billed


def test_sub_agents_of_one_reply_run_at_once_and_see_nothing_of_each_other(place: Place) -> None:
    words = ("red", "green")
    both_asked = threading.Event()
    asked: set[str] = set()

    def meeting(request: ReceivedRequest) -> Reply:
        asked.add(request.prompt)
        if len(asked) == 2:
            both_asked.set()
        return hang_then(both_asked, plain_text(f"{request.prompt} is done"))

    secret = "the parent's own words"
    with ModelServer(scripted([tool_calls(delegations("task", *words))], meeting)) as server:
        run = place.run(server, prompt=secret)
    assert run.returncode == 0, run
    children = [request for request in server.chats if not request.streaming]
    for request in children:
        other = next(word for word in words if word != request.prompt)
        assert other not in json.dumps(request.messages)
        assert secret not in json.dumps(request.messages)


def hang_then(gate: threading.Event, reply: Reply) -> Reply:
    """``reply``, sent as soon as ``gate`` is set."""
    return Reply(steps=(*hang(gate).steps[:1], *reply.steps), usage=reply.usage, keep_alive=reply.keep_alive)


# -- typed state ------------------------------------------------------------------------------------------------------


def test_a_503_waits_the_second_that_its_header_asks_for(place: Place) -> None:
    with ModelServer(scripted([status(503, "busy", [("Retry-After", "1")])])) as server:
        run = place.run(server, *QUICK)
        arrivals = [request.arrived for request in server.chats]
    retry = run.one("retry")
    assert (retry["reason"], retry["delay_ms"]) == ("server_error", 1000)
    assert arrivals[1] - arrivals[0] >= 1.0


def test_a_rate_limited_sub_agent_retries_under_its_parents_call(place: Place) -> None:
    run = delegating_run(place, {"look": [status(429, "slow down"), plain_text("seen")]}, *QUICK)
    retry = run.one("retry")
    assert (retry["reason"], retry["attempt"], retry["parent_id"]) == ("rate_limit", 1, "to-look")
    assert run.outcomes() == {"to-look": "success"}
    assert not run.of_type("warn")


def test_delays_double_and_a_good_reply_starts_the_count_anew(place: Place) -> None:
    replies = [status(500), status(502), status(504), tool_call("a", "Bash", TRUE), status(500)]
    with ModelServer(scripted(replies)) as server:
        run = place.run(server, *QUICK)
    steps = [(line["attempt"], line["delay_ms"]) for line in run.of_type("retry")]
    assert steps == [(1, 10), (2, 20), (3, 40), (1, 10)], run


def test_a_tool_call_that_breaks_off_never_runs(place: Place) -> None:
    start = calls(call_delta('{"command": "touch ran.txt"', id="cut", name="Bash"))
    with ModelServer(scripted([stream(content("Now"), start)])) as server:
        run = place.run(server, *QUICK)
    assert run.one("retry")["reason"] == "stream_failed"
    assert run.one("run_summary")["response"] == "Done."
    assert not run.of_type("tool_call_start")
    assert not (place.project / "ran.txt").exists()
    assert server.chats[1].messages == server.chats[0].messages, "nothing of the broken reply is sent back"


def test_an_empty_reply_of_a_sub_agent_is_retried_and_counts(place: Place) -> None:
    run = delegating_run(place, {"look": [plain({"content": ""}), plain_text("seen")]}, *QUICK)
    retry = run.one("retry")
    assert (retry["reason"], retry["parent_id"]) == ("empty_response", "to-look")
    assert run.one("run_summary")["usage_by_agent"]["task"]["api_calls"] == 2
    assert run.one("sub_agent_end")["usage"]["prompt_tokens"] == 60


def test_calls_that_alternate_never_meet_the_loop_guard(place: Place) -> None:
    replies = [tool_call(f"call-{n}", "Bash", {"command": ("true", ":")[n % 2]}) for n in range(12)]
    with ModelServer(scripted(replies)) as server:
        run = place.run(server)
    assert not run.of_type("loop_guard")
    assert run.returncode == 0, run


def test_five_equal_calls_of_one_reply_meet_the_loop_guard_whatever_the_order_of_their_keys(place: Place) -> None:
    arguments = [{"command": "true", "timeout": 5}, {"timeout": 5, "command": "true"}]
    same = [(f"call-{n}", "Bash", arguments[n % 2]) for n in range(5)]
    with ModelServer(scripted([tool_calls(same)])) as server:
        run = place.run(server)
    guard = run.one("loop_guard")
    assert guard["action"] == "feedback"
    assert "Bash" in guard["detail"]
    assert run.returncode == 0, run


def test_a_run_that_the_loop_guard_stops_says_so_by_code(place: Place) -> None:
    with ModelServer(scripted([tool_call("same", "Bash", TRUE) for _ in range(12)])) as server:
        run = place.run(server)
    assert run.returncode == 1, run
    assert (run.end["kind"], run.end["code"]) == ("error", "loop_guard")
    assert len(server.chats) == 10


def test_a_sub_agent_at_its_cap_gets_one_last_turn_without_tools(place: Place) -> None:
    place.write_agent("digger", max_iterations=2)
    replies = [plain_calls((f"dig-{n}", "List", {"file_path": "."})) for n in range(2)]
    with ModelServer(
        scripted(
            [tool_calls(delegations("digger", "dig"))],
            per_prompt({"dig": [*replies, plain_text("this is what I have")]}),
        )
    ) as server:
        run = place.run(server)
    request = run.one("loop_cap_request")
    assert (request["cap"], request["parent_id"]) == (2, "to-dig")
    last = [chat for chat in server.chats if not chat.streaming][-1]
    assert last.tool_names == []
    assert "this is what I have" in run.outputs()["to-dig"]
    assert run.returncode == 0, run


# -- compaction -------------------------------------------------------------------------------------------------------


def reading_until_compaction(*summaries: Reply) -> tuple[Handler, list[ReceivedRequest]]:
    """A model that fills its context until it was asked for a summary; the requests after that are in the list."""
    later: list[ReceivedRequest] = []
    waiting = list(summaries)
    asked = False
    reads = 0

    def answer(request: ReceivedRequest) -> Reply:
        nonlocal asked, reads
        if not request.streaming:
            asked = True
            return waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if asked:
            later.append(request)
            return text("Done.")
        reads += 1
        return tool_call(f"read-{reads}", "Read", {"file_path": f"notes_{reads}.txt"})

    return answer, later


def write_notes(place: Place) -> None:
    for number in range(1, 21):
        place.write(f"notes_{number}.txt", f"marker-{number} and nothing else to see here\n" * 200)


@pytest.mark.parametrize(
    "summary",
    [plain_text(""), plain_calls(("sneaky", "Bash", {"command": "touch ran.txt"})), status(400, "no summary today")],
    ids=["empty", "a tool call", "refused"],
)
def test_a_summary_that_is_none_replaces_nothing(place: Place, summary: Reply) -> None:
    write_notes(place)
    handler, later = reading_until_compaction(summary)
    with ModelServer(handler) as server:
        run = place.run(server, "--max-context-tokens", "12000", *QUICK)
    statuses = [line["status"] for line in run.of_type("compaction")]
    assert statuses[:2] == ["started", "failed"], run
    assert "completed" not in statuses
    assert "marker-1 " in json.dumps(later[0].messages), "the history is still there"
    assert not (place.project / "ran.txt").exists()
    assert not [line for line in run.of_type("tool_call_start") if line["id"] == "sneaky"]


def test_after_a_compaction_the_model_sees_the_summary_and_the_prompt_goes_on(place: Place) -> None:
    write_notes(place)
    handler, later = reading_until_compaction(plain_text("<summary>the gist of it</summary>"))
    with ModelServer(handler) as server:
        run = place.run(server, "--max-context-tokens", "12000")
    seen = json.dumps(later[0].messages)
    assert "the gist of it" in seen
    assert "marker-1 " not in seen
    assert run.returncode == 0, run


def test_too_few_messages_are_skipped_without_a_call(place: Place) -> None:
    with ModelServer(scripted([])) as server:
        run = place.run(server, "--max-context-tokens", "6000", prompt="a long story of many words " * 1000)
    assert [line["status"] for line in run.of_type("compaction")] == ["started", "skipped"], run
    assert len(server.chats) == 1


# -- what a turn used -------------------------------------------------------------------------------------------------


def test_cached_and_reasoning_tokens_are_told_apart_in_streamed_and_plain_replies(place: Place) -> None:
    spent = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 40},
    }
    message = {"role": "assistant", "content": "seen"}
    child = json_reply({"choices": [{"message": message, "finish_reason": "stop"}], "usage": spent})
    last = sse([content("All seen."), finish("stop"), event({"choices": [], "usage": spent})])
    replies = [tool_calls(delegations("explore", "look")), last]
    with ModelServer(scripted(replies, per_prompt({"look": [child]}))) as server:
        run = place.run(server)
    assert run.one("turn_summary")["usage"] == {
        "prompt_tokens": 300,
        "completion_tokens": 110,
        "cache_read_tokens": 120,
        "cache_creation_tokens": 0,
        "thinking_tokens": 80,
        "api_calls": 3,
    }


def test_a_sub_agent_that_fails_costs_its_parent_a_tool_error_and_keeps_what_it_used(place: Place) -> None:
    replies = {
        "fail": [plain_calls(("a", "Bash", TRUE)), status(400, "no more of this")],
        "work": [plain_text("worked")],
    }
    run = delegating_run(place, replies)
    assert run.returncode == 0, run
    assert run.outcomes() == {"a": "success", "to-fail": "error", "to-work": "success"}
    assert "no more of this" in run.outputs()["to-fail"]
    ends = {line["parent_id"]: line for line in run.of_type("sub_agent_end")}
    assert (ends["to-fail"]["outcome"], ends["to-fail"]["usage"]["api_calls"]) == ("error", 1)
    assert ends["to-work"]["outcome"] == "complete"


def test_reasoning_is_its_own_line_and_no_part_of_the_reply(place: Place) -> None:
    reply = sse([delta({"reasoning_content": "let me think"}), content("It is so."), finish("stop")], charge(0, 0))
    with ModelServer(scripted([reply])) as server:
        run = place.run(server)
    assert "".join(line["text"] for line in run.of_type("thinking_delta")) == "let me think"
    assert run.one("run_summary")["response"] == "It is so."


# -- cancelling -------------------------------------------------------------------------------------------------------


def test_sigterm_during_a_model_call_counts_only_what_was_finished(place: Place) -> None:
    with ModelServer(scripted([tool_call("a", "Bash", TRUE), hang()])) as server, place.start(server) as live:
        server.wait_for_requests(2)
        live.signal(signal.SIGTERM)
        run = live.finish()
    assert run.returncode == 143, run
    assert run.end["kind"] == "cancelled"
    assert Usage(**run.one("turn_summary")["usage"]) == server.billed


def test_a_cancelled_tool_is_ended_and_its_call_closed(place: Place) -> None:
    long = tool_calls([("long", "Bash", {"command": "echo begun; sleep 600"}), ("quick", "Bash", TRUE)])
    with ModelServer(scripted([long])) as server, place.start(server) as live:
        live.wait_for_output("begun")
        live.wait_for(lambda line: line["type"] == "tool_call_result")
        live.signal(signal.SIGINT)
        run = live.finish()
    assert run.returncode == 130, run
    assert run.outcomes() == {"long": "cancelled", "quick": "success"}
    assert len(server.chats) == 1


def test_a_cancelled_run_ends_each_sub_agent_before_the_call_that_started_it(place: Place) -> None:
    words = ("red", "green", "blue")
    child = plain_calls(("sleep", "Bash", {"command": "echo begun; sleep 600"}))
    replies = per_prompt({word: [child] for word in words})
    first = tool_calls(delegations("task", *words))
    with ModelServer(scripted([first], replies)) as server, place.start(server) as live:
        live.wait_for_output("begun", count=3)
        live.signal(signal.SIGINT)
        run = live.finish()
    assert run.returncode == 130, run
    assert [line["outcome"] for line in run.of_type("sub_agent_end")] == ["cancelled"] * 3
    assert [line["outcome"] for line in run.of_type("tool_call_result")] == ["cancelled"] * 6
    assert Usage(**run.one("turn_summary")["usage"]) == server.billed


# -- sessions and formats ---------------------------------------------------------------------------------------------


def test_a_session_goes_on_after_a_cancelled_turn_without_unanswered_calls(place: Place) -> None:
    long = tool_calls(
        [("long", "Bash", {"command": "echo begun; sleep 600"}), ("other", "Bash", {"command": "sleep 600"})]
    )
    # The stub refuses a transcript with an unanswered call, as strict servers do.
    with ModelServer(scripted([long])) as server:
        with place.start(server) as live:
            live.wait_for_output("begun")
            live.signal(signal.SIGINT)
            cancelled = live.finish()
        run = place.run(server, "-s", cancelled.session_id, prompt="Go on")
    assert run.returncode == 0, run
    roles = [message["role"] for message in server.chats[-1].messages if message["role"] != "system"]
    assert roles[:4] == ["user", "assistant", "tool", "tool"]
    assert roles[-1] == "user"
    assert run.one("turn_summary")["usage"]["api_calls"] == 1
    assert run.one("run_summary")["usage"]["api_calls"] == 2


def test_the_json_format_of_a_failed_run_is_one_object_that_says_why(place: Place) -> None:
    with ModelServer(scripted([tool_call("a", "Bash", TRUE), status(400, "boom")])) as server:
        run = place.run(server, form="json")
    assert run.returncode == 1, run
    summary = json.loads(run.stdout)
    assert run.stdout.count(b"\n") == 1
    assert summary["success"] is False
    assert summary["exit_code"] == 1
    assert "boom" in summary["error"]
    assert summary["usage"]["prompt_tokens"] == 100


def test_the_text_format_prints_the_last_reply_alone(place: Place) -> None:
    talking = sse(
        [
            content("Let me look."),
            calls(call_delta('{"command": "echo noise"}', id="a", name="Bash")),
            finish("tool_calls"),
        ]
    )
    broken = stream(content("half a re"))
    with ModelServer(scripted([talking, broken, text("It is mended.")])) as server:
        run = place.run(server, *QUICK, form="text")
    assert run.returncode == 0, run
    assert run.stdout == b"It is mended.\n"


def test_the_text_format_of_a_failed_run_has_nothing_on_stdout(place: Place) -> None:
    with ModelServer(scripted([status(400, "boom")])) as server:
        run = place.run(server, form="text")
    assert run.returncode == 1, run
    assert run.stdout == b""
    assert "boom" in run.stderr
