"""HTTP for the adapters: the only module that knows the HTTP library.

It follows no redirect (the key would travel), asks for no content encoding and undoes none, and translates every
failure: before the answer's headers to `NetworkFailed`, `Refused` or `BadResponse`, after them to `StreamFailed`. All
times are the caller's to bound, by cancellation, but for the connection's.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Self, TypeAlias, cast
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx
import trio

from workers.providers.provider import BadResponse, NetworkFailed, ProviderError, Refused, StreamFailed


class HttpResponse:
    """An answer: its status, its headers (lower-case names, repeated ones joined by a comma), its body.

    Iterating gives the body's bytes in the pieces in which they come, raw. Raises `StreamFailed`.
    """

    def __init__(self, response: httpx.Response, address: str) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self._response = response
        self._address = address
        self._pieces = response.aiter_raw()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        with _translated(self._address, _WHILE_READING):
            return await anext(self._pieces)

    async def aclose(self) -> None:
        """Close the connection, or give it back for the next call if the body was read to its end."""
        try:
            await self._unwind()
        finally:
            with _translated(self._address, _WHILE_READING):
                await self._response.aclose()

    async def _unwind(self) -> None:
        """Finish the library's nested generators here and now.

        Left half-way, they would be finished by the garbage collector, at a time of its own. A read that is cancelled
        before it waits runs them to their ends, whatever is cancelled around it.
        """
        with trio.CancelScope(shield=True) as scope:
            scope.cancel()
            try:
                while True:
                    await anext(self._pieces)
            except (StopAsyncIteration, httpx.HTTPError, httpx.StreamError):
                return


class HttpTransport:
    """Makes requests to one server, over connections that are kept for the next call.

    ``connect_timeout`` is in seconds and bounds looking the name up and connecting, and once more the TLS handshake.
    """

    def __init__(self, connect_timeout: float) -> None:
        self._connect_timeout = connect_timeout
        self._client: httpx.AsyncClient | None = None
        self._client_origin = ""

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> AbstractAsyncContextManager[HttpResponse]:
        """POST ``body``; the context lasts as long as the answer is read, and closes it.

        Raises `NetworkFailed`, `Refused` (bad address or certificate) or `BadResponse` (no HTTP) before it is entered.
        Cancellation closes the connection at once.
        """
        return self._exchange("POST", url, headers, body)

    def get(self, url: str, headers: Mapping[str, str]) -> AbstractAsyncContextManager[HttpResponse]:
        """GET ``url``; all else as for `post`."""
        return self._exchange("GET", url, headers, None)

    async def aclose(self) -> None:
        """Close the idle connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @asynccontextmanager
    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> AsyncGenerator[HttpResponse, None]:
        address = shown_address(url)
        with _translated(address, _MAKING_CLIENT):
            client = await self._client_for(url)
        with _translated(address, _BEFORE_HEADERS):
            request = client.build_request(method, url, headers=dict(headers), content=body)
            answer = await client.send(request, stream=True, follow_redirects=False)
        response = HttpResponse(answer, address)
        try:
            yield response
        finally:
            await response.aclose()

    async def _client_for(self, url: str) -> httpx.AsyncClient:
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if self._client is None or origin != self._client_origin:
            await self.aclose()
            self._client = _new_client(parts.scheme, parts.hostname or "", self._connect_timeout)
            self._client_origin = origin
        return self._client


@asynccontextmanager
async def get_pinned(url: str, address: str, connect_timeout: float) -> AsyncGenerator[HttpResponse, None]:
    """GET ``url`` from the host at the IP address ``address``, whatever its name stands for by now, and by no proxy.

    The name is what the certificate must be for and what the server is told. ``connect_timeout`` is in seconds. All
    else as for `HttpTransport.post`.
    """
    shown = shown_address(url)
    with _translated(shown, _MAKING_CLIENT):
        named = httpx.URL(url)
        client = httpx.AsyncClient(
            verify=httpx.create_ssl_context() if named.scheme == "https" else False,
            trust_env=False,
            timeout=httpx.Timeout(None, connect=connect_timeout),
            headers={"accept-encoding": "identity", "user-agent": "corral", "host": named.netloc.decode()},
        )
    async with client:
        with _translated(shown, _BEFORE_PAGE):
            pinned = named.copy_with(host=address, userinfo=b"")
            request = client.build_request("GET", pinned, extensions={"sni_hostname": named.raw_host.decode()})
            answer = await client.send(request, stream=True, follow_redirects=False)
        response = HttpResponse(answer, shown)
        try:
            yield response
        finally:
            await response.aclose()


def shown_address(url: str) -> str:
    """``url`` without user, password and query, for messages."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return "an address that can't be read"
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path}"


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine, by its name or its address; names are not looked up."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def preload() -> None:
    """Load what the first client of a process loads, most of the HTTP library; nothing is opened."""
    _new_client("http", "localhost", 1.0)


def _new_client(scheme: str, host: str, connect_timeout: float) -> httpx.AsyncClient:
    """A client for one server; a TLS context, which costs more than all the rest, only where TLS may be spoken."""
    proxied = not is_loopback(host)
    tls = scheme == "https" or (proxied and any(proxy.startswith("https:") for proxy in getproxies().values()))
    return httpx.AsyncClient(
        verify=httpx.create_ssl_context() if tls else False,
        trust_env=proxied,
        timeout=httpx.Timeout(None, connect=connect_timeout),
        headers={"accept-encoding": "identity", "user-agent": "corral"},
    )


# -- translation of failures ------------------------------------------------------------------------------------------

_Match: TypeAlias = Callable[[BaseException], bool]
_Translate: TypeAlias = Callable[[str, BaseException], ProviderError]
_Rules: TypeAlias = tuple[tuple[_Match, _Translate], ...]


def _is(*kinds: type[BaseException]) -> _Match:
    return lambda error: isinstance(error, kinds)


def _from_h11(error: BaseException) -> bool:
    """Whether the parser of HTTP/1.1 refused what came; the library raises the same class for a lost connection."""
    return type(error).__module__.partition(".")[0] == "h11"


def _as(kind: Callable[[str], ProviderError], words: str) -> _Translate:
    return lambda address, _error: kind(f"{address}{words}")


def _untrusted(address: str, error: BaseException) -> ProviderError:
    reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else "unknown reason"
    return Refused(f"{address}: the server's TLS certificate can't be trusted: {reason}")


_MAKING_CLIENT: _Rules = (
    (
        _is(ImportError, ValueError, OSError, httpx.InvalidURL),
        _as(Refused, ": the address, or a proxy or certificate file that the environment sets, can't be used"),
    ),
)


def _before_headers(other_address: str, more_time: str) -> _Rules:
    """Both arguments are advice for the person, or empty where a person has nothing to set."""
    return (
        (_is(ssl.SSLCertVerificationError), _untrusted),
        (
            _is(socket.gaierror),
            _as(NetworkFailed, f": the host's name can't be looked up; is it right?{other_address}"),
        ),
        (
            _is(ConnectionRefusedError),
            _as(NetworkFailed, f": the connection was refused; is the server running?{other_address}"),
        ),
        (
            _is(httpx.ConnectTimeout),
            _as(NetworkFailed, f": no connection in time; is the host within reach?{other_address}{more_time}"),
        ),
        (_is(ssl.SSLError), _as(NetworkFailed, ": the TLS handshake failed")),
        (_from_h11, _as(BadResponse, " does not answer in HTTP that can be read")),
        (_is(httpx.ProxyError), _as(NetworkFailed, ": the proxy refused the connection")),
        (_is(httpx.UnsupportedProtocol, httpx.InvalidURL, UnicodeError), _as(Refused, " is no address of a server")),
        (_is(httpx.HTTPError, OSError), _as(NetworkFailed, ": the connection was lost before an answer")),
    )


_BEFORE_HEADERS = _before_headers(" --base-url gives another address", ", --connect-timeout more time")
_BEFORE_PAGE = _before_headers("", "")
_WHILE_READING: _Rules = (
    (_is(httpx.HTTPError, httpx.StreamError, OSError), _as(StreamFailed, ": the reply broke off")),
)
"""The first rule wins that matches any error of the cause chain: the library has one class for most of them."""


@contextmanager
def _translated(address: str, rules: _Rules) -> Generator[None, None, None]:
    outer = sys.exception()
    try:
        yield
    except StopAsyncIteration:
        raise
    except Exception as error:
        chain = list(_chain(error, outer))
        for matches, translate in rules:
            for link in chain:
                if matches(link):
                    # Without the cause: it may hold headers, and so the key.
                    raise translate(address, link) from None
        raise


def _chain(error: BaseException, outer: BaseException | None) -> Iterator[BaseException]:
    """``error`` and all that it came from, the members of groups included, up to ``outer``, what the caller handles.

    The library raises again ``from None``, which drops the cause and leaves the context: both are followed.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is None or link is outer or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += [link.__context__, link.__cause__]
        if isinstance(link, BaseExceptionGroup):
            waiting.extend(cast("BaseExceptionGroup[BaseException]", link).exceptions)
