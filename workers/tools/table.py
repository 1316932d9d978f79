"""The tools there are. A new one is one module and one line here."""

from __future__ import annotations

from typing import Any, TypeAlias

from workers.tools import (
    ask_user,
    bash,
    delete,
    edit,
    glob,
    grep,
    invoke_agent,
    list_agents,
    list_dir,
    read,
    todo_write,
    web_fetch,
    write,
)
from workers.tools.tool import Tool

AnyTool: TypeAlias = Tool[Any]
"""A tool whatever its arguments are: each takes only its own, which `parse_arguments` makes."""

TOOLS: tuple[AnyTool, ...] = (
    read.TOOL,
    write.TOOL,
    edit.TOOL,
    delete.TOOL,
    list_dir.TOOL,
    grep.TOOL,
    glob.TOOL,
    bash.TOOL,
    web_fetch.TOOL,
    todo_write.TOOL,
    ask_user.TOOL,
    list_agents.TOOL,
    invoke_agent.TOOL,
)

TOOLS_BY_NAME: dict[str, AnyTool] = {tool.name: tool for tool in TOOLS}
