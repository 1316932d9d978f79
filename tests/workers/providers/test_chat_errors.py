from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.providers.chat_errors import (
    MAX_WORDS,
    error_for_status,
    error_in_stream,
    presentable,
    read_error,
    read_error_body,
    visible_text,
)
from workers.providers.provider import (
    AccountRefused,
    ContextOverflow,
    ProviderError,
    RateLimited,
    Refused,
    ServerFailed,
)


def judged(status: int, error: object) -> ProviderError:
    return error_for_status(status, read_error_body(json.dumps(error).encode()), source="here")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Refused),
        (401, AccountRefused),
        (403, AccountRefused),
        (404, AccountRefused),
        (422, Refused),
        (408, ServerFailed),
        (429, RateLimited),
        (500, ServerFailed),
        (503, ServerFailed),
        (529, ServerFailed),
    ],
)
@pytest.mark.parametrize("words", ["rate limit reached", "your subscription has ended", "server error", "timeout"])
def test_the_status_alone_gives_the_class(status: int, kind: type[ProviderError], words: str) -> None:
    error = judged(status, {"error": {"message": words}})
    assert type(error) is kind
    assert words in str(error)


@pytest.mark.parametrize(
    "error",
    [
        {
            "code": 400,
            "message": "the request exceeds the available context size",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 9000,
            "n_ctx": 4096,
        },
        {"code": "context_length_exceeded", "message": "Too many tokens."},
        {"message": "Prompt is too long: 210000 tokens > 200000 maximum"},
        {"message": "This model's maximum context length is 4096 tokens."},
    ],
)
def test_a_prompt_that_is_too_long_is_known(error: object) -> None:
    assert isinstance(judged(400, {"error": error}), ContextOverflow)
    assert isinstance(judged(400, error), ContextOverflow)


def test_words_about_a_long_prompt_do_not_change_another_status() -> None:
    assert isinstance(judged(403, {"error": {"message": "prompt is too long"}}), Refused)
    assert isinstance(judged(500, {"error": {"message": "prompt is too long"}}), ServerFailed)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "slow down", "code": 429}, RateLimited),
        ({"message": "slow down", "code": "429"}, RateLimited),
        ({"message": "slow down", "type": "rate_limit_error"}, RateLimited),
        ({"message": "busy", "code": 503}, ServerFailed),
        ({"message": "no", "code": 400}, Refused),
        ({"message": "no", "type": "invalid_request_error"}, Refused),
        ({"message": "no", "code": "invalid_api_key"}, AccountRefused),
        ({"message": "too long", "code": "context_length_exceeded"}, ContextOverflow),
        ({"message": "something"}, ServerFailed),
        ({"message": "something", "code": 7, "type": "unheard_of"}, ServerFailed),
        ("TEXT with rate limit", ServerFailed),
    ],
)
def test_the_code_of_an_error_in_a_stream_gives_its_class(error: object, kind: type[ProviderError]) -> None:
    assert type(error_in_stream(read_error({"error": error}))) is kind


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"error":{"message":"WORDS"}}', "WORDS"),
        ('{"error":"WORDS"}', "WORDS"),
        ('{"message":"WORDS"}', "WORDS"),
        ('{"detail":"WORDS"}', "WORDS"),
        ('{"detail":[{"msg":"WORDS"}]}', '{"detail":[{"msg":"WORDS"}]}'),
        ('[{"error":{"message":"WORDS"}}]', "WORDS"),
        ('{"error":{"message":"failed","metadata":{"raw":"WORDS"}}}', "failed: WORDS"),
        ("<html><head><title>502</title><style>x{}</style></head><h1>WORDS &amp; more</h1></html>", "502 WORDS & more"),
        ("WORDS", "WORDS"),
        ("", "no message"),
        ("{}", "no message"),
        ("null", "no message"),
        ('{"error":{"message":7}}', '{"message":7}'),
    ],
)
def test_the_servers_words_are_found(body: str, words: str) -> None:
    assert read_error_body(body.encode()).message == words


@given(st.binary(max_size=200))
def test_any_body_has_words(body: bytes) -> None:
    assert read_error_body(body).message


def test_a_deeply_nested_error_is_no_crash() -> None:
    body = '{"error":' * 900 + "1" + "}" * 900
    assert read_error_body(body.encode()).message
    assert read_error_body(b"[" * 100_000).message


def test_401_and_403_tell_about_the_key_and_others_do_not() -> None:
    for status, told in ((401, True), (403, True), (404, False)):
        error = error_for_status(status, read_error("no"), source="here", key_hint="check the key in X_KEY")
        assert ("X_KEY" in str(error)) is told
        assert isinstance(error, Refused)
        assert error.status == status


def test_the_wait_that_the_server_asked_for_is_kept() -> None:
    for status in (429, 503):
        error = error_for_status(status, read_error("no"), source="here", retry_after=3.0)
        assert isinstance(error, RateLimited | ServerFailed)
        assert error.retry_after == 3.0


def test_the_key_is_masked_everywhere_even_where_the_message_is_cut() -> None:
    key = "sk-secret-0123456789"
    for lead in range(MAX_WORDS - 30, MAX_WORDS + 5):
        shown = presentable("x" * lead + key + " again " + key, key)
        assert "sk-s" not in shown
        assert len(shown) <= MAX_WORDS


def test_a_message_is_one_line_without_control_characters() -> None:
    assert presentable("a\r\n\x1b[31mb\u202ec\x9b\ud800\t d", "") == "a [31mb c � d"


@given(st.text(), st.from_regex(r"[A-Za-z0-9-]{4,20}", fullmatch=True), st.text())
def test_no_message_shows_the_key(before: str, key: str, after: str) -> None:
    shown = presentable(f"{before}{key}{after}", key)
    assert key not in shown
    shown.encode()


def test_scripts_and_comments_of_a_page_are_not_shown() -> None:
    assert visible_text("<!-- a --><script>b</script><p>c</p>d") == "c d"
