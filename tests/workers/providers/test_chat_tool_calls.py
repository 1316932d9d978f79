from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.content import ToolCall
from tests.workers.providers.chat_wire import called, part
from workers.providers.chat_chunk import decode_chunk
from workers.providers.chat_tool_calls import ToolCallAssembly
from workers.providers.provider import BadResponse, FinishReason

A, B = '{"path":"a"}', '{"path":"b"}'


def assemble(*deltas: list[dict[str, object]], reason: FinishReason = "tool_calls") -> tuple[ToolCall, ...]:
    assembly = ToolCallAssembly("made_")
    for delta in deltas:
        choices = decode_chunk(called(*delta)).choices
        assert choices
        assert choices[0].delta
        assembly.feed(choices[0].delta.tool_calls or [])
    return assembly.finish(reason)


def call(call_id: str, name: str = "Read", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


BOTH = (call("x", "Read", A), call("y", "Read", B))


def test_the_protocols_own_form_is_read() -> None:
    assert (
        assemble(
            [part("Read", "", index=0, call_id="x")],
            [part(None, '{"pa', index=0)],
            [part(None, 'th":"a"}', index=0)],
            [part("Read", "", index=1, call_id="y")],
            [part(None, B, index=1)],
        )
        == BOTH
    )


def test_two_calls_without_an_index_in_one_delta_are_two() -> None:
    assert assemble([part("Read", A, call_id="x"), part("Read", B, call_id="y")]) == BOTH
    assert [made.arguments for made in assemble([part("Read", A), part("Read", B)])] == [A, B]


def test_two_deltas_without_an_index_and_with_other_ids_are_two_calls() -> None:
    assert assemble([part("Read", A, call_id="x")], [part("Read", B, call_id="y")]) == BOTH
    assert (
        assemble(
            [part("Read", "", call_id="x")],
            [part(None, '{"path":')],
            [part(None, '"a"}')],
            [part("Read", "", call_id="y")],
            [part(None, B)],
        )
        == BOTH
    )


def test_pieces_without_an_index_find_their_call_by_its_id() -> None:
    assert (
        assemble(
            [part("Read", '{"path":', call_id="x"), part("Read", '{"path":', call_id="y")],
            [part(None, '"a"}', call_id="x"), part(None, '"b"}', call_id="y")],
        )
        == BOTH
    )


@pytest.mark.parametrize("index", [None, 0])
def test_whole_calls_with_no_id_and_no_index_of_their_own_are_told_apart(index: int | None) -> None:
    calls = assemble([part("Read", A, index=index)], [part("Read", B, index=index)])
    assert calls == (call("made_0", "Read", A), call("made_1", "Read", B))


def test_a_name_behind_whole_arguments_begins_another_call() -> None:
    calls = assemble([part("Read", A)], [part("List", "")], [part(None, B)])
    assert calls == (call("made_0", "Read", A), call("made_1", "List", B))


def test_other_ids_under_the_same_index_are_other_calls() -> None:
    assert assemble([part("Read", A, index=0, call_id="x")], [part("Read", B, index=0, call_id="y")]) == BOTH


@pytest.mark.parametrize("index", [1, 2, -1])
def test_the_first_index_may_be_any(index: int) -> None:
    pieces = [part("Read", "", index=index, call_id="x")], [part(None, A, index=index)]
    assert assemble(*pieces) == (call("x", "Read", A),)


def test_an_index_that_comes_late_or_goes_missing_belongs_to_the_same_call() -> None:
    assert assemble([part("Read", "", call_id="x")], [part(None, A, index=0)]) == (call("x", "Read", A),)
    assert assemble([part("Read", "", index=0, call_id="x")], [part(None, A)]) == (call("x", "Read", A),)


def test_empty_ids_and_names_in_later_deltas_change_nothing() -> None:
    pieces = [part("", piece, index=0, call_id="") for piece in ('{"path"', ':"a"}')]
    assert assemble([part("Read", "", index=0, call_id="x")], *([each] for each in pieces)) == (call("x", "Read", A),)


@pytest.mark.parametrize("index", [None, 0])
@pytest.mark.parametrize("call_id", [None, "x"])
def test_a_name_on_every_delta_is_one_name(index: int | None, call_id: str | None) -> None:
    pieces = [[part("Read", piece, index=index, call_id=call_id)] for piece in ("", '{"pa', 'th":', '"a"}', "")]
    assert assemble(*pieces) == (call(call_id or "made_0", "Read", A),)


@pytest.mark.parametrize("index", [None, 0])
def test_a_name_in_two_halves_is_one_name(index: int | None) -> None:
    whole = (call("x", "Read", A),)
    rest = [part("ad", '{"path"', index=index)], [part(None, ':"a"}')]
    assert assemble([part("Re", "", index=index, call_id="x")], *rest) == whole
    rest_with_arguments = [part("ad", ':"a"}', index=index)]
    assert assemble([part("Re", '{"path"', index=index, call_id="x")], rest_with_arguments) == whole


def test_the_second_use_of_an_id_is_told_apart() -> None:
    calls = assemble([part("Read", A, index=n, call_id="x") for n in range(3)])
    assert [made.id for made in calls] == ["x", "x#2", "x#3"]
    calls = assemble([part("Read", A, index=n, call_id=name) for n, name in enumerate(("x#2", "x", "x"))])
    assert [made.id for made in calls] == ["x#2", "x", "x#3"]


@pytest.mark.parametrize("arguments", ["", " ", None, "{}", {}])
def test_a_call_without_arguments_has_an_empty_object(arguments: object) -> None:
    assert assemble([part("List", arguments, index=0, call_id="x")]) == (call("x", "List"),)


def test_arguments_may_come_as_an_object() -> None:
    assert assemble([part("Read", {"path": "a"}, call_id="x")]) == (call("x", "Read", A),)


def test_arguments_of_another_type_are_a_bad_response() -> None:
    with pytest.raises(BadResponse):
        assemble([part("Read", [1], call_id="x")])


def test_invalid_arguments_are_a_fault_of_that_call_alone() -> None:
    bad, good = assemble([part("Write", '{"a":' + "junk" * 250_000, index=0, call_id="x"), part("Read", B, index=1)])
    assert bad.arguments == "{}"
    assert 0 < len(bad.fault) < 300
    assert good == call("made_1", "Read", B)


def test_an_object_encoded_twice_is_a_fault() -> None:
    (made,) = assemble([part("Read", json.dumps(A), call_id="x")])
    assert "a string" in made.fault


@pytest.mark.parametrize("reason", ["length", "tool_calls", "stop"])
def test_arguments_that_are_cut_are_a_fault(reason: FinishReason) -> None:
    (made,) = assemble([part("Write", '{"path":"f","content":"line1', call_id="x")], reason=reason)
    assert made.fault
    assert made.arguments == "{}"
    assert ("cut off" in made.fault) == (reason == "length")


def test_a_last_call_cut_before_its_arguments_does_not_run() -> None:
    first, last = assemble([part("List", "", call_id="x"), part("Write", "", call_id="y")], reason="length")
    assert first == call("x", "List")
    assert last.fault


def test_padding_is_no_call_and_a_nameless_one_can_not_run() -> None:
    assert assemble([part(None, "", index=0), part("Read", A, index=1, call_id="x")]) == (call("x", "Read", A),)
    (made,) = assemble([part(None, A, index=0, call_id="x")])
    assert made.name
    assert made.fault


def test_deltas_interleaved_by_index_are_two_calls_in_the_order_they_began() -> None:
    starts = [[part("Read", "", index=n, call_id="xy"[n])] for n in (0, 1)]
    rest = [[part(None, piece, index=n)] for n, piece in ((0, '{"path"'), (1, '{"path"'), (0, ':"a"}'), (1, ':"b"}'))]
    assert assemble(*starts, *rest) == BOTH


@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=8), max_size=3), min_size=1, max_size=4), st.data()
)
def test_however_the_arguments_are_cut_and_interleaved_the_calls_are_the_same(
    values: list[dict[str, str]], data: st.DataObject
) -> None:
    pending: list[list[dict[str, object]]] = []
    for index, value in enumerate(values):
        text = json.dumps(value, ensure_ascii=False)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
        pieces = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
        start = part("Read", "", index=index, call_id=f"c{index}")
        pending.append([start, *(part(None, piece, index=index) for piece in pieces)])
    deltas: list[list[dict[str, object]]] = []
    while any(pending):
        waiting = data.draw(st.sampled_from([each for each in pending if each]))
        deltas.append([waiting.pop(0)])
    calls = {made.id: json.loads(made.arguments) for made in assemble(*deltas)}
    assert calls == {f"c{index}": value for index, value in enumerate(values)}
