"""What a command writes: line by line while it runs, and in the end as a text with a bound.

No input or output here; it is fed with bytes.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable

HEAD = 10_000
TAIL = 20_000
"""Characters that are kept of the beginning and the end. The end is worth more: errors and sums stand there."""

LIVE_LINES = 10_000
LIVE_CHARACTERS = 1_000_000
"""How much of a call's output is shown live."""

LONGEST_LINE = 8_192
"""Characters after which a line without end is passed on in pieces."""

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS, SOS, PM, APC: titles, links
    r"|\x1b[ -/]*[0-~]"  # all others
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def plain_text(text: str) -> str:
    """``text`` without what is meant for a terminal: escape sequences go, a carriage return ends a line.

    All other control characters become U+FFFD. Source: ECMA-48.
    """
    if "\x1b" in text:
        text = _ESCAPE_SEQUENCE.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("\ufffd", text)


class HeadAndTail:
    """The first and the last characters of a text of any length, in bounded memory."""

    def __init__(self, head: int = HEAD, tail: int = TAIL) -> None:
        self._head: list[str] = []
        self._head_room = head
        self._tail: deque[str] = deque()
        self._tail_length = 0
        self._tail_limit = tail
        self._dropped = 0

    def add(self, text: str) -> None:
        """Append ``text``."""
        if self._head_room > 0:
            self._head.append(text[: self._head_room])
            text = text[self._head_room :]
            self._head_room -= len(self._head[-1])
        if not text:
            return
        self._tail.append(text)
        self._tail_length += len(text)
        while self._tail_length - len(self._tail[0]) >= self._tail_limit:
            gone = len(self._tail.popleft())
            self._tail_length -= gone
            self._dropped += gone

    def text(self) -> str:
        """What is kept, with a note of how much was left out between whole lines of head and tail."""
        head, tail = "".join(self._head), "".join(self._tail)
        if self._dropped + len(tail) <= self._tail_limit:
            return head + tail
        kept_tail = tail[-self._tail_limit :]
        kept_head = head[: head.rfind("\n") + 1] or head
        kept_tail = kept_tail[kept_tail.find("\n", 0, -1) + 1 :]
        total = len(head) + self._dropped + len(tail)
        left_out = total - len(kept_head) - len(kept_tail)
        line_end = "" if kept_head.endswith("\n") else "\n"
        return f"{kept_head}{line_end}[... {left_out} characters left out ...]\n{kept_tail}"


class CommandOutput:
    """Takes the bytes of stdout and stderr as they come, gives lines to ``emit_line`` and keeps the text.

    A line of one stream is never broken by the other, unless it is longer than `LONGEST_LINE`.
    """

    def __init__(self, emit_line: Callable[[str, bool], None]) -> None:
        self._emit_line = emit_line
        self._kept = HeadAndTail()
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in (False, True)}
        self._unfinished = {False: "", True: ""}
        self._live_lines = LIVE_LINES
        self._live_characters = LIVE_CHARACTERS

    def feed(self, data: bytes, is_stderr: bool) -> bool:
        """Take ``data``; True if any line was emitted."""
        text = self._unfinished[is_stderr] + self._decoders[is_stderr].decode(data)
        end = text.rfind("\n") + 1
        if end == 0 and len(text) >= LONGEST_LINE:
            end = len(text)
        self._unfinished[is_stderr] = text[end:]
        return end > 0 and self._pass_on(text[:end], is_stderr)

    def finish(self) -> None:
        """The command is over: its last lines, if they had no end, have come to one."""
        for is_stderr, decoder in self._decoders.items():
            rest = self._unfinished[is_stderr] + decoder.decode(b"", True)
            self._unfinished[is_stderr] = ""
            if rest:
                self._pass_on(rest, is_stderr)

    def text(self) -> str:
        """All that the command wrote, within the bound, without a line end at its end."""
        return plain_text(self._kept.text()).rstrip("\n")

    def _pass_on(self, text: str, is_stderr: bool) -> bool:
        self._kept.add(text)
        if self._live_lines <= 0:
            return False
        for line in plain_text(text).removesuffix("\n").split("\n"):
            self._live_lines -= 1
            self._live_characters -= len(line) + 1
            if self._live_lines <= 0 or self._live_characters <= 0:
                self._live_lines = 0
                self._emit_line("[There is more output; it is not shown live.]", False)
                break
            self._emit_line(line, is_stderr)
        return True
