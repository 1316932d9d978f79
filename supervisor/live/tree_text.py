"""The tree of a run's agents as text: what ``corral ps`` shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from supervisor.live.figures import duration, memory, tokens
from supervisor.live.snapshot import AgentSnapshot, CurrentTool, RunSnapshot
from supervisor.terminal_text import printable

_HEADINGS = ("AGENT", "NAME", "STATE", "AGE", "TOKENS", "MEMORY", "TOOL")
_MOST_OF_TOOL = 60
_LEFT_OPEN = {"TOOL"}
"""The last column is as wide as it is: nothing stands behind it."""


def tree_text(run: RunSnapshot) -> str:
    """The run on a line, then a table with a row for each live agent below its parent's; all on lines of their own.

    Agents that have ended are counted on one line below their parent's. Tokens include an agent's sub-agents'.
    """
    rows = [_HEADINGS, *_rows(run, None, "")]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    head = f"{run.session_id}  pid {run.pid}  {one_line(run.model)}  {one_line(run.project_root)}"
    table = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join([head, *(f"  {line}" for line in table), ""])


def _rows(run: RunSnapshot, parent: str | None, indent: str) -> Iterator[Sequence[str]]:
    children = [agent for agent in run.agents if agent.parent_agent_id == parent]
    live = [agent for agent in children if agent.is_live or parent is None]
    for agent in live:
        yield _row(agent, indent)
        yield from _rows(run, agent.agent_id, indent + "  ")
    ended = [agent for agent in children if agent not in live]
    if ended:
        used = tokens(sum(agent.usage.total_tokens for agent in ended))
        yield (f"{indent}({len(ended)} ended)", "", "", "", used, "", "")


def _row(agent: AgentSnapshot, indent: str) -> Sequence[str]:
    restarts = f" ({agent.restarts} restarts)" if agent.restarts else ""
    return (
        indent + one_line(agent.agent_id),
        one_line(agent.agent_name),
        agent.state + restarts,
        duration(agent.age_ms),
        tokens(agent.usage.total_tokens),
        memory(agent.memory_bytes),
        _tool(agent.tool),
    )


def _tool(tool: CurrentTool | None) -> str:
    if tool is None:
        return ""
    text = one_line(f"{tool.name} {tool.argument}").strip()
    cut = text if len(text) <= _MOST_OF_TOOL else text[: _MOST_OF_TOOL - 3] + "..."
    return f"{cut} (+{tool.others})" if tool.others else cut


def one_line(text: str) -> str:
    """``text`` on one line, without what could steer a terminal."""
    return " ".join(printable(text).split())
