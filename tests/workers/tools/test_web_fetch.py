from __future__ import annotations

import ssl
from collections.abc import Callable

import pytest
import trio

from tests.workers.providers.loopback import Answer, LoopbackServer, chunked, serving, whole
from tests.workers.providers.test_http_transport import CERTIFICATE, KEY
from tests.workers.tools.project import Project
from workers.providers.http_transport import get_pinned
from workers.tools import web_fetch
from workers.tools.tool import ToolError
from workers.tools.web_fetch import MOST_BYTES, MOST_CHARACTERS, MOST_REDIRECTS, WebFetchArguments, fetched
from workers.tools.web_page import is_readable, media_type, text_of_page

HTML = {"content-type": "text/html; charset=utf-8"}
TEXT = {"content-type": "text/plain"}
PAGE = b"""<!doctype html><html><head><title>A page</title><style>p {color: red}</style></head><body>
<script>alert(1)</script><h1>First</h1><p>Some <b>bold</b> text and <a href="/x">a link</a>.<img src="i.png"></p>
<ul><li>one</li><li>two</li></ul><pre><code>x = 1\n</code></pre><table><tr><th>a</th></tr><tr><td>1</td></tr></table>
</body></html>"""


async def text_of(url: str, prompt: str | None = None, is_allowed: Callable[[str], bool] = "127.0.0.1".__eq__) -> str:
    """What the tool answers, where this machine counts as public."""
    with trio.fail_after(20):
        text = await fetched(WebFetchArguments(url=url, prompt=prompt), is_allowed)
    text.encode()
    return text


async def refusal_of(url: str, is_allowed: Callable[[str], bool] = "127.0.0.1".__eq__) -> str:
    with pytest.raises(ToolError) as refused:
        await text_of(url, is_allowed=is_allowed)
    return str(refused.value)


def bound_port(listener: object) -> int:
    assert isinstance(listener, trio.SocketListener)
    port: int = listener.socket.getsockname()[1]
    return port


def redirect(location: str, status: int = 302) -> Answer:
    return whole(b"moved", status, {"location": location})


async def test_a_page_becomes_readable_text() -> None:
    async with serving(whole(PAGE, headers=HTML)) as server:
        text = await text_of(f"{server.base_url}/page")
    first, _, rest = text.partition("\n")
    assert first == f"[{server.base_url}/page, text/html]"
    for expected in ("# A page", "# First", "Some **bold** text and [a link](/x).", "- one\n- two", "x = 1", "| a |"):
        assert expected in rest
    for unwanted in ("alert", "color", "<", "i.png"):
        assert unwanted not in rest


async def test_plain_text_and_json_come_as_they_are() -> None:
    for body, kind in ((b"a <b>\n c", "text/plain"), (b'{"a": 1}', "application/json; charset=utf-8")):
        async with serving(whole(body, headers={"content-type": kind})) as server:
            text = await text_of(server.base_url, prompt="the number")
        assert text == f"[{server.base_url}, {kind.partition(';')[0]}; looked for: the number]\n{body.decode()}"


async def test_the_server_is_asked_by_name_and_told_nothing_of_ours() -> None:
    async with serving(whole(b"x", headers=TEXT)) as server:
        await text_of(f"http://localhost:{server.port}/p?q=1#part", is_allowed=lambda _address: True)
    (received,) = server.requests
    assert received.target == "/p?q=1"
    assert received.headers["host"] == f"localhost:{server.port}"
    assert received.headers["accept-encoding"] == "identity"
    assert "authorization" not in received.headers and "cookie" not in received.headers


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0", "169.254.169.254", "10.0.0.1"])
async def test_what_is_not_public_is_refused_and_never_asked(project: Project, host: str) -> None:
    async with serving(whole(b"secret", headers=TEXT)) as server:
        refusal = await project.refusal("WebFetch", url=f"http://{host}:{server.port}/")
        assert "not on the public internet" in refusal or "can't be looked up" in refusal
        assert server.requests == []


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://a/b", "data:text/plain,x", "gopher://a", "a.html", "http://", ""]
)
async def test_other_schemes_are_refused(url: str) -> None:
    assert "only http:// and https://" in await refusal_of(url)


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://a:99999/", "http://a:b/", "\ud800", "http://user:pass@127.0.0.1/"]
)
async def test_addresses_that_are_none_are_refused(url: str) -> None:
    (await refusal_of(url)).encode()


async def test_a_redirect_is_followed_and_the_last_address_is_named() -> None:
    async with serving(redirect("/two", 301), redirect("three?x=1", 307), whole(b"here", headers=TEXT)) as server:
        text = await text_of(f"{server.base_url}/one")
    assert text == f"[http://127.0.0.1:{server.port}/three?x=1, text/plain]\nhere"


@pytest.mark.parametrize(
    "target", ["http://127.0.0.2:{port}/", "http://[::1]:{port}/", "file:///etc/passwd", "//127.3:{port}"]
)
async def test_each_redirect_is_checked_like_the_first_address(target: str) -> None:
    async with serving(whole(b"")) as server:
        location = target.format(port=server.port)
        async with serving(redirect(location)) as first:
            refusal = await refusal_of(first.base_url)
        assert "not on the public internet" in refusal or "can't be fetched" in refusal
        assert server.requests == []


async def test_redirects_without_end_are_given_up() -> None:
    async with serving(*[redirect("/again")] * (MOST_REDIRECTS + 2)) as server:
        assert f"More than {MOST_REDIRECTS} redirects" in await refusal_of(server.base_url)
        assert len(server.requests) == MOST_REDIRECTS + 1


async def test_the_address_that_was_checked_is_the_one_that_is_asked() -> None:
    async with serving(whole(b"here", headers=TEXT)) as server:
        url = f"http://a-name-that-stands-for-nothing.invalid:{server.port}/x"
        with trio.fail_after(20):
            async with get_pinned(url, "127.0.0.1", 5.0) as response:
                assert [piece async for piece in response] == [b"here"]
    assert server.requests[0].headers["host"] == f"a-name-that-stands-for-nothing.invalid:{server.port}"


async def test_a_certificate_must_be_for_the_name_and_not_for_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    server = LoopbackServer([whole(b"safe", headers=TEXT)] * 2)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1", https_compatible=True)
            nursery.start_soon(trio.serve_listeners, server.handle, listeners)
            port = bound_port(listeners[0].transport_listener)
            ends: dict[str, str] = {}
            for name in ("localhost", "elsewhere.invalid"):
                try:
                    async with get_pinned(f"https://{name}:{port}/", "127.0.0.1", 5.0) as response:
                        ends[name] = b"".join([piece async for piece in response]).decode()
                except Exception as error:
                    ends[name] = str(error)
            nursery.cancel_scope.cancel()
    assert ends["localhost"] == "safe"
    assert "certificate" in ends["elsewhere.invalid"]


async def test_a_body_without_end_is_cut() -> None:
    piece = b"x" * 999 + b"\n"

    async def pour(stream: trio.abc.Stream) -> None:
        while True:
            await stream.send_all(b"%x\r\n%s\r\n" % (len(piece), piece))

    async with serving(chunked(piece, headers=TEXT, then=pour)) as server:
        page = await web_fetch.fetch(server.base_url, "127.0.0.1".__eq__)
        assert len(page.body) == MOST_BYTES
    async with serving(chunked(piece, headers=TEXT, then=pour)) as server:
        text = await text_of(server.base_url)
    assert len(text) < MOST_CHARACTERS + 200
    assert text.endswith("more characters]")


async def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def be_silent(_stream: trio.abc.Stream) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(web_fetch, "LONGEST_FETCH", 0.5)
    for answer in (be_silent, chunked(b"x", headers=TEXT, then=be_silent)):
        async with serving(answer) as server:
            assert "took over 0.5 s" in await refusal_of(server.base_url)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (whole(b"", 404), "HTTP 404 (Not Found)"),
        (whole(b"", 599), "HTTP 599."),
        (redirect("", 302), "HTTP 302"),
        (whole(b"\x89PNG", headers={"content-type": "image/png"}), "is image/png, which is no text"),
        (whole(b"\0\1", headers={}), "no text"),
        (whole(b"\x1f\x8b", headers={**TEXT, "content-encoding": "gzip"}), "compressed"),
    ],
)
async def test_what_can_not_be_read_says_why(answer: Answer, words: str) -> None:
    async with serving(answer) as server:
        assert words in await refusal_of(server.base_url)


async def test_a_port_that_nobody_listens_on_says_so_without_advice_that_is_not_for_a_model() -> None:
    async with serving() as server:
        pass
    refusal = await refusal_of(server.base_url)
    assert "connection was refused" in refusal
    assert "--base-url" not in refusal


# -- reading a page ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "kind", "charset"),
    [
        ("grün".encode("latin-1"), "text/plain", "iso-8859-1"),
        ("grün".encode(), "text/plain", ""),
        ("grün".encode("utf-16"), "text/plain", ""),
        ("grün".encode(), "text/plain", "no-such-charset"),
        ("grün".encode(), "text/plain", "hex"),
        (b'<meta charset="iso-8859-1"><p>' + "grün".encode("latin-1"), "text/html", ""),
        ("<p>grün".encode(), "", ""),
    ],
)
async def test_text_is_read_in_the_encoding_that_is_told(body: bytes, kind: str, charset: str) -> None:
    assert (await text_of_page(body, kind, charset)).strip() == "grün"


async def test_a_page_that_is_a_tangle_ends_with_its_text_or_a_sentence() -> None:
    deep = b"<div>" * 20_000 + b"inside" + b"</div>" * 20_000
    with trio.fail_after(30):
        try:
            assert "inside" in await text_of_page(deep, "text/html", "")
        except ToolError as error:
            assert "can't be read" in str(error)


async def test_control_characters_of_a_page_do_no_harm() -> None:
    assert await text_of_page(b"a\x1b[31mred\x07", "text/plain", "utf-8") == "ared\ufffd"


def test_types_are_told_apart() -> None:
    assert media_type('Text/HTML; Charset="UTF-8"') == ("text/html", "utf-8")
    assert media_type("") == ("", "")
    for kind in ("", "text/markdown", "application/json", "application/ld+json", "image/svg+xml", "application/xml"):
        assert is_readable(kind)
    for kind in ("image/png", "application/pdf", "application/octet-stream", "video/mp4", "application/zip"):
        assert not is_readable(kind)
