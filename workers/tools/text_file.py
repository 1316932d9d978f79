"""Text as it lies in a file: which bytes are text, in which encoding, with which line ends.

Decoding and encoding again gives the same bytes for every file that is text at all.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    # The 32-bit mark begins with the 16-bit one, so it comes first.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SNIFFED = 8_192
_NOT_IN_TEXT = re.compile(rb"[\x00-\x07\x0e-\x1a\x1c-\x1f]")


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """A decoded file. ``text`` has the file's own line ends, and not its byte order mark."""

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""

    @property
    def has_only_crlf(self) -> bool:
        """Whether every line ends with CR LF, and there is one that does."""
        pairs = self.text.count("\r\n")
        return pairs > 0 and pairs == self.text.count("\n") and pairs == self.text.count("\r")

    def encoded(self, text: str) -> bytes:
        """The bytes of the file with ``text`` as its text; raises `UnicodeEncodeError` where its encoding has none."""
        return self.mark + text.encode(self.encoding)


def decode(content: bytes) -> TextFile | None:
    """``content`` as text; None for a binary.

    A byte order mark decides; without one it is UTF-8, else Latin-1 if it looks like text in an old 8-bit encoding
    (Latin-1, because it gives every byte a character and so takes nothing away). A NUL byte makes a binary.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if content.startswith(mark):
            return _decoded(content[len(mark) :], encoding, mark)
    if b"\0" in content[:_SNIFFED]:
        return None
    decoded = _decoded(content, "utf-8")
    if decoded is None and not _NOT_IN_TEXT.search(content[:_SNIFFED]):
        return _decoded(content, "latin-1")
    return decoded


def _decoded(content: bytes, encoding: str, mark: bytes = b"") -> TextFile | None:
    try:
        return TextFile(text=content.decode(encoding), encoding=encoding, mark=mark)
    except UnicodeDecodeError:
        return None


def split_lines(text: str) -> list[str]:
    """The lines of ``text`` without their ends (LF or CR LF); no empty one after the last line end."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if not lines[-1]:
        del lines[-1]
    return lines
