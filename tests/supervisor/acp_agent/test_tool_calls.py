"""What a client is shown of a call, by its tool and arguments."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.tool_names import TOOL_EFFECTS
from supervisor.acp_agent.core.tool_calls import LONGEST_TITLE, shown_call
from supervisor.acp_agent.core.updates import Diff, Location

VALUES = (
    st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()) | st.dictionaries(st.text(), st.text())
)
NAMES = st.sampled_from(
    ["file_path", "path", "start_line", "pattern", "command", "url", "agent_name", "prompt", "content", "replacements"]
)


@pytest.mark.parametrize(
    ("name", "arguments", "title", "kind"),
    [
        ("Read", {"file_path": "a/b.py"}, "Read a/b.py", "read"),
        ("List", {}, "List", "read"),
        ("Grep", {"pattern": "x+", "path": "src"}, "Grep x+ src", "search"),
        ("Glob", {"pattern": "**/*.py"}, "Glob **/*.py", "search"),
        ("Bash", {"command": "make\n  test"}, "make test", "execute"),
        ("WebFetch", {"url": "http://x/"}, "WebFetch http://x/", "fetch"),
        ("Delete", {"file_path": "a"}, "Delete a", "delete"),
        ("InvokeAgent", {"agent_name": "task", "prompt": "do it"}, "task: do it", "think"),
        ("Fly", {"to": "x"}, "Fly", "other"),
    ],
)
def test_titles_and_kinds(name: str, arguments: dict[str, object], title: str, kind: str) -> None:
    shown = shown_call(name, msgspec.json.encode(arguments), "/project")
    assert (shown.title, shown.kind) == (title, kind)


def test_places_are_absolute_and_have_the_line_that_is_read_from() -> None:
    shown = shown_call("Read", b'{"file_path":"../x/./a.py","start_line":7}', "/project")
    assert shown.locations == (Location(path="/x/a.py", line=7),)
    assert shown_call("Read", b'{"file_path":"/etc/a"}', "/project").locations == (Location(path="/etc/a"),)


def test_each_replacement_is_a_change() -> None:
    arguments = b'{"file_path":"a","replacements":[{"old_str":"1","new_str":"2"},{"old_str":"3","new_str":""}]}'
    assert shown_call("Edit", arguments, "/p").changes == (
        Diff(path="/p/a", old_text="1", new_text="2"),
        Diff(path="/p/a", old_text="3", new_text=""),
    )


def test_a_title_is_short_and_steers_no_terminal() -> None:
    arguments = msgspec.json.encode({"command": "\x1b[31mred\x07" + "x" * 1000})
    title = shown_call("Bash", arguments, "/p", "explore-1").title
    assert title.startswith("explore-1: redx") and len(title) == LONGEST_TITLE


def test_one_argument_of_a_wrong_type_does_not_hide_the_others() -> None:
    assert shown_call("Read", b'{"file_path":"a","start_line":"7"}', "/p").locations == (Location(path="/p/a"),)


@given(st.sampled_from([*TOOL_EFFECTS, "Fly"]), st.dictionaries(NAMES, VALUES))
def test_no_arguments_at_all_raise(name: str, arguments: dict[str, object]) -> None:
    assert len(shown_call(name, msgspec.json.encode(arguments), "/p").title) <= LONGEST_TITLE
