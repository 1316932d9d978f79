from __future__ import annotations

from tests.workers.tools.project import Project


async def test_a_sub_agent_is_asked_for_by_name_and_its_answer_is_the_output(project: Project) -> None:
    assert await project.text("InvokeAgent", agent_name="explore", prompt="Look.") == "explore is done"
    assert project.delegated == [("explore", "Look.")]
