from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.providers.tool_arguments import ArgumentsFault, canonical_arguments, is_complete

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=3), st.booleans())
def test_every_object_keeps_its_value(value: dict[str, object], pretty: bool) -> None:
    text = canonical_arguments(json.dumps(value, indent=2 if pretty else None))
    assert json.loads(text) == value
    assert "\n" not in text
    assert canonical_arguments(text) == text


@given(st.text(st.characters()))
def test_any_text_is_an_object_or_a_fault(text: str) -> None:
    try:
        canonical = canonical_arguments(text)
    except ArgumentsFault as fault:
        assert len(str(fault)) < 200
    else:
        assert isinstance(json.loads(canonical), dict)
        canonical.encode()


@pytest.mark.parametrize("text", ["", " ", "\n\t", "{}", " { } "])
def test_blank_arguments_are_an_empty_object(text: str) -> None:
    assert canonical_arguments(text) == "{}"


@pytest.mark.parametrize(
    "text",
    [
        '{"path":"f","content":"line1',
        '{"a":1}{"b":2}',
        '{"a":1} x',
        "[1]",
        "3",
        "null",
        '"{\\"a\\":1}"',
        '{"a":NaN}',
        '{"a":-Infinity}',
        '{"a":1e999}',
        '{"a":1' + "0" * 5000 + "}",
        '{"a":' * 100_000,
        '{"a":' * 5000 + "1" + "}" * 5000,
        "x" * 1_000_000,
    ],
)
def test_what_is_no_json_object_is_a_short_fault(text: str) -> None:
    with pytest.raises(ArgumentsFault) as caught:
        canonical_arguments(text)
    assert len(str(caught.value)) < 200


def test_lone_surrogates_are_replaced_at_any_depth() -> None:
    assert canonical_arguments('{"a\\ud800":["x\\udc00",{"b":"\\ud83d\\ude00"}]}') == '{"a�":["x�",{"b":"😀"}]}'


def test_whole_numbers_beyond_64_bits_survive() -> None:
    number = 2**200 + 1
    assert canonical_arguments(f'{{"n":{number},"m":-{number}}}') == f'{{"n":{number},"m":-{number}}}'
    assert canonical_arguments(f'{{"n":{number},"s":"\\ud800"}}') == f'{{"n":{number},"s":"�"}}'


def test_only_a_whole_object_is_complete() -> None:
    assert is_complete('{"a":"}"} ')
    assert not is_complete('{"a":"}')
    assert not is_complete("")
    assert not is_complete("[]")
