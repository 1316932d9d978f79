"""WebFetch: the text of a page on the public internet."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

import trio
from msgspec import Meta

from workers.providers.provider import NetworkFailed, ProviderError
from workers.sandbox.paths import visible
from workers.sandbox.public_address import IsAllowed, checked_addresses, is_public
from workers.tools.tool import Tool, ToolArguments, ToolContext, ToolError, ToolOutput
from workers.tools.web_page import is_readable, media_type, text_of_page

if TYPE_CHECKING:
    from workers.providers.http_transport import HttpResponse

LONGEST_FETCH = 30.0
LONGEST_CONNECT = 10.0
"""Seconds for all of a call, and for one connection."""

MOST_BYTES = 5_000_000
MOST_CHARACTERS = 60_000
"""Of the body as it comes, and of the text that is returned; what is longer is cut, with a note."""

MOST_REDIRECTS = 5
_ADDRESSES_TRIED = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_DEFAULT_PORTS = {"http": 80, "https": 443}


class WebFetchArguments(ToolArguments, frozen=True, kw_only=True):
    """What the model gives."""

    url: str
    prompt: Annotated[str | None, Meta(description="What you look for; noted above the text.")] = None


class Page(NamedTuple):
    """What was found at the end of all redirects; ``body`` is cut at `MOST_BYTES`."""

    url: str
    content_type: str
    body: bytes
    is_cut: bool


async def run(arguments: WebFetchArguments, _context: ToolContext) -> ToolOutput:
    """Fetch and convert, within a bound of time. Cancelling closes the connection."""
    return ToolOutput(output=await fetched(arguments))


async def fetched(arguments: WebFetchArguments, is_allowed: IsAllowed = is_public) -> str:
    """The text of the page, under a line that says where it is from. ``is_allowed`` decides by IP address."""
    with trio.move_on_after(LONGEST_FETCH):
        page = await fetch(arguments.url.strip(), is_allowed)
        kind, charset = media_type(page.content_type)
        text = await text_of_page(page.body, kind, charset)
        note = f"\n[cut: only the first {MOST_BYTES} bytes of the page were read]" if page.is_cut else ""
        if len(text) > MOST_CHARACTERS:
            note = f"\n[cut: {len(text) - MOST_CHARACTERS} more characters]"
        looked_for = f"; looked for: {visible(arguments.prompt)}" if arguments.prompt else ""
        source = f"[{visible(page.url)}, {visible(kind) or 'no type'}{looked_for}]"
        return f"{source}\n{text[:MOST_CHARACTERS].strip() or '(no text)'}{note}"
    raise ToolError(f"{visible(arguments.url)} took over {LONGEST_FETCH:g} s.")


async def fetch(url: str, is_allowed: IsAllowed) -> Page:
    """GET ``url``, following redirects, each of which must lead to an allowed address again; raises `ToolError`."""
    for _ in range(MOST_REDIRECTS + 1):
        answer = await _fetch_once(url, is_allowed)
        if isinstance(answer, Page):
            return answer
        url = answer
    raise ToolError(f"More than {MOST_REDIRECTS} redirects, the last to {visible(url)}.")


async def _fetch_once(url: str, is_allowed: IsAllowed) -> Page | str:
    """The page, or where the server redirects to."""
    parts, port = _split(url)
    failure = ""
    for address in (await checked_addresses(parts.hostname or "", port, is_allowed))[:_ADDRESSES_TRIED]:
        try:
            return await _get(url, address)
        except ProviderError as error:
            failure = f"{visible(str(error))}."
            if not isinstance(error, NetworkFailed):  # another address would not help
                break
    raise ToolError(failure)


async def _get(url: str, address: str) -> Page | str:
    from workers.providers.http_transport import get_pinned  # the HTTP library takes long to import

    async with get_pinned(url, address, LONGEST_CONNECT) as response:
        location = response.headers.get("location")
        if response.status in _REDIRECTS and location:
            return urljoin(url, location)
        if not 200 <= response.status < 300:
            raise ToolError(f"{visible(url)} answered with HTTP {response.status}{_phrase(response.status)}.")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ToolError(f"{visible(url)} answers compressed, though asked not to.")
        content_type = response.headers.get("content-type", "")
        kind = media_type(content_type)[0]
        if not is_readable(kind):
            raise ToolError(f"{visible(url)} is {visible(kind)}, which is no text; fetch it with Bash if you need it.")
        body, is_cut = await _read(response)
        return Page(url, content_type, body, is_cut)


async def _read(response: HttpResponse) -> tuple[bytes, bool]:
    body = bytearray()
    async for piece in response:
        body += piece
        if len(body) > MOST_BYTES:
            return bytes(body[:MOST_BYTES]), True
    return bytes(body), False


def _split(url: str) -> tuple[SplitResult, int]:
    """The parts of an address and its port; raises `ToolError` for one that can't be fetched."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ToolError(f"{visible(url)} is no address of a page.") from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ToolError(f"{visible(url)} can't be fetched: only http:// and https:// addresses can.")
    if parts.username is not None or parts.password is not None:
        raise ToolError("An address with a user name or password in it is not fetched.")
    return parts, port or _DEFAULT_PORTS[parts.scheme]


def _phrase(status: int) -> str:
    try:
        return f" ({HTTPStatus(status).phrase})"
    except ValueError:
        return ""


TOOL = Tool(
    name="WebFetch",
    description="Fetch a public web page as text (HTML becomes Markdown).",
    effect="execute",
    arguments=WebFetchArguments,
    run=run,
)
