"""What an external agent's tool call is about and what came of it, as text that a person can read."""

from __future__ import annotations

import json
from collections.abc import Mapping

from protocol.codec import clean_text
from workers.acp.messages import object_of, objects_of
from workers.sandbox.command_output import HeadAndTail, plain_text


def block_text(block: Mapping[str, object]) -> str:
    """A content block: its text, or in brackets what it is. Source: Agent Client Protocol v1, "Content"."""
    match block.get("type"):
        case "text":
            return _string(block.get("text"))
        case "resource_link":
            return f"[{_string(block.get('name')) or 'resource'}: {_string(block.get('uri'))}]"
        case "resource":
            resource = object_of(block.get("resource"))
            text = resource.get("text")
            return text if isinstance(text, str) else f"[resource: {_string(resource.get('uri'))}]"
        case "image" | "audio" as kind:
            return f"[{kind}: {_string(block.get('mimeType')) or 'of an unknown kind'}]"
        case _:
            return ""


def output_text(content: object, raw_output: object) -> str:
    """What a tool call came to: its content where there is any, else its raw output; bounded, without controls."""
    parts = [text for item in objects_of(content) if (text := _content_text(item))]
    kept = HeadAndTail()
    kept.add(clean_text("\n".join(parts) or _raw_text(raw_output)))
    return plain_text(kept.text()).rstrip("\n")


def arguments_text(raw_input: object, title: str, locations: object) -> str:
    """The text of the JSON object that stands for a call's arguments.

    That is the raw input where it is an object; else what is known of the call besides: ``title``, the ``paths`` that
    it is about, and the ``input`` as it is.
    """
    fields = dict(object_of(raw_input))
    if not fields:
        paths = [path for location in objects_of(locations) if isinstance(path := location.get("path"), str)]
        fields = {
            **({"title": title} if title else {}),
            **({"paths": paths} if paths else {}),
            **({"input": raw_input} if raw_input not in (None, {}) else {}),
        }
    return clean_text(json.dumps(fields, ensure_ascii=False, separators=(",", ":")))


def _content_text(item: Mapping[str, object]) -> str:
    match item.get("type"):
        case "content":
            return block_text(object_of(item.get("content")))
        case "diff":
            return _diff_text(item)
        case "terminal":
            return f"[terminal: {_string(item.get('terminalId'))}]"
        case _:
            return ""


def _diff_text(item: Mapping[str, object]) -> str:
    """Both texts, a mark before each line: a real comparison could take an agent's size of file too long."""
    old, new = _string(item.get("oldText")), _string(item.get("newText"))
    head = f"[{'changed' if isinstance(item.get('oldText'), str) else 'new'}: {_string(item.get('path'))}]"
    return "\n".join([head, *(f"-{line}" for line in old.splitlines()), *(f"+{line}" for line in new.splitlines())])


def _raw_text(raw_output: object) -> str:
    if raw_output is None:
        return ""
    return raw_output if isinstance(raw_output, str) else json.dumps(raw_output, ensure_ascii=False)


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""
