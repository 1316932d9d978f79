from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.batch.core.halting import HaltRule
from supervisor.batch.flags import BATCH_FLAGS, BatchOptions, batch_parser, parse_batch
from supervisor.errors import WrongUsage
from supervisor.flags import ONE_SHOT_FLAGS


def options(*words: str) -> BatchOptions:
    return parse_batch(["jobs.jsonl", *words], {}).options


def test_the_defaults_are_those_of_the_help() -> None:
    found = options()
    assert found.folder == Path("jobs.jsonl.corral").absolute()
    assert (found.retries, found.breaker, found.patience, found.drain, found.heartbeat) == (1, 5, 1800, 10, 30)
    assert (found.isolation, found.base, found.keep, found.on_changed, found.on_budget) == (
        "auto",
        "HEAD",
        "failed",
        "refuse",
        "soon",
    )
    assert found.retry_on == {"crashed", "transient", "setup"}
    assert (found.halt, found.shard, found.batch_timeout, found.copy_max) == (None, (1, 1), None, 2 << 30)
    assert found.least_slots == 1


@pytest.mark.parametrize(("text", "slots"), [("3", (3, 3)), ("2-8", (2, 8))])
def test_slots_are_a_number_or_a_range(text: str, slots: tuple[int, int]) -> None:
    found = options("-j", text)
    assert (found.least_slots, found.slots) == slots


@pytest.mark.parametrize(
    ("backend", "address"), [("local", None), ("ray", ""), ("ray:auto", "auto"), ("ray:10.0.0.1:6379", "10.0.0.1:6379")]
)
def test_a_backend_is_this_process_or_a_ray_of_some_address(backend: str, address: str | None) -> None:
    assert options("--backend", backend).ray == address


def test_flags_of_a_run_are_taken_as_defaults_for_every_job_but_those_with_another_sense() -> None:
    words = ["--model", "m", "--timeout", "5", "--max-tokens-total", "90", "--mem-free", "1G", "--max-turns", "3"]
    found = parse_batch(["jobs.jsonl", *words], {})
    assert found.one_shot == {"model": "m", "timeout": "5", "mem-free": "1G", "max-turns": "3"}
    assert found.options.max_tokens_total == 90


def test_values_that_need_reading_are_read() -> None:
    found = options("--halt", "soon,fail=3", "--rerun", "failed, j7", "--retry-on", "timeout,check", "--shard", "2/3")
    assert found.halt == HaltRule(when="soon", why="fail", number=3, is_percent=False)
    assert (found.rerun, found.shard) == (("failed", "j7"), (2, 3))
    assert found.retry_on == {"timeout", "check"}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["a.jsonl", "b.jsonl"],
        ["-"],
        ["a.jsonl", "-j", "8-2"],
        ["a.jsonl", "--breaker", "-1"],
        ["a.jsonl", "--keep", "some"],
        ["a.jsonl", "--backend", "cloud"],
        ["a.jsonl", "--backend", "ray:"],
        ["a.jsonl", "--backend", "ray:ray://host:10001"],
        ["a.jsonl", "--max-cost-usd", "3"],
        ["a.jsonl", "--prompt-file", "x"],
        ["a.jsonl", "--retrys", "2"],
    ],
)
def test_what_is_wrong_is_told(words: list[str]) -> None:
    with pytest.raises(WrongUsage):
        parse_batch(words, {})


def test_a_flag_that_is_almost_right_is_suggested() -> None:
    with pytest.raises(WrongUsage, match="did you mean --retries"):
        options("--retrys", "2")


def test_the_help_has_every_flag_once() -> None:
    text = batch_parser().format_help()
    own = {flag.name for flags in BATCH_FLAGS.values() for flag in flags}
    every = {flag.name for flags in ONE_SHOT_FLAGS.values() for flag in flags} - {"prompt", "prompt-file", "session"}
    words = text.replace(",", " ").split()
    for name in own | every:
        assert f"--{name}" in words, name
