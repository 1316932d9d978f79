"""The notes on stderr, as a person reads them."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import get_args

import pytest

from protocol.records import (
    AgentCrashed,
    Compaction,
    CrashCause,
    Error,
    Info,
    LoopCapRequest,
    LoopGuard,
    Record,
    Retry,
    RetryReason,
    TextDelta,
    TurnEnd,
    TurnEndReason,
    TurnKind,
    Warn,
)
from supervisor.sinks.notes import NotesSink, note_of, write_note
from supervisor.sinks.sink import Event


def retry(reason: RetryReason = "network", delay_ms: int = 2000) -> Retry:
    return Retry(reason=reason, attempt=2, max_attempts=5, delay_ms=delay_ms)


def crash(
    cause: CrashCause = "signal",
    *,
    signal: int | None = None,
    code: int | None = None,
    detail: str = "",
    restart: int | None = None,
) -> AgentCrashed:
    return AgentCrashed(
        agent_name="task", agent_id="t", cause=cause, restart=restart, signal=signal, exit_code=code, detail=detail
    )


def end(kind: TurnKind, message: str = "") -> TurnEnd:
    return TurnEnd(reason=TurnEndReason(kind=kind, message=message))


NOTES: list[tuple[Record, str | None]] = [
    (retry(), "the model's server can't be reached; trying again in 2 s (2 of 5)"),
    (retry("rate_limit", 1500), "the model's server asks to be called less often; trying again in 1.5 s (2 of 5)"),
    (retry("server_error", 0), "the model's server failed; trying again at once (2 of 5)"),
    (crash(signal=9), "the agent's process was killed (SIGKILL)"),
    (crash(signal=40), "the agent's process was killed (signal 40)"),
    (crash(signal=9, restart=1), "the agent's process was killed (SIGKILL); a new one goes on with the work"),
    (
        crash("exited_early", code=0, detail="bye"),
        "the agent's process exited before its work was done (exit code 0): bye",
    ),
    (
        crash("spawn_failed", detail="its process could not be started: no memory"),
        "the agent failed: its process could not be started: no memory",
    ),
    (
        crash("channel_closed", signal=9, detail="it closed its channel and lived on", restart=2),
        "the agent's process failed (SIGKILL): it closed its channel and lived on; a new one goes on with the work",
    ),
    (
        Compaction(trigger="threshold", status="started", context_percent=84),
        "the context is 84 % full: summing up the history",
    ),
    (
        Compaction(trigger="overflow", status="started", context_percent=60),
        "the prompt is too long for the model: summing up the history",
    ),
    (
        Compaction(trigger="threshold", status="failed", detail="HTTP 400"),
        "the history could not be summed up: HTTP 400",
    ),
    (Compaction(trigger="threshold", status="completed", messages_removed=3, summary_tokens=9), None),
    (LoopGuard(action="feedback", detail="Bash was called 5 times"), "Bash was called 5 times; the model was told"),
    (LoopGuard(action="stop", detail="Bash was called 10 times"), "Bash was called 10 times; its turn ends here"),
    (LoopCapRequest(cap=200, recent_tools=()), "the cap of 200 model calls was reached"),
    (end("complete"), None),
    (end("error", "HTTP 401"), "failed: HTTP 401"),
    (end("cancelled", "ended by SIGINT"), "cancelled: ended by SIGINT"),
    (end("limit", "the time limit of 3 s was reached"), "stopped: the time limit of 3 s was reached"),
    (end("error"), "failed"),
    (Info(message="a note"), "a note"),
    (Warn(message="the reply was cut off"), "warning: the reply was cut off"),
    (Error(message="boom"), "error: boom"),
    (TextDelta(text="Done."), None),
]


@pytest.mark.parametrize(("record", "note"), NOTES)
def test_what_a_person_is_told(record: Record, note: str | None) -> None:
    assert note_of(record) == note


def test_every_reason_for_a_retry_and_every_cause_of_a_crash_has_words() -> None:
    retries = {note_of(retry(reason)) for reason in get_args(RetryReason)}
    crashes = {note_of(crash(cause)) for cause in get_args(CrashCause)}
    assert (len(retries), len(crashes)) == (len(get_args(RetryReason)), len(get_args(CrashCause)))


@pytest.mark.parametrize(("name", "said"), [("", ""), ("main", ""), ("explore", "explore: ")])
async def test_a_note_names_the_sub_agent_it_is_of(capsys: pytest.CaptureFixture[str], name: str, said: str) -> None:
    sink = NotesSink()
    sink.take(Event(record=retry(), agent_name=name, line=b""))
    sink.take(Event(record=TextDelta(text="x"), agent_name=name, line=b""))
    await sink.room()
    await sink.finish()
    assert capsys.readouterr().err == f"corral: {said}{note_of(retry())}\n"


def test_a_note_is_one_line_that_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    write_note("HTTP 400: first\nsecond\t\x1b[2J\x1b]0;owned\x07\u202e third")
    assert capsys.readouterr().err == "corral: HTTP 400: first second third\n"


def test_a_closed_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    stderr = os.fdopen(write_end, "w")
    monkeypatch.setattr(sys, "stderr", stderr)
    write_note("nobody reads this")
    with contextlib.suppress(BrokenPipeError):
        stderr.close()
    write_note("nor this")
