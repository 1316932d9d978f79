"""What the tests of faults share: a model, a run with a fault in it, and what holds after every run."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from protocol.usage import Usage
from tests.stubs.corral_run import Place, Run
from tests.stubs.model_server import Handler, ModelServer, ReceivedRequest
from tests.stubs.replies import CallTuple, Reply, delegations, plain_calls, plain_text, text, tool_calls

QUICK = ("--cancel-grace", "0.3", "--retry-delay", "0.01")
SILENT = ("--heartbeat-timeout", "2")
"""Short, but longer than a healthy worker of a busy machine may be silent."""


def command(agent: str, after: str = "") -> CallTuple:
    """A command that leaves a line for each time that it is run, says so, and takes long enough to be died in.

    It waits for the command of the agent ``after``, if one is named: then that agent is at work.
    """
    wait = f"until grep -qs {after} runs; do sleep 0.02; done; " if after else ""
    return (f"run-{agent}", "Bash", {"command": f"echo {agent} >> runs; {wait}echo begun; sleep 0.3"})


def model(*children: str, after: str = "") -> Handler:
    """One command for each agent, then the end; the main agent has the children beside its command, see `command`.

    It answers from the request alone, so that a restarted agent is answered as the one before it.
    """

    def answer(request: ReceivedRequest) -> Reply:
        if not request.streaming:
            return plain_text(f"{request.prompt} is done") if request.results else plain_calls(command(request.prompt))
        own = command("main", after)
        return text("All done.") if request.results else tool_calls([own, *delegations("task", *children)])

    return answer


Scripts: TypeAlias = Mapping[str, Sequence[Sequence[CallTuple]]]
"""The calls of each reply, by agent: ``main``, or a sub-agent's prompt. A reply of text comes behind them."""


def scripted(scripts: Scripts, seen: list[ReceivedRequest] | None = None) -> Handler:
    """A model that knows from the request alone which reply is due, so that restarts make no difference to it."""

    def answer(request: ReceivedRequest) -> Reply:
        if seen is not None:
            seen.append(request)
        agent = "main" if request.streaming else request.prompt
        replies = [message for message in request.messages if message["role"] == "assistant"]
        script = scripts.get(agent, ())
        if len(replies) < len(script):
            calls = script[len(replies)]
            return tool_calls(calls) if request.streaming else plain_calls(*calls)
        return text("All done.") if request.streaming else plain_text(f"{agent} is done")

    return answer


def run_with(place: Place, handler: Handler, *flags: str) -> tuple[Run, Usage]:
    """A run to its end, and what its server billed."""
    with ModelServer(handler) as server:
        run = place.run(server, *QUICK, *flags)
    check_store(place)
    check_bill(run, server.billed)
    return run, server.billed


def faulty_run(place: Place, *flags: str, children: tuple[str, ...] = (), after: str = "") -> tuple[Run, Usage]:
    """A run of `model`."""
    return run_with(place, model(*children, after=after), *flags)


def check_store(place: Place) -> None:
    """The session's store is whole, and its run has ended."""
    files = list((place.home / "state").rglob("session.db"))
    assert len(files) == 1
    connection = sqlite3.connect(files[0])
    assert connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
    connection.close()


def times_run(place: Place) -> dict[str, int]:
    """How often each agent's command was run."""
    file = place.project / "runs"
    words = file.read_text().split() if file.exists() else []
    return {word: words.count(word) for word in words}


def check_bill(run: Run, billed: Usage) -> None:
    """The run knows of each billed call, or names it as uncertain."""
    calls = run.one("turn_summary")["usage"]["api_calls"]
    uncertain = run.one("run_summary")["uncertain_calls"]
    assert calls <= billed.api_calls <= calls + uncertain, (calls, billed, uncertain)
