"""A program of its own: a page of HTML on its standard input, in UTF-8, becomes Markdown on its standard output.

It runs in a process of its own because a page can be made so that parsing it takes ages, and only a process can be
killed; and no worker has to import what it needs. It imports nothing of ours, and is started by its path.

    python -I page_program.py FOLDER

FOLDER is where the package markdownify lies, if not where Python looks.
"""

from __future__ import annotations

import re
import resource
import sys

_MOST_SECONDS = 20
_MOST_BYTES = 2_000_000_000  # of memory
_NOT_TEXT = ("script", "style", "noscript", "template", "svg", "iframe", "object", "canvas", "head")


def markdown_of(html: str) -> str:
    """The text of a page: headings, lists, tables, code and links as Markdown, images left out."""
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    soup = BeautifulSoup(html, "html.parser")
    title = soup.title.get_text(" ", strip=True) if soup.title else ""
    for element in soup(_NOT_TEXT):
        element.decompose()
    try:
        text = MarkdownConverter(heading_style="ATX", bullets="-", strip=["img"]).convert_soup(soup)
    except RecursionError:  # elements thousands deep
        text = soup.get_text("\n")
    text = re.sub(r"[^\S\n]+\n", "\n", text)
    text = re.sub(r"\n{3,}", "\n\n", text).strip()
    return f"# {title}\n\n{text}" if title and title not in text[: len(title) + 100] else text


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS, _MOST_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    sys.path.extend(sys.argv[1:])
    sys.stdout.buffer.write(markdown_of(sys.stdin.buffer.read().decode("utf-8", "replace")).encode("utf-8", "replace"))
