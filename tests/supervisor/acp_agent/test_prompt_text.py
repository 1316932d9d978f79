"""Blocks of a prompt as text."""

from __future__ import annotations

import pytest

from supervisor.acp_agent.core.prompt_text import MAX_PROMPT_CHARACTERS, PromptRefused, prompt_text
from supervisor.acp_agent.core.updates import (
    Audio,
    EmbeddedResource,
    Image,
    PromptBlock,
    Resource,
    ResourceLink,
    Text,
)


def test_blocks_are_joined_in_their_order() -> None:
    blocks: list[PromptBlock] = [
        Text(text="one"),
        Text(text=" "),
        ResourceLink(name="a", uri="https://x/a"),
        Text(text="two"),
    ]
    assert prompt_text(blocks) == "one\n\n[a](https://x/a)\n\ntwo"


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("file:///a%20b/c.py", "/a b/c.py"),
        ("file://localhost/c.py", "/c.py"),
        ("file://server/c.py", "file://server/c.py"),
        ("https://x/y?z", "https://x/y?z"),
        ("http://[bad", "http://[bad"),
        ("zed:///agent/thread", "zed:///agent/thread"),
    ],
)
def test_only_a_file_of_this_machine_is_named_by_its_path(uri: str, place: str) -> None:
    assert prompt_text([ResourceLink(name="", uri=uri)]) == f"({place})"
    assert prompt_text([EmbeddedResource(resource=Resource(uri=uri, text="x"))]) == f"{place}:\nx"


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([], "empty"),
        ([Text(text="  \n")], "empty"),
        ([Text(text="look"), Image()], "image"),
        ([Audio()], "audio"),
        ([EmbeddedResource(resource=Resource(uri="file:///a.png", blob="AA=="))], "a.png"),
        ([Text(text="x" * (MAX_PROMPT_CHARACTERS + 1))], "longer"),
    ],
)
def test_what_can_not_be_taken_is_refused_with_the_reason(blocks: list[PromptBlock], words: str) -> None:
    with pytest.raises(PromptRefused, match=words):
        prompt_text(blocks)
