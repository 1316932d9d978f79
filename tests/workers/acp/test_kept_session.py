"""The session that an external agent keeps: what its worker has stored of it, and how a later one goes on with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from protocol.agent_spec import ExternalCommand
from protocol.content import AssistantMessage, Message, UserMessage
from protocol.frames import Cancel, Commit, ExternalSession, Prompt, Resume
from protocol.records import Info, TextDelta
from tests.workers.acp.test_worker import STUBS, Supervisor, worker
from workers.acp.effects import SessionOpened
from workers.acp.kept_session import LONGEST_ID, KeptSession
from workers.acp.opening import EarlierSession

HISTORY: tuple[Message, ...] = (UserMessage(text="one"), AssistantMessage(text="Done."), UserMessage(text="two"))


def remembering(folder: Path, capabilities: object) -> ExternalCommand:
    env = {"FAKE_MODE": "remembering", "FAKE_SESSIONS": str(folder), "FAKE_CAPABILITIES": json.dumps(capabilities)}
    return ExternalCommand(command=sys.executable, args=(str(STUBS / "fake_acp_agent.py"),), env=env)


RESUMES: dict[str, object] = {"sessionCapabilities": {"resume": {}}}


def stored(supervisor: Supervisor) -> list[tuple[str, int]]:
    """The sessions that were stored, and how much of the transcript they were said to know."""
    commits = [frame.external for frame in supervisor.frames if isinstance(frame, Commit)]
    return [(session.session_id, session.known) for session in commits if session is not None]


def opened(session_id: str = "s", *, goes_on: bool = False, can_go_on: bool = True) -> SessionOpened:
    return SessionOpened(session_id, goes_on=goes_on, can_go_on=can_go_on)


# -- by itself --------------------------------------------------------------------------------------------------------


def test_a_new_session_knows_the_transcript_once_its_prompt_has_arrived() -> None:
    kept = KeptSession("/", HISTORY, None)
    kept.committed(1)
    assert kept.news() is None
    kept.opened(opened())
    assert kept.news() == ExternalSession(session_id="s", cwd="/", known=0)
    assert kept.news() is None
    kept.took_prompt()
    assert kept.news() == ExternalSession(session_id="s", cwd="/", known=4)
    kept.committed(2)
    assert kept.news() == ExternalSession(session_id="s", cwd="/", known=6)


def test_a_session_that_goes_on_knows_what_it_knew_until_its_prompt_has_arrived() -> None:
    kept = KeptSession("/", HISTORY, ExternalSession(session_id="s", cwd="/", known=2))
    kept.committed(1)
    kept.opened(opened(goes_on=True))
    assert kept.news() is None, "all of it is stored"
    kept.took_prompt()
    assert kept.news() == ExternalSession(session_id="s", cwd="/", known=4)


def test_a_session_that_replaces_a_lost_one_knows_nothing_yet() -> None:
    kept = KeptSession("/", HISTORY, ExternalSession(session_id="lost", cwd="/", known=2))
    kept.opened(opened("next"))
    assert kept.news() == ExternalSession(session_id="next", cwd="/", known=0)


@pytest.mark.parametrize(
    "session",
    [opened(can_go_on=False), opened("x" * (LONGEST_ID + 1)), opened("\ud800")],
    ids=["no way back", "an id without an end", "an id that no frame holds"],
)
def test_what_can_not_be_taken_up_again_is_not_kept(session: SessionOpened) -> None:
    kept = KeptSession("/", (), None)
    kept.opened(session)
    kept.took_prompt()
    assert kept.news() is None


def test_what_was_said_without_it_stands_before_the_prompt() -> None:
    session = ExternalSession(session_id="s", cwd="/", known=2)
    way_on = KeptSession("/", HISTORY, session).way_on("three")
    assert way_on == EarlierSession(
        session_id="s", prompt="What was said since, without you:\n\nUser: two\n\nNow:\n\nthree"
    )


@pytest.mark.parametrize("known", [3, 99])
def test_nothing_stands_before_the_prompt_where_all_is_known(known: int) -> None:
    session = ExternalSession(session_id="s", cwd="/", known=known)
    assert KeptSession("/", HISTORY, session).way_on("three") == EarlierSession(session_id="s", prompt="three")


def test_a_session_of_another_folder_is_not_gone_on_with() -> None:
    assert KeptSession("/here", HISTORY, ExternalSession(session_id="s", cwd="/there", known=2)).way_on("x") is None
    assert KeptSession("/", HISTORY, None).way_on("x") is None


# -- in its worker ----------------------------------------------------------------------------------------------------


async def test_the_session_is_stored_with_what_it_knows(tmp_path: Path) -> None:
    command = remembering(tmp_path / "sessions", RESUMES)
    async with worker(tmp_path, "", command=command) as supervisor:
        await supervisor.finished()
    assert stored(supervisor) == [("session-1", 0), ("session-1", 1), ("session-1", 2)]
    assert all(frame.external.cwd == str(tmp_path) for frame in supervisor.frames if isinstance(frame, Commit)
               and frame.external is not None)  # fmt: skip


async def test_an_agent_that_can_not_go_on_has_nothing_stored(tmp_path: Path) -> None:
    async with worker(tmp_path, "", command=remembering(tmp_path / "sessions", {})) as supervisor:
        await supervisor.finished()
    assert stored(supervisor) == []


@pytest.mark.parametrize("capabilities", [RESUMES, {"loadSession": True}], ids=["resume", "load"])
async def test_a_turn_goes_on_with_the_stored_session(tmp_path: Path, capabilities: object) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "old").write_text('"one"\n')
    command = remembering(tmp_path / "sessions", capabilities)
    external = ExternalSession(session_id="old", cwd=str(tmp_path), known=3)
    async with worker(tmp_path, "", command=command, history=HISTORY, external=external) as supervisor:
        ending = await supervisor.finished()
    assert json.loads(ending.response) == ["one", "Do it"]
    assert [frame.text for frame in supervisor.frames if isinstance(frame, TextDelta)] == ['["one", "Do it"]']
    assert stored(supervisor) == [("old", 4), ("old", 5)]
    assert supervisor.committed() == [UserMessage(text="Do it"), AssistantMessage(text='["one", "Do it"]')]


async def test_a_forgotten_session_is_told_of_and_replaced(tmp_path: Path) -> None:
    command = remembering(tmp_path / "sessions", RESUMES)
    external = ExternalSession(session_id="old", cwd=str(tmp_path), known=3)
    async with worker(tmp_path, "", command=command, history=HISTORY, external=external) as supervisor:
        ending = await supervisor.finished()
    (prompt,) = json.loads(ending.response)
    assert prompt.startswith("What was said earlier in this session:\n\nUser: one")
    notes = [frame.message for frame in supervisor.frames if isinstance(frame, Info)]
    assert len([note for note in notes if "could not go on with its session" in note]) == 1
    assert stored(supervisor) == [("session-1", 0), ("session-1", 4), ("session-1", 5)]


async def test_a_turn_that_is_resumed_goes_on_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "old").write_text('"two"\n')
    command = remembering(tmp_path / "sessions", RESUMES)
    external = ExternalSession(session_id="old", cwd=str(tmp_path), known=3)
    resume = Resume(iterations=0)
    async with worker(tmp_path, "", command=command, history=HISTORY, external=external, last=resume) as supervisor:
        ending = await supervisor.finished()
    begun, note = json.loads(ending.response)
    assert (begun, note.startswith("Your process ended before you were done")) == ("two", True)
    assert supervisor.committed()[0] == UserMessage(text=note)


async def test_a_cancel_keeps_the_session(tmp_path: Path) -> None:
    command = remembering(tmp_path / "sessions", RESUMES)
    async with worker(tmp_path, "", command=command, last=Prompt(text="wait")) as supervisor:
        await supervisor.wait_for(lambda frame: isinstance(frame, TextDelta))
        supervisor.channel.put(Cancel(reason="enough"))
        ending = await supervisor.finished()
    assert (ending.outcome, ending.response) == ("cancelled", "I wait")
    assert stored(supervisor) == [("session-1", 0), ("session-1", 1), ("session-1", 2)]
