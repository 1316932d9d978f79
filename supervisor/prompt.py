"""Where the prompt of a one-shot run comes from, and what joins it.

A prompt is given on the command line, in its variable or in a file; else it is standard input. Behind a given one go
the files that it names as ``@FILE``, and then what comes through a pipe. Only what a person gave is searched for
``@FILE``, never the piped text: that may be somebody else's.
"""

from __future__ import annotations

import io
import os
import re
import select
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from protocol.codec import clean_text
from supervisor.errors import WrongUsage
from supervisor.flags import FlagValues
from supervisor.regular_file import read_beginning

MAX_PROMPT_BYTES = 4 * 1024 * 1024
MAX_MENTION_BYTES = 256 * 1024
"""Of one file that is named in the prompt; the rest of it is left out, and the agent can read it."""
MAX_MENTIONS = 20
FROM_STDIN = "-"
STDIN_SECONDS = 3.0

_NO_PROMPT = 'there is no prompt: give one with corral -p "TEXT", or pipe it in'
_MENTION = re.compile(r"(?<!\S)@(?:\"([^\"\n]+)\"|(\S+))")
_AFTER_A_NAME = ".,;:!?)]}'\""


def given_prompt(values: FlagValues, stdin: TextIO | None) -> str | None:
    """The prompt on the command line, in its variable or file; None where it is to come from standard input.

    That is for ``-p -``, or where no prompt is given and standard input is no terminal. Raises `WrongUsage` for no
    prompt, an empty one, or two. What is no text in UTF-8 becomes U+FFFD, here and below.
    """
    if len(values.words) > 1:
        raise WrongUsage("the prompt must be one argument: put it in quotes")
    file = values.text("prompt-file")
    on_line = [*values.words, *([FROM_STDIN] if values.is_given("prompt") else [])]
    if len(on_line) > 1 or (on_line and values.is_given("prompt-file")):
        raise WrongUsage("there are two prompts: give one, with -p, --prompt-file or without")
    if on_line or file is None:
        text = values.words[0] if values.words else values.text("prompt")
    else:
        text = FROM_STDIN if file == FROM_STDIN else _read_prompt_file(file)
    if text is None and (stdin is None or stdin.closed or stdin.isatty()):
        raise WrongUsage(_NO_PROMPT)
    return None if text is None or text == FROM_STDIN else _not_empty(clean_text(text))


def piped_prompt(stdin: TextIO | None) -> str:
    """All of standard input; raises `WrongUsage` if it is closed, empty, or longer than `MAX_PROMPT_BYTES`."""
    if stdin is None or stdin.closed:
        raise WrongUsage("standard input is closed: there is no prompt to read from it")
    return _not_empty(_read_all(stdin))


def joined_prompt(
    given: str, stdin: TextIO | None, folders: Sequence[Path], seconds: float = STDIN_SECONDS
) -> tuple[str, list[str]]:
    """``given`` with the files it names and what comes through a pipe behind it, and notes for a person.

    A relative ``@FILE`` is looked up in ``folders``, the first that has it wins. Standard input is left alone where it
    is a terminal, or is silent for ``seconds``; once it has begun it is read to its end. Raises `WrongUsage`.
    """
    mentions, notes = _mentioned(given, folders)
    parts = [given, *mentions]
    if stdin is not None and not stdin.closed and not stdin.isatty():
        if _has_begun(stdin, seconds):
            parts.append(_read_all(stdin))
        else:
            notes.append(f"standard input was silent for {seconds:g} s and is left alone; < /dev/null saves the wait")
    prompt = "\n\n".join(part for part in parts if part.strip())
    if len(prompt) > MAX_PROMPT_BYTES:
        raise _too_long()
    return prompt, notes


# -- standard input ---------------------------------------------------------------------------------------------------


def _has_begun(stdin: TextIO, seconds: float) -> bool:
    """Whether there is anything to read within ``seconds``: a byte, or the end."""
    try:
        ready, _, _ = select.select([stdin.fileno()], [], [], seconds)
    except io.UnsupportedOperation:  # no file: it never blocks
        return True
    except (OSError, ValueError):
        return False
    return bool(ready)


def _read_all(stdin: TextIO) -> str:
    try:
        content = stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    except OSError as error:
        raise WrongUsage(f"the prompt can't be read from standard input: {error.strerror or error}") from None
    if len(content) > MAX_PROMPT_BYTES:
        raise _too_long()
    return content.decode("utf-8", "replace")


# -- files ------------------------------------------------------------------------------------------------------------


def _read_prompt_file(name: str) -> str:
    """The file's text. A pipe may stand for it, as a shell's ``<(command)`` does."""
    try:
        with Path(name).open("rb") as file:
            content = file.read(MAX_PROMPT_BYTES + 1)
    except OSError as error:
        raise WrongUsage(f"the prompt file {name} can't be read: {error.strerror or error}") from None
    except ValueError:  # a NUL in the name
        raise WrongUsage("the name of the prompt file is no name") from None
    if len(content) > MAX_PROMPT_BYTES:
        raise _too_long()
    return content.decode("utf-8", "replace")


def _mentioned(text: str, folders: Sequence[Path]) -> tuple[list[str], list[str]]:
    """The content of each file named in ``text``, once and in their order, and notes. What is no file stays text."""
    words = dict.fromkeys(quoted or bare for quoted, bare in _MENTION.findall(text))
    files = dict(file for word in words if (file := _find(word, folders)) is not None)
    found: list[str] = []
    notes: list[str] = []
    for name, path in files.items():
        if len(found) == MAX_MENTIONS:
            notes.append(f"only the first {MAX_MENTIONS} files that the prompt names are put behind it")
            break
        try:
            content = read_beginning(path, MAX_MENTION_BYTES + 1)
        except OSError as error:
            raise WrongUsage(f"@{name} can't be read: {error.strerror or error}") from None
        if b"\0" in content:
            notes.append(f"@{name} is no text and is not put behind the prompt")
            continue
        if len(content) > MAX_MENTION_BYTES:
            notes.append(f"@{name} is cut after {MAX_MENTION_BYTES} bytes")
            content = content[:MAX_MENTION_BYTES] + b"\n[the rest of the file is left out]"
        if not path.resolve().is_relative_to(folders[0]):
            notes.append(f"@{name} lies outside the project; its content goes to the model")
        found.append(f"@{name}:\n{content.decode('utf-8', 'replace')}")
    return found, notes


def _find(word: str, folders: Sequence[Path]) -> tuple[str, Path] | None:
    """The name in ``word``, without the punctuation of the sentence behind it if need be, and the file it names."""
    for spelling in dict.fromkeys((word, word.rstrip(_AFTER_A_NAME))):
        try:
            for folder in folders:
                path = folder / os.path.expanduser(spelling)  # noqa: PTH111 - a ~ of an unknown user stays as it is
                if spelling and path.is_file():
                    return spelling, path
        except (OSError, ValueError):  # too long for a name, or with a NUL
            continue
    return None


def _not_empty(text: str) -> str:
    if not text.strip():
        raise WrongUsage(_NO_PROMPT)
    return text


def _too_long() -> WrongUsage:
    return WrongUsage(f"the prompt is longer than {MAX_PROMPT_BYTES} bytes: put it in a file and name that")
