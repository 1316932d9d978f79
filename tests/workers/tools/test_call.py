"""Running a call: whatever is in it, a result comes out that every encoder takes."""

from __future__ import annotations

import pytest
import trio

from protocol.codec import clean_text, encode_json
from protocol.content import ToolCall
from tests.workers.tools.project import Project
from workers.tools.arguments import schemas
from workers.tools.call import run_call
from workers.tools.table import TOOLS, AnyTool

SURROGATE = "\\ud800"
ARGUMENTS = (
    '{"file_path":"X","content":"X","replacements":[{"old_str":"X","new_str":"X"}],"pattern":"X","path":"X",'
    '"command":"X","url":"X","prompt":"X","items":[{"content":"X"}],"question":"X","options":["X"],"agent_name":"X"}'
)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
@pytest.mark.parametrize("text", [SURROGATE, f"a{SURROGATE}b", f"http://{SURROGATE}/", "\\u0000"])
async def test_lone_surrogates_in_any_argument_do_no_harm(project: Project, tool: AnyTool, text: str) -> None:
    call = ToolCall(id="1", name=tool.name, arguments=ARGUMENTS.replace("X", text))
    with trio.fail_after(30):
        output = await run_call(tool, call, project.context)
    assert output.output
    encode_json(clean_text(output.output))


async def test_lone_surrogates_in_names_and_contents_do_no_harm(project: Project) -> None:
    (project.root / "caf\udce9").write_bytes(b"needle \xed\xa0\x80 \xff\n")
    for name, arguments in (
        ("List", {}),
        ("Glob", {"pattern": "*"}),
        ("Grep", {"pattern": "needle"}),
        ("Bash", {"command": "cat caf*; ls"}),
    ):
        assert "\ufffd" in await project.text(name, **arguments) or name == "Grep"


def test_every_tool_says_what_it_does_in_few_words() -> None:
    for schema in schemas(TOOLS):
        assert 20 < len(schema.description) < 250, schema.name
