"""Where the prompt of a one-shot run comes from."""

from __future__ import annotations

from typing import TextIO

from protocol.codec import clean_text
from supervisor.errors import WrongUsage
from supervisor.flags import FlagValues

MAX_PROMPT_BYTES = 4 * 1024 * 1024
FROM_STDIN = "-"

_NO_PROMPT = 'there is no prompt: give one with corral -p "TEXT", or pipe it in'


def given_prompt(values: FlagValues, stdin: TextIO | None) -> str | None:
    """The prompt on the command line or in its variable; None where it is to come from standard input.

    That is for ``-p -``, or where no prompt is given and standard input is no terminal. Raises `WrongUsage` for no
    prompt, an empty one, or two. What is no text in UTF-8 becomes U+FFFD, here and below.
    """
    if len(values.words) > 1:
        raise WrongUsage("the prompt must be one argument: put it in quotes")
    if values.words and values.is_given("prompt"):
        raise WrongUsage("there are two prompts: give one, with -p or without")
    text = values.words[0] if values.words else values.text("prompt")
    if text is None and (stdin is None or stdin.closed or stdin.isatty()):
        raise WrongUsage(_NO_PROMPT)
    return None if text is None or text == FROM_STDIN else _not_empty(clean_text(text))


def piped_prompt(stdin: TextIO | None) -> str:
    """All of standard input; raises `WrongUsage` if it is closed, empty, or longer than `MAX_PROMPT_BYTES`."""
    if stdin is None or stdin.closed:
        raise WrongUsage("standard input is closed: there is no prompt to read from it")
    try:
        content = stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    except OSError as error:
        raise WrongUsage(f"the prompt can't be read from standard input: {error.strerror or error}") from None
    if len(content) > MAX_PROMPT_BYTES:
        raise WrongUsage(f"the prompt is longer than {MAX_PROMPT_BYTES} bytes: put it in a file and name that")
    return _not_empty(content.decode("utf-8", "replace"))


def _not_empty(text: str) -> str:
    if not text.strip():
        raise WrongUsage(_NO_PROMPT)
    return text
