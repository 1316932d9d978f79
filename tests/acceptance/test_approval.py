"""A run that nobody attends: what would be asked is denied, in words that the model reads."""

from __future__ import annotations

import pytest

from tests.stubs.corral_run import Place
from tests.stubs.model_server import ModelServer, scripted
from tests.stubs.replies import text, tool_calls


@pytest.mark.parametrize("trust", ["plan", "safe"])
def test_without_anybody_to_ask_a_change_is_denied_and_reading_goes_on(place: Place, trust: str) -> None:
    place.write("a.txt", "one\n")
    wanted = tool_calls(
        [
            ("w", "Write", {"file_path": "b.txt", "content": "two\n"}),
            ("r", "Read", {"file_path": "a.txt"}),
            ("b", "Bash", {"command": "touch c.txt"}),
        ]
    )
    with ModelServer(scripted([wanted, text("I could not.")])) as server:
        run = place.run(server, "--trust", trust)
        assert all("denied" in result for result in (server.chats[1].results[0], server.chats[1].results[2]))
    assert run.returncode == 0
    assert run.outcomes() == {"w": "denied", "r": "success", "b": "denied"}
    assert f"trust mode {trust}" in run.outputs()["w"]
    assert sorted(path.name for path in place.project.iterdir()) == ["a.txt"]
