"""The body of a web page as text that a model can read."""

from __future__ import annotations

import re
import sys
from email.message import Message
from importlib.util import find_spec
from pathlib import Path

import trio

from protocol.codec import clean_text
from workers.sandbox.command_output import plain_text
from workers.sandbox.process import Child, open_process
from workers.tools.text_file import decode
from workers.tools.tool import ToolError

_PROGRAM = Path(__file__).with_name("page_program.py")
_HTML = frozenset({"text/html", "application/xhtml+xml"})
_TEXT = re.compile(r"text/.+|application/(?:.+\+)?(?:json|xml|yaml|toml|javascript|x-ndjson|ld\+json|x-sh|sql)|.+\+xml")
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([\w:.-]{1,40})", re.IGNORECASE)
_RECEIVED = 65_536


def media_type(content_type: str) -> tuple[str, str]:
    """Type and charset of a ``Content-Type`` header, in lower case; empty where it says nothing. Source: RFC 9110."""
    if not content_type:
        return "", ""
    header = Message()
    header["content-type"] = content_type
    return header.get_content_type(), (header.get_content_charset() or "")


def is_readable(kind: str) -> bool:
    """Whether a body of that type is text; without a type only the body tells."""
    return not kind or kind in _HTML or _TEXT.fullmatch(kind) is not None


async def text_of_page(body: bytes, kind: str, charset: str) -> str:
    """``body`` as text, HTML as Markdown; raises `ToolError` for a body that is no text."""
    if not kind and decode(body) is None:
        raise ToolError("What came is no text.")
    if kind in _HTML or (not kind and body.lstrip()[:1] == b"<"):
        declared = _META_CHARSET.search(body[:4_096])
        text = _decoded(body, charset or (declared[1].decode("ascii", "replace") if declared else ""))
        return plain_text(clean_text(await _markdown_of(text)))
    return plain_text(clean_text(_decoded(body, charset)))


def _decoded(body: bytes, charset: str) -> str:
    try:
        if charset:
            return body.decode(charset, "replace")
    except (LookupError, ValueError):  # unknown, or an encoding of bytes and no text
        pass
    file = decode(body)
    return body.decode("utf-8", "replace") if file is None else file.text


async def _markdown_of(html: str) -> str:
    spec = find_spec("markdownify")
    if spec is None or spec.origin is None:
        raise ToolError("HTML can't be read here: the package markdownify is not installed.")
    command = [sys.executable, "-I", str(_PROGRAM), str(Path(spec.origin).parent.parent)]
    pieces: list[bytes] = []
    async with open_process(command, cwd=Path("/"), env={}, stdin=True, stderr=False, grace=0) as child:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_give, child, html.encode("utf-8", "replace"))
            assert child.stdout is not None
            while data := await child.stdout.receive_some(_RECEIVED):
                pieces.append(data)
        if await child.wait() != 0:
            raise ToolError("The page can't be read: its HTML is too large or too tangled.")
    return b"".join(pieces).decode("utf-8", "replace")


async def _give(child: Child, content: bytes) -> None:
    assert child.stdin is not None
    async with child.stdin:
        try:
            await child.stdin.send_all(content)
        except trio.BrokenResourceError:
            return  # its exit code says what happened
