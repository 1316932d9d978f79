from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.batch.core.job_file import MAX_LINE_BYTES, Check, JobLine, parse_job_file
from supervisor.batch.core.spec import shard_of


def lines(*jobs: object) -> bytes:
    return b"".join(json.dumps(job).encode() + b"\n" for job in jobs)


def job(**fields: object) -> JobLine:
    found = parse_job_file(lines({"id": "a", "prompt": "x", **fields}))
    assert found.faults == ()
    return found.jobs[0]


def faults(*jobs: object) -> list[tuple[int, str]]:
    return [(fault.line, fault.field) for fault in parse_job_file(lines(*jobs)).faults]


def test_a_line_with_everything_is_read() -> None:
    found = job(
        cwd="src",
        isolation="copy",
        base="main",
        agent="explore",
        model="m",
        provider="p",
        base_url="http://x",
        trust="plan",
        max_iterations=3,
        max_context_tokens=9000,
        timeout_s=2,
        retries=0,
        max_tokens_total=100,
        priority=-1.5,
        env={"A": "b"},
        check={"cmd": "true", "timeout_s": 3},
        tags=["t"],
        metadata={"k": 1},
        x_mine=[],
    )
    assert found.check == Check(cmd="true", timeout_s=3)
    assert (found.timeout_s, found.retries, found.priority) == (2.0, 0, -1.5)
    assert (found.env, found.tags) == ({"A": "b"}, ("t",))


def test_metadata_is_kept_as_it_stood() -> None:
    found = parse_job_file(b'{"id":"a","prompt":"x","metadata":{"b":1.50, "a":[ ]}}')
    assert bytes(found.jobs[0].metadata) == b'{"b":1.50, "a":[ ]}'


def test_blank_lines_and_a_byte_order_mark_are_skipped_and_lines_keep_their_numbers() -> None:
    content = b'\xef\xbb\xbf\n{"id":"a","prompt":"x"}\r\n\n{"id":"b","prompt":"x"}'
    assert [(each.id, each.line, each.index) for each in parse_job_file(content).jobs] == [("a", 2, 0), ("b", 4, 1)]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x", "prompt_file": "y"}, "prompt"),
        ({}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": "x", "colour": 1}, "colour"),
        ({"prompt": "x", "id": "-a"}, "id"),
        ({"prompt": "x", "id": "a" * 129}, "id"),
        ({"prompt": "x", "id": "a", "custom_id": "b"}, "id"),
        ({"prompt": "x", "isolation": "vm"}, "isolation"),
        ({"prompt": "x", "trust": "full"}, "trust"),
        ({"prompt": "x", "timeout_s": 0}, "timeout_s"),
        ({"prompt": "x", "timeout_s": "5"}, "timeout_s"),
        ({"prompt": "x", "retries": -1}, "retries"),
        ({"prompt": "x", "retries": 1.5}, "retries"),
        ({"prompt": "x", "max_tokens_total": 0}, "max_tokens_total"),
        ({"prompt": "x", "max_cost_usd": 1}, "max_cost_usd"),
        ({"prompt": "x", "env": {"A": 1}}, "env"),
        ({"prompt": "x", "env": {"A=B": "c"}}, "env"),
        ({"prompt": "x", "check": {"cmd": ""}}, "check"),
        ({"prompt": "x", "check": {"cmd": "true", "shell": "zsh"}}, "check"),
        ({"prompt": "x", "tags": "t"}, "tags"),
        ({"prompt": "x", "metadata": [1]}, "metadata"),
        ({"prompt": "x", "cwd": "a\0b"}, "cwd"),
    ],
)
def test_a_field_that_is_wrong_is_named(fields: dict[str, object], field: str) -> None:
    assert faults(fields) == [(1, field)]


def test_all_faults_of_all_lines_are_found() -> None:
    content = lines({"id": "a", "prompt": "x"}, {"id": "a", "prompt": "", "retries": -1}) + b"[]\n{\n"
    assert [(each.line, each.field) for each in parse_job_file(content).faults] == [
        (2, "prompt"),
        (2, "retries"),
        (2, "id"),
        (3, "json"),
        (4, "json"),
    ]


def test_a_line_that_is_too_long_is_a_fault() -> None:
    assert faults({"prompt": "x" * MAX_LINE_BYTES}) == [(1, "json")]


def test_custom_id_is_another_name_for_id() -> None:
    found = parse_job_file(lines({"custom_id": "mine", "prompt": "x"}))
    assert found.jobs[0].id == "mine"


def test_a_made_up_id_depends_on_the_content_alone() -> None:
    one, other = {"prompt": "x", "retries": 2}, {"prompt": "y"}
    first = [each.id for each in parse_job_file(lines(one, other)).jobs]
    second = [each.id for each in parse_job_file(lines(other, {"retries": 2, "prompt": "x", "x_note": 1})).jobs]
    assert sorted(first) == sorted(second)
    assert all(each.startswith("j-") and len(each) == 14 for each in first)


def test_the_same_content_again_gets_a_number() -> None:
    ids = [each.id for each in parse_job_file(lines({"prompt": "x"}, {"prompt": "x"}, {"prompt": "x"})).jobs]
    assert ids == [ids[0], f"{ids[0]}-2", f"{ids[0]}-3"]


@given(st.binary(max_size=200))
def test_no_content_at_all_makes_it_raise(content: bytes) -> None:
    found = parse_job_file(content)
    assert len({each.id for each in found.jobs}) == len(found.jobs) or found.faults


def test_shards_take_each_job_once() -> None:
    parts = [shard_of(f"j{number}", 3) for number in range(300)]
    assert set(parts) == {1, 2, 3}
    assert all(parts.count(part) > 60 for part in (1, 2, 3))
    assert {shard_of(f"j{number}", 1) for number in range(20)} == {1}
