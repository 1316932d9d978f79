"""A client's prompt, which comes in blocks, as the text that an agent is given."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from supervisor.acp_agent.core.updates import (
    Audio,
    EmbeddedResource,
    Image,
    PromptBlock,
    Resource,
    ResourceLink,
    Text,
)

MAX_PROMPT_CHARACTERS = 4 * 1024 * 1024


class PromptRefused(Exception):
    """The prompt can't be taken; the message is a sentence that says why."""


def prompt_text(blocks: Iterable[PromptBlock]) -> str:
    """The text of ``blocks``, in order; embedded files follow where they were embedded. Raises `PromptRefused`."""
    text = "\n\n".join(part for part in map(_part, blocks) if part.strip())
    if not text:
        raise PromptRefused("the prompt is empty")
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise PromptRefused(f"the prompt is longer than {MAX_PROMPT_CHARACTERS} characters: link to files instead")
    return text


def _part(block: PromptBlock) -> str:
    match block:
        case Text(text=text):
            return text
        case ResourceLink(name=name, uri=uri):
            place = _place(uri)
            return f"[{name}]({place})" if name and name != place else f"({place})"
        case EmbeddedResource(resource=Resource(uri=uri, text=str(text))):
            return f"{_place(uri)}:\n{text}"
        case EmbeddedResource(resource=resource):
            raise PromptRefused(f"{resource.uri} is embedded as bytes: only text can be taken")
        case Image() | Audio():
            raise PromptRefused(f"corral takes text, links and embedded text, no {type(block).__name__.lower()}")


def _place(uri: str) -> str:
    """The path of a file, which the agent's tools take; any other address as it is."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri
    return unquote(parts.path) if parts.scheme == "file" and parts.netloc in ("", "localhost") else uri
