"""The arguments of a call: the JSON schema that a model is told, and how what it sends is read.

Both are made from the tool's struct of arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import cast

import msgspec

from protocol.content import ToolCall
from workers.providers.provider import ToolSchema
from workers.tools.table import AnyTool
from workers.tools.tool import ToolArguments, ToolError

_WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_DROPPED = {"title", "$defs", "properties"}


def schemas(tools: Iterable[AnyTool]) -> tuple[ToolSchema, ...]:
    """What a model is told of ``tools``, in the same order."""
    return tuple(_schema(tool) for tool in tools)


def parse_arguments(tool: AnyTool, call: ToolCall) -> ToolArguments:
    """The arguments of ``call`` as ``tool`` takes them.

    Lenient where there is no doubt: numbers and booleans as text, null for what is optional, a list or object that is
    JSON in a text, fields that don't exist. Raises `ToolError` with a sentence that names the field and what belongs
    there, and with ``call.fault`` as it is.
    """
    if call.fault:
        raise ToolError(call.fault)
    try:
        return _decoded(tool, call.arguments.encode())
    except msgspec.ValidationError as error:
        complaint = str(error)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise ToolError(f"The arguments of {tool.name} are no valid JSON: {error}.") from None
    try:
        return _decoded(tool, _unwrapped(call.arguments.encode()))
    except msgspec.ValidationError:
        raise ToolError(f"{tool.name}: {_in_words(complaint)}. {_usage(tool)}") from None


def _decoded(tool: AnyTool, arguments: bytes) -> ToolArguments:
    return cast(ToolArguments, msgspec.json.decode(arguments, type=tool.arguments, strict=False))


def _unwrapped(arguments: bytes) -> bytes:
    """``arguments`` with each field that is the text of a JSON list or object replaced by that list or object."""
    fields = msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    for name, raw in fields.items():
        if bytes(raw).startswith(b'"'):
            text = msgspec.json.decode(raw, type=str).strip()
            if text.startswith(("[", "{")) and _is_json(text):
                fields[name] = msgspec.Raw(text)
    return msgspec.json.encode(fields)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def _in_words(complaint: str) -> str:
    """What msgspec says of a wrong value, with the field in front and the words that a model knows."""
    what, _, place = complaint.partition(" - at `$.")
    for word, plain in _WORDS.items():
        what = what.replace(f"`{word}`", plain).replace(f"`{word} | null`", plain)
    what = what.replace("Object missing required field", "missing the required field")
    what = what[0].lower() + what[1:]
    return f"`{place.rstrip('`')}`: {what}" if place else what


def _usage(tool: AnyTool) -> str:
    fields = [f"{field.name}{'' if field.required else '?'}" for field in msgspec.structs.fields(tool.arguments)]
    return f"It takes {{{', '.join(fields)}}}."


@cache
def _schema(tool: AnyTool) -> ToolSchema:
    whole = msgspec.json.schema(tool.arguments)
    definitions = cast(dict[str, object], whole.get("$defs", {}))
    parameters = cast(dict[str, object], _inlined(whole, definitions))
    parameters.pop("$defs", None)
    parameters.pop("description", None)  # the docstring of the struct, which is for us
    text = msgspec.json.encode(parameters).decode()
    return ToolSchema(name=tool.name, description=tool.description, parameters=text)


def _inlined(node: object, definitions: dict[str, object]) -> object:
    """``node`` with each ``$ref`` replaced by what it refers to.

    Titles go, and so does the null of optional fields: servers and models know better what to do without. So does what
    goes without saying: each word is paid for in every call.
    """
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in cast(list[object], node)]
    if not isinstance(node, dict):
        return node
    fields = cast(dict[str, object], node)
    if "$ref" in fields:
        definition = cast(dict[str, object], definitions[str(fields["$ref"]).removeprefix("#/$defs/")])
        # Without its description, which is the docstring of a struct, and for us.
        return _inlined({key: value for key, value in definition.items() if key != "description"}, definitions)
    inlined = {key: _inlined(value, definitions) for key, value in fields.items() if key not in _DROPPED}
    if "properties" in fields:
        properties = cast(dict[str, object], fields["properties"])  # whose keys are names, "title" too if there is one
        inlined["properties"] = {name: _inlined(value, definitions) for name, value in properties.items()}
    if "anyOf" in inlined:
        choices = [choice for choice in cast(list[object], inlined.pop("anyOf")) if choice != {"type": "null"}]
        if len(choices) == 1:
            inlined = {**cast(dict[str, object], choices[0]), **inlined}
        else:
            inlined["anyOf"] = choices
    for name in ("default", "required"):
        if name in inlined and not inlined[name]:  # null, false, an empty list: what is left out is just that
            del inlined[name]
    if "enum" in inlined:
        inlined.setdefault("type", "string")
    return inlined
