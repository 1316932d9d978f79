"""JSON-RPC lines: whatever a peer sends is a message or is answered, and lines are cut in linear time and memory."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorObject,
    LineSplitter,
    Malformed,
    Notification,
    Request,
    RequestId,
    Response,
    decode,
    error_line,
    notification_line,
    read_message,
    request_line,
    result_line,
)


class Params(msgspec.Struct):
    a: str = ""


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=8), st.data())
def test_lines_come_out_as_they_went_in_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    splitter, found = LineSplitter(), list[bytes | None]()
    while whole:
        size = data.draw(st.integers(min_value=1, max_value=len(whole)))
        found += splitter.feed(whole[:size])
        whole = whole[size:]
    assert found == lines
    assert splitter.finish() == b""


def test_a_line_over_the_limit_is_dropped_and_the_next_one_is_whole() -> None:
    splitter = LineSplitter(limit=4)
    assert list(splitter.feed(b"1234\n12345\n")) == [b"1234", None]
    for _ in range(1000):
        assert list(splitter.feed(b"xxxxx")) == []
    assert list(splitter.feed(b"\nab")) == [None]
    assert splitter.finish() == b"ab"
    assert list(splitter.feed(b"12345")) == []
    assert splitter.finish() is None


@pytest.mark.parametrize("number", [0, 1, -5, 2**63 - 1, "1", "", "é", None])
def test_an_id_comes_back_as_it_came_type_and_all(number: RequestId) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": number, "method": "m"}).encode()
    message = read_message(line)
    assert isinstance(message, Request)
    for answer in (result_line(message.id, Params()), error_line(message.id, ErrorObject(code=1, message="x"))):
        assert answer.endswith(b"\n") and answer.count(b"\n") == 1
        answered = json.loads(answer)["id"]
        assert (type(answered), answered) == (type(number), number)


@pytest.mark.parametrize("number", ["true", "1.5", "[]", str(2**63)])
def test_what_is_no_id_is_answered_under_null(number: str) -> None:
    message = read_message(f'{{"jsonrpc":"2.0","id":{number},"method":"m"}}'.encode())
    assert isinstance(message, Malformed)
    assert (message.id, message.error.code) == (None, INVALID_REQUEST)


def test_a_message_is_what_its_fields_say() -> None:
    notified = read_message(notification_line("n", Params(a="x")))
    assert isinstance(notified, Notification) and decode(notified.params, Params).a == "x"
    asked = read_message(request_line(7, "m", Params(a="y")))
    assert isinstance(asked, Request) and (asked.id, asked.method, decode(asked.params, Params).a) == (7, "m", "y")
    told = read_message(result_line(7, Params(a="z")))
    assert isinstance(told, Response) and told.error is None and decode(told.result, Params).a == "z"
    refused = read_message(error_line(7, ErrorObject(code=-1, message="no")))
    assert isinstance(refused, Response) and refused.error == ErrorObject(code=-1, message="no")


def test_an_answer_with_a_null_result_is_an_answer() -> None:
    message = read_message(b'{"jsonrpc":"2.0","id":1,"result":null}')
    assert isinstance(message, Response) and message.error is None


def test_an_error_that_can_not_be_read_is_still_an_error() -> None:
    message = read_message(b'{"jsonrpc":"2.0","id":1,"error":"no"}')
    assert isinstance(message, Response) and message.error is not None and message.error.code == INTERNAL_ERROR


def test_half_surrogates_in_strings_are_replaced() -> None:
    message = read_message(b'{"jsonrpc":"2.0","id":"\\ud83d","method":"m","params":{"a":"x\\ud83d\\ude00 \\udc00"}}')
    assert isinstance(message, Request) and message.id == "\ufffd"
    assert decode(message.params, Params).a == "x\U0001f600 \ufffd"
    assert decode(b'{"a":"\\ud83d"}', Params).a == "\ufffd"


@pytest.mark.parametrize("line", [b"no", b"{", b'{"a":NaN}', b"\xff", b'{"a":' * 100_000])
def test_what_is_no_json_is_a_parse_error(line: bytes) -> None:
    message = read_message(line)
    assert isinstance(message, Malformed)
    assert (message.id, message.error.code) == (None, PARSE_ERROR)


def test_parameters_that_are_no_utf8_can_not_be_read() -> None:
    message = read_message(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\xff"}}')
    assert isinstance(message, Request)
    with pytest.raises(msgspec.DecodeError):
        decode(message.params, Params)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_line_at_all_raises(line: bytes) -> None:
    assert read_message(line) is not None


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.dictionaries(st.text(), x)))
def test_no_json_at_all_raises(value: object) -> None:
    for message in (value, {"jsonrpc": "2.0", "id": value, "method": "m"}, {"jsonrpc": "2.0", "id": 1, "error": value}):
        assert read_message(json.dumps(message).encode()) is not None
