"""ListAgents and AskUser."""

from __future__ import annotations

from dataclasses import replace

from tests.workers.tools.project import Project


async def test_the_agents_are_listed_sorted_with_what_they_do(project: Project) -> None:
    project.context = replace(project.context, agents={"task": "Does things.", "explore": "Reads."})
    assert await project.text("ListAgents") == "explore: Reads.\ntask: Does things."


async def test_where_there_are_no_agents_that_is_said(project: Project) -> None:
    assert await project.text("ListAgents") == "There are no sub-agents here."


async def test_a_question_is_answered_at_once_that_nobody_is_there(project: Project) -> None:
    output = await project.call("AskUser", question="Which one?", options=["a", "b"])
    assert output.outcome == "error"
    assert output.output.startswith("Nobody is there to answer")
