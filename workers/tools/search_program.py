"""A program of its own: prints the lines of its standard input that match a regular expression of Python's.

It runs in a process of its own because a pattern can keep the interpreter busy for ages, and only a process can be
killed. It imports nothing of ours, and is started by its path.

    python -I -S search_program.py PATTERN FLAGS MOST

The output has, for each line that matches, ``number:column:line``: the number counts from 1, the column is the byte
that the match begins at, from 1. After MOST lines it ends. FLAGS is ``i`` for either case, else empty.
"""

from __future__ import annotations

import re
import sys
import warnings


def search(pattern: str, flags: str, most: int) -> None:
    """Read lines of UTF-8 to the end, or to the match of number ``most``."""
    warnings.simplefilter("ignore")
    find = re.compile(pattern, re.IGNORECASE if "i" in flags else 0).search
    output = sys.stdout.buffer
    for number, line in enumerate(sys.stdin.buffer, start=1):
        text = line.decode().removesuffix("\n")
        match = find(text)
        if match is None:
            continue
        output.write(b"%d:%d:%s" % (number, len(text[: match.start()].encode()) + 1, line))
        output.flush()  # what was found must not be lost when a later line takes too long
        most -= 1
        if most == 0:
            return


if __name__ == "__main__":
    search(sys.argv[1], sys.argv[2], int(sys.argv[3]))
