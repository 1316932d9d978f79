from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.acp.redact import KEPT_BYTES, PLACEHOLDER, TAIL_BYTES, Redactor, TailBuffer

SECRET = "correct horse battery staple"


def buffer(*pieces: bytes) -> TailBuffer:
    kept = TailBuffer()
    for piece in pieces:
        kept.add(piece)
    return kept


@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY", "my_secret", "Github_Token", "DB_PASSWORD", "AWS_CREDENTIAL", "PASSWORD", "X_APIKEY"]
)
def test_the_value_of_a_variable_with_a_secret_name_is_replaced(name: str) -> None:
    assert Redactor({name: SECRET}).clean(f"failed with {SECRET}!") == f"failed with {PLACEHOLDER}!"


def test_other_values_and_very_short_ones_stay() -> None:
    redactor = Redactor({"HOME": "/home/ada", "A_TOKEN": "1", "B_TOKEN": "", "TOKENS": "many"})
    assert redactor.clean("1 of many in /home/ada") == "1 of many in /home/ada"


def test_a_secret_that_holds_another_is_replaced_whole() -> None:
    redactor = Redactor({"A_TOKEN": "inner"}, {"B_TOKEN": "outer-inner-outer"})
    assert redactor.clean("outer-inner-outer, inner") == f"{PLACEHOLDER}, {PLACEHOLDER}"


@pytest.mark.parametrize(
    "shape",
    [
        "sk-ant-api03-abcdefghijklmnopqrst", "sk-proj-abcdefghij0123456789", "sk-abcdefghijklmnopqrstuvwx",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789", "github_pat_11ABCDEFG0abcdefghijkl", "glpat-abcdefghij0123456789",
        "xoxb-123456789012-abcdef", "AKIAIOSFODNN7EXAMPLE", "AIzaSyA-abcdefghijklmnopqrstuvwxyz01234",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "hf_abcdefghijklmnopqrstuvwx",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\ndef=\n-----END RSA PRIVATE KEY-----",
    ],
)  # fmt: skip
def test_what_looks_like_a_key_is_replaced(shape: str) -> None:
    assert Redactor().clean(f"got <{shape}> back") == f"got <{PLACEHOLDER}> back"


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("Authorization: Bearer abcdef0123456789", f"Authorization: Bearer {PLACEHOLDER}"),
        ("https://ada:hunter2@example.org/x", f"https://{PLACEHOLDER}@example.org/x"),
        ("OPENAI_API_KEY=whatever next", f"OPENAI_API_KEY={PLACEHOLDER} next"),
        ('{"api_key": "whatever"}', f'{{"api_key": "{PLACEHOLDER}"}}'),
        ("SyntaxError: Unexpected token: here", "SyntaxError: Unexpected token: here"),
        ("early boom\n", "early boom\n"),
    ],
)
def test_secrets_are_known_by_their_place(text: str, cleaned: str) -> None:
    assert Redactor().clean(text) == cleaned


def test_controls_are_cleaned_and_a_secret_behind_them_is_still_found() -> None:
    redactor = Redactor({"A_TOKEN": SECRET})
    text = f"\x1b[31mred\x1b[0m\x07\r\nhere: {SECRET[:7]}\x1b[1m{SECRET[7:]}\tend\x00"
    assert redactor.clean(text) == f"red\ufffd\nhere: {PLACEHOLDER}\tend\ufffd"


def test_bytes_that_are_no_utf8_do_not_hide_a_secret() -> None:
    value = b"caf\xe9-caf\xe9".decode("utf-8", "surrogateescape")
    redactor = Redactor({"A_PASSWORD": value})
    assert redactor.tail(buffer(b"it is caf\xe9-caf\xe9 \xff")) == f"it is {PLACEHOLDER} \ufffd"


@given(st.integers(0, 60))
def test_a_secret_at_the_cut_is_never_shown_in_half(offset: int) -> None:
    redactor = Redactor({"A_TOKEN": SECRET})
    tail = redactor.tail(buffer(f"before {SECRET}".encode() + b"x" * (TAIL_BYTES - offset)))
    assert len(tail.encode()) <= TAIL_BYTES
    assert not any(SECRET[at : at + 6] in tail for at in range(len(SECRET) - 6))


@given(st.integers(0, 3))
def test_the_cut_is_between_two_characters(offset: int) -> None:
    tail = Redactor().tail(buffer("€".encode() * 5000 + b"x" * offset))
    assert TAIL_BYTES - 3 < len(tail.encode()) <= TAIL_BYTES
    assert set(tail) <= {"€", "x"}


def test_the_tail_is_the_newest_part() -> None:
    tail = Redactor().tail(buffer(*(f"line {number}\n".encode() for number in range(5000))))
    assert tail.endswith("line 4998\nline 4999\n")
    assert len(tail.encode()) == TAIL_BYTES


def test_half_a_secret_where_the_kept_part_begins_is_not_shown() -> None:
    redactor = Redactor({"A_TOKEN": SECRET})
    # All that is visible after the cut lies right behind it: the rest are controls, which are cleaned away.
    kept = buffer(b"x" * (2 * KEPT_BYTES), SECRET.encode() + b"\x1b[0m" * (KEPT_BYTES // 4 - 4))
    assert kept.is_cut
    assert SECRET[-16:].encode() in kept.content[:32]
    assert SECRET[-10:] not in redactor.tail(kept)


def test_memory_is_bounded_and_a_flood_is_cleaned_in_reasonable_time() -> None:
    kept = buffer(*[b"eyJ-sk-eyJabc_token= " * 1000] * 100)
    assert len(kept.content) <= 2 * KEPT_BYTES
    started = time.process_time()
    Redactor({"A_TOKEN": SECRET}).tail(kept)
    assert time.process_time() - started < 10
