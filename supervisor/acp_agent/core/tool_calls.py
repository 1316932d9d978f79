"""How a tool call is shown to a client: its title, kind, places and changes, all read from its arguments.

Arguments are the model's: what does not fit a tool shows less, and is never an error.
"""

from __future__ import annotations

from collections.abc import Callable
from posixpath import join, normpath

import msgspec

from protocol.records import TodoItem, TodoPriority, TodoStatus
from protocol.tool_names import DELEGATING_TOOL, SHELL_TOOL
from supervisor.acp_agent.core.updates import Diff, Location, PlanEntry, ToolContent, ToolKind
from supervisor.terminal_text import printable

LONGEST_TITLE = 200
"""In characters."""

_KINDS: dict[str, ToolKind] = {
    "Read": "read",
    "List": "read",
    "Write": "edit",
    "Edit": "edit",
    "Delete": "delete",
    "Grep": "search",
    "Glob": "search",
    "Bash": "execute",
    "WebFetch": "fetch",
    "TodoWrite": "think",
    "InvokeAgent": "think",
}
"""A tool that is not here is of kind ``other``."""


class _Replacement(msgspec.Struct, frozen=True, kw_only=True):
    old_str: str = ""
    new_str: str = ""


class _Todo(msgspec.Struct, frozen=True, kw_only=True):
    content: str
    status: TodoStatus = "pending"
    priority: TodoPriority = "medium"


class _Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of our tools that a client is shown something of, all tools in one."""

    file_path: str | None = None
    path: str | None = None
    start_line: int | None = None
    pattern: str | None = None
    command: str | None = None
    url: str | None = None
    agent_name: str | None = None
    prompt: str | None = None
    content: str | None = None
    replacements: tuple[_Replacement, ...] = ()


class _TodoArguments(msgspec.Struct, frozen=True, kw_only=True):
    items: tuple[_Todo, ...] = ()


class ShownCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a client is shown of a call before it runs."""

    title: str
    kind: ToolKind
    locations: tuple[Location, ...] = ()
    changes: tuple[ToolContent, ...] = ()


def shown_call(name: str, arguments: bytes | str, root: str, agent: str = "") -> ShownCall:
    """The call of the tool ``name`` below the folder ``root``; ``agent`` is the sub-agent that makes it."""
    found = _read(arguments)
    line = found.start_line if found.start_line is not None and found.start_line > 0 else None
    path = found.file_path or found.path
    text = printable(" ".join(_title(name, found).split()))
    return ShownCall(
        title=f"{agent}: {text}"[:LONGEST_TITLE] if agent else text[:LONGEST_TITLE],
        kind=_KINDS.get(name, "other"),
        locations=(Location(path=_absolute(root, path), line=line),) if path else (),
        changes=_changes(name, found, root),
    )


def plan_entries(items: tuple[TodoItem, ...]) -> tuple[PlanEntry, ...]:
    """The list of an agent as a plan."""
    return tuple(PlanEntry(content=item.content, status=item.status, priority=item.priority) for item in items)


def plan_in(arguments: str) -> tuple[PlanEntry, ...] | None:
    """The plan in the arguments of a stored call of TodoWrite; None where they are none."""
    try:
        items = msgspec.json.decode(arguments, type=_TodoArguments).items
    except msgspec.DecodeError:
        return None
    return tuple(PlanEntry(content=item.content, status=item.status, priority=item.priority) for item in items)


def _read(arguments: bytes | str) -> _Arguments:
    try:
        return msgspec.json.decode(arguments, type=_Arguments)
    except msgspec.ValidationError:
        pass
    except msgspec.DecodeError:
        return _Arguments()
    # One argument of a wrong type must not hide the others.
    values = msgspec.json.decode(arguments, type=dict[str, object])
    fitting = {name: value for name, value in values.items() if isinstance(value, str)}
    return msgspec.convert({name: value for name, value in fitting.items() if name in _TEXTS}, _Arguments)


_TEXTS = frozenset({"file_path", "path", "pattern", "command", "url", "agent_name", "prompt", "content"})


_TITLES: dict[str, Callable[[_Arguments], str | None]] = {
    SHELL_TOOL: lambda found: found.command,
    DELEGATING_TOOL: lambda found: f"{found.agent_name}: {found.prompt}" if found.agent_name else None,
    "Grep": lambda found: f"Grep {found.pattern} {found.path or ''}" if found.pattern else None,
    "Glob": lambda found: f"Glob {found.pattern}" if found.pattern else None,
    "WebFetch": lambda found: f"WebFetch {found.url}" if found.url else None,
}


def _title(name: str, found: _Arguments) -> str:
    own = _TITLES.get(name)
    title = own(found) if own is not None else None
    return title or f"{name} {found.file_path or found.path or ''}"


def _changes(name: str, found: _Arguments, root: str) -> tuple[ToolContent, ...]:
    """The changes that the call is about to make. A client shows them beside the file, which it can read itself."""
    if not found.file_path:
        return ()
    path = _absolute(root, found.file_path)
    if name == "Write" and found.content is not None:
        return (Diff(path=path, new_text=found.content),)
    if name == "Edit":
        return tuple(Diff(path=path, old_text=each.old_str, new_text=each.new_str) for each in found.replacements)
    return ()


def _absolute(root: str, path: str) -> str:
    return normpath(join(root, path))
