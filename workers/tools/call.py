"""Runs one tool call: whatever happens, it becomes a result the model can read."""

from __future__ import annotations

from protocol.content import ToolCall
from workers.tools.arguments import parse_arguments
from workers.tools.table import AnyTool
from workers.tools.tool import ToolContext, ToolError, ToolOutput


async def run_call(tool: AnyTool, call: ToolCall, context: ToolContext) -> ToolOutput:
    """Run ``call`` with ``tool``. Never raises for what the model or the tool did wrong; cancellation passes."""
    try:
        return await tool.run(parse_arguments(tool, call), context)
    except MemoryError:
        raise  # there is nothing left to go another way with: the ceiling ends the agent
    except ToolError as error:
        return ToolOutput(output=str(error), outcome="error")
    except OSError as error:
        return ToolOutput(output=f"{tool.name} failed: {error.strerror or error}", outcome="error")
    except Exception as error:
        # A defect of the tool must not end the agent: the model can go another way.
        return ToolOutput(output=f"{tool.name} failed: {type(error).__name__}: {error}", outcome="error")
