from __future__ import annotations

import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
import trio
import trio.abc

from tests.workers.providers.loopback import Answer, LoopbackServer, bare, close, head, reset, serving, silence, whole
from workers.providers.http_transport import HttpTransport, is_loopback, shown_address
from workers.providers.provider import NetworkFailed, ProviderError, Refused, StreamFailed

HERE = Path(__file__).parent
CERTIFICATE, KEY = HERE / "loopback_certificate.pem", HERE / "loopback_key.pem"
BOUND = 20.0


async def fetch(url: str, connect_timeout: float = 10.0) -> bytes:
    transport = HttpTransport(connect_timeout)
    with trio.fail_after(BOUND):
        try:
            async with transport.get(url, {}) as response:
                return b"".join([piece async for piece in response])
        finally:
            await transport.aclose()


async def failure_of(url: str, connect_timeout: float = 10.0) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await fetch(url, connect_timeout)
    return caught.value


async def test_status_headers_and_body_are_handed_over() -> None:
    async with serving(whole(b"abc", 418, {"X-Odd": "1", "x-odd": "2"})) as server:
        transport = HttpTransport(10.0)
        with trio.fail_after(BOUND):
            async with transport.post(f"{server.base_url}/x", {"a": "b"}, b"body") as response:
                assert response.status == 418
                assert response.headers["x-odd"] == "1, 2"
                assert [piece async for piece in response] == [b"abc"]
            await transport.aclose()
    (received,) = server.requests
    assert (received.target, received.headers["a"], received.body) == ("/v1/x", "b", b"body")


@contextmanager
def refusing() -> Generator[str, None, None]:
    """The address of a port that nothing listens on."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unused.getsockname()[1]}/"


async def test_nothing_listening_is_a_refused_connection() -> None:
    with refusing() as url:
        error = await failure_of(url)
    assert isinstance(error, NetworkFailed)
    assert str(error) == f"{url}: the connection was refused; is the server running? --base-url gives another address"


class UnknownNames(trio.abc.HostnameResolver):
    """Knows no name: what a resolver without a network, or with a wrong name, says."""

    async def getaddrinfo(self, host: bytes | None, *_: object, **__: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is not known")

    async def getnameinfo(self, sockaddr: object, flags: int) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, f"{sockaddr!r} is not known ({flags})")


async def test_an_unknown_name_is_told_apart() -> None:
    trio.socket.set_custom_hostname_resolver(UnknownNames())
    error = await failure_of("http://models.invalid/v1")
    assert isinstance(error, NetworkFailed)
    assert str(error) == (
        "http://models.invalid/v1: the host's name can't be looked up; is it right? --base-url gives another address"
    )


async def test_an_error_that_the_caller_is_busy_with_is_not_taken_for_the_cause() -> None:
    second: ProviderError | None = None
    async with serving(close) as server:
        with refusing() as url:
            try:
                await fetch(url)
            except NetworkFailed:
                second = await failure_of(f"{server.base_url}/x")
    assert "lost" in str(second)


async def test_a_connection_that_is_never_made_is_given_up() -> None:
    with socket.socket() as full:  # its backlog is full once two clients wait, and the third is not answered
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(3)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(address)
        url = f"http://127.0.0.1:{address[1]}/"
        error = await failure_of(url, connect_timeout=0.2)
        for client in waiting:
            client.close()
    assert isinstance(error, NetworkFailed)
    assert str(error) == (
        f"{url}: no connection in time; is the host within reach? --base-url gives another address,"
        " --connect-timeout more time"
    )


@pytest.mark.parametrize("answer", [close, reset, bare(b"HTTP/1.1 200 OK\r\nx: y")])
async def test_a_connection_lost_before_the_headers_is_a_network_failure(answer: Answer) -> None:
    async with serving(answer) as server:
        error = await failure_of(f"{server.base_url}/x")
    assert isinstance(error, NetworkFailed)
    assert "lost" in str(error)


@pytest.mark.parametrize("ending", [close, reset])
async def test_a_connection_lost_within_the_body_is_a_stream_that_failed(ending: Answer) -> None:
    async def cut(stream: trio.abc.Stream) -> None:
        await stream.send_all(head(200, {"content-length": "9"}) + b"abc")
        await ending(stream)

    async with serving(cut) as server:
        assert isinstance(await failure_of(f"{server.base_url}/x"), StreamFailed)


@pytest.mark.parametrize("url", ["", "/x", "ftp://host/x", "http://", "http://[::1", "http://host:port/"])
async def test_what_is_no_address_is_refused(url: str) -> None:
    assert isinstance(await failure_of(url), Refused)


async def test_leaving_an_answer_half_read_closes_its_connection_at_once() -> None:
    async def endless(stream: trio.abc.Stream) -> None:
        await stream.send_all(head(200, {"content-length": "99"}) + b"abc")
        await silence(stream)

    async with serving(endless) as server:
        transport = HttpTransport(10.0)
        with trio.fail_after(BOUND):
            async with transport.get(f"{server.base_url}/x", {}) as response:
                assert await anext(response) == b"abc"
            await server.gone.wait()
            await transport.aclose()


# -- TLS --------------------------------------------------------------------------------------------------------------


async def serve_tls(server: LoopbackServer, task_status: trio.TaskStatus[str]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE, KEY)

    async def handle(stream: trio.SocketStream) -> None:
        try:
            await server.handle(trio.SSLStream(stream, context, server_side=True, https_compatible=True))
        except* (trio.BrokenResourceError, ssl.SSLError):
            pass  # the client did not trust us

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    task_status.started(f"https://127.0.0.1:{listeners[0].socket.getsockname()[1]}/x")
    await trio.serve_listeners(handle, listeners)


async def test_a_certificate_that_nobody_vouches_for_is_refused_and_not_retried(nursery: trio.Nursery) -> None:
    server = LoopbackServer([whole(b"abc")])
    url = await nursery.start(serve_tls, server)
    error = await failure_of(url)
    assert isinstance(error, Refused)
    assert "certificate" in str(error)
    assert server.requests == []


async def test_a_trusted_certificate_is_taken(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    url = await nursery.start(serve_tls, LoopbackServer([whole(b"abc")]))
    assert await fetch(url) == b"abc"


async def test_a_server_without_tls_is_a_failed_handshake(nursery: trio.Nursery) -> None:
    async def answer_in_plain(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await bare(b"HTTP/1.1 400 Bad Request\r\n\r\n")(stream)

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, answer_in_plain, listeners)
    error = await failure_of(f"https://127.0.0.1:{listeners[0].socket.getsockname()[1]}/")
    assert isinstance(error, NetworkFailed)
    assert "handshake" in str(error)


# -- proxies ----------------------------------------------------------------------------------------------------------


async def test_a_proxy_serves_other_hosts_and_never_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(whole(b"by proxy")) as proxy, serving(whole(b"direct")) as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "")
        assert await fetch(f"{server.base_url}/x") == b"direct"
        assert await fetch("http://models.invalid/x") == b"by proxy"
    assert [received.target for received in proxy.requests] == ["http://models.invalid/x"]


async def test_a_proxy_of_an_unknown_kind_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "gopher://127.0.0.1:1")
    error = await failure_of("http://models.invalid/x")
    assert isinstance(error, Refused)
    assert "proxy" in str(error)


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "0.0.0.0", "::1"])
def test_this_machine_is_known_by_its_names(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "localhost.example.org", "192.168.0.1", "128.0.0.1", "::2"])
def test_other_hosts_are_not_this_machine(host: str) -> None:
    assert not is_loopback(host)


def test_an_address_is_shown_without_user_password_and_query() -> None:
    assert shown_address("https://user:secret@host:8443/v1?key=secret") == "https://host:8443/v1"
    assert shown_address("http://[::1]:80/x") == "http://[::1]:80/x"
    assert "secret" not in shown_address("http://user:secret@[bad/")
