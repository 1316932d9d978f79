"""The table of tool names, held to the tools themselves."""

from __future__ import annotations

from protocol.agent_spec import AgentSpec
from protocol.tool_names import DELEGATING_TOOL, TOOL_EFFECTS, tools_of, unknown_tools
from workers.tools.table import TOOLS


def test_the_table_is_that_of_the_tools() -> None:
    assert [(tool.name, tool.effect) for tool in TOOLS] == list(TOOL_EFFECTS.items())


def test_an_empty_list_allows_all_tools() -> None:
    assert tools_of(AgentSpec(name="a", system_prompt="")) == tuple(TOOL_EFFECTS)


def test_disallowed_tools_are_taken_off_the_allowed_ones() -> None:
    spec = AgentSpec(name="a", system_prompt="", allowed_tools=("Bash", "Read"), disallowed_tools=("Bash",))
    assert tools_of(spec) == ("Read",)


def test_the_order_is_that_of_the_table_not_of_the_file() -> None:
    spec = AgentSpec(name="a", system_prompt="", allowed_tools=("Bash", "Read"))
    assert tools_of(spec) == ("Read", "Bash")


def test_the_deepest_agents_do_not_delegate() -> None:
    spec = AgentSpec(name="a", system_prompt="")
    assert DELEGATING_TOOL not in tools_of(spec, may_delegate=False)


def test_unknown_names_are_told() -> None:
    spec = AgentSpec(name="a", system_prompt="", allowed_tools=("Read", "Zap"), disallowed_tools=("Bake",))
    assert unknown_tools(spec) == ("Bake", "Zap")
