from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.acp.jsonrpc import (
    MAX_LINE_BYTES,
    ErrorResponse,
    LineSplitter,
    LineTooLong,
    Message,
    Notification,
    NotJson,
    Request,
    Response,
    error_line,
    is_same_id,
    notification_line,
    parse,
    request_line,
    result_line,
)


def split_in_pieces(data: bytes, sizes: list[int], limit: int = MAX_LINE_BYTES) -> list[bytes]:
    splitter = LineSplitter(limit)
    lines: list[bytes] = []
    at = 0
    for size in sizes:
        lines += splitter.feed(data[at : at + size])
        at += size
    lines += splitter.feed(data[at:])
    rest = splitter.finish()
    return lines if rest is None else [*lines, rest]


@given(
    st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line), max_size=8),
    st.binary(min_size=1, max_size=9).filter(lambda line: b"\n" not in line) | st.none(),
    st.lists(st.integers(0, 12), max_size=20),
)
def test_lines_come_out_whole_whatever_the_pieces(lines: list[bytes], rest: bytes | None, sizes: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines) + (rest or b"")
    assert split_in_pieces(data, sizes) == lines + ([] if rest is None else [rest])


def test_a_line_may_be_as_long_as_the_limit_and_the_lines_before_one_that_is_longer_come_first() -> None:
    splitter = LineSplitter(4)
    assert list(splitter.feed(b"1234\n")) == [b"1234"]
    before: list[bytes] = []
    with pytest.raises(LineTooLong, match="more than 4 bytes"):
        before.extend(splitter.feed(b"12\n34\n12345"))
    assert before == [b"12", b"34"]


def test_a_long_line_costs_time_linear_in_its_length() -> None:
    splitter = LineSplitter()
    piece = b"x" * 100
    started = time.process_time()
    for _ in range(120_000):
        assert list(splitter.feed(piece)) == []
    assert list(splitter.feed(b"\n")) == [b"x" * 12_000_000]
    # Joining every piece to all before it would move 720 gigabytes.
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"jsonrpc":"2.0","id":0,"method":"m","params":{"a":1}}', Request(0, "m", {"a": 1})),
        ('{"jsonrpc":"2.0","id":null,"method":"m"}', Request(None, "m", {})),
        ('{"jsonrpc":"2.0","id":"0","method":"m","params":[1]}', Request("0", "m", {})),
        ('\ufeff {"jsonrpc":"2.0","method":"m","params":null} \r', Notification("m", {})),
        ('{"jsonrpc":"2.0","id":1,"result":null}', Response(1, None)),
        ('{"jsonrpc":"2.0","id":1,"result":{},"error":null}', Response(1, {})),
        ('{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":-1,"message":"no"}}', ErrorResponse(1, -1, "no")),
        ('{"jsonrpc":"2.0","id":null,"error":{"code":"-1"}}', ErrorResponse(None, 0, "no reason was given")),
        ('{"jsonrpc":"2.0","id":1,"error":"no"}', ErrorResponse(1, 0, "no")),
        (
            '{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no","data":{"details":"not today"}}}',
            ErrorResponse(1, -1, "no: not today"),
        ),
        ('{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no","data":"why"}}', ErrorResponse(1, -1, "no: why")),
        ('{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no","data":["x"]}}', ErrorResponse(1, -1, "no")),
        ('{"jsonrpc":"2.0","id":1,"error":[]}', ErrorResponse(1, 0, "no reason was given")),
    ],
)
def test_a_message_is_what_its_members_make_it(text: str, message: Message) -> None:
    assert parse(text.encode()) == message


@pytest.mark.parametrize(
    "text",
    [
        "", "  ", "starting", "[]", '"{}"', "17", "null",
        "{}", '{"jsonrpc":2.0,"method":"m"}', '{"method":"m"}', '{"jsonrpc":"2.0"}',
        '{"jsonrpc":"2.0","id":1}', '{"jsonrpc":"2.0","error":{}}', '{"jsonrpc":"2.0","id":1,"error":null}',
        '{"jsonrpc":"2.0","id":1.5,"method":"m"}', '{"jsonrpc":"2.0","id":true,"result":1}',
        '{"jsonrpc":"2.0","id":[],"result":1}', '{"jsonrpc":"2.0","id":1,"method":7,"result":1}',
    ],
)  # fmt: skip
def test_what_is_no_json_rpc_is_noise(text: str) -> None:
    assert parse(text.encode()) is None


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"{a}",
        b"{}{}",
        b'{"a":Infinity}',
        b'{"a":"\xc3"}',
        b'{"a":' + b"[" * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_what_begins_like_an_object_and_is_none_is_an_error(line: bytes) -> None:
    with pytest.raises(NotJson):
        parse(line)


@given(st.one_of(st.none(), st.integers(), st.text()), st.one_of(st.none(), st.booleans(), st.integers(), st.text()))
def test_ids_are_the_same_only_with_their_type(one: object, other: object) -> None:
    assert is_same_id(one, one)
    assert is_same_id(one, other) == (json.dumps(one) == json.dumps(other))


@given(st.one_of(st.none(), st.integers(-(2**70), 2**70), st.text(st.characters(codec=None))))
def test_an_answer_carries_the_id_back_as_it_came(asked: str | int | None) -> None:
    message = parse(json.dumps({"jsonrpc": "2.0", "id": asked, "method": "m"}).encode())
    assert isinstance(message, Request)
    for line in (result_line(message.id, {}), error_line(message.id, -32601, "no")):
        assert line.count(b"\n") == 1
        back = json.loads(line)["id"]
        assert (back, type(back)) == (asked, type(asked))


def test_what_we_send_is_read_as_what_it_is() -> None:
    assert parse(request_line(1, "m", {"a": "\n\u2028"})) == Request(1, "m", {"a": "\n\u2028"})
    assert parse(notification_line("m", {})) == Notification("m", {})
    assert parse(result_line("x", {"a": 1})) == Response("x", {"a": 1})
    assert parse(error_line(0, -1, "no")) == ErrorResponse(0, -1, "no")
