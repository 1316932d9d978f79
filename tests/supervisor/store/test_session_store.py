"""The session store on real files: what is kept, what is refused, and what a killed process leaves."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trio

from protocol.content import AssistantMessage, Message, Summary, ToolCall, ToolResult, UserMessage
from protocol.frames import ExternalSession
from protocol.usage import Usage
from supervisor.errors import SessionLocked, StorageFailed, StoreCorrupt, StoreNewer, UnknownSession
from supervisor.store.session_store import SessionStore

SECONDS = 30.0
CHECKOUT = Path(__file__).parents[3]


def create(home: Path) -> SessionStore:
    return SessionStore.create(home, project_root=home, provider="lm-studio", model="m", agent_name="default")


def usage(tokens: int) -> Usage:
    return Usage(prompt_tokens=tokens, completion_tokens=1, api_calls=1)


def database(home: Path, session_id: str) -> Path:
    return home / "sessions" / session_id / "session.db"


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    """What another reader sees in the file."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


TRANSCRIPT: tuple[Message, ...] = (
    UserMessage(text='Fix "it"\n\x00 – 修理'),
    AssistantMessage(
        text="", reasoning="hm", reasoning_field="reasoning", tool_calls=(ToolCall(id="a", name="Bash", fault="no"),)
    ),
    ToolResult(call_id="a", name="Bash", outcome="error", output="exit code 1"),
    Summary(text="All that was said.", replaces=2),
    AssistantMessage(text="Done."),
)


async def test_a_session_is_resumed_as_it_was_left(tmp_path: Path) -> None:
    store = create(tmp_path)
    main = store.main_agent_id
    assert (store.epoch, store.history(main), store.usage_by_agent(), store.uncertain_calls()) == (1, (), {}, 0)
    store.append(main, TRANSCRIPT[:3], usage(10), 1)
    await store.append(main, TRANSCRIPT[3:], usage(20), 2).wait()
    assert store.history(main) == TRANSCRIPT
    assert store.iterations(main) == 2
    store.end_agent(main, "complete", 0)
    store.end_run(0)
    store.close()

    again = SessionStore.open(tmp_path, store.session_id)
    assert (again.session_id, again.epoch, again.main_agent_id) == (store.session_id, 2, main)
    assert again.history(main) == TRANSCRIPT
    assert again.usage_by_agent() == {"main": Usage(prompt_tokens=30, completion_tokens=2, api_calls=2)}
    assert again.uncertain_calls() == 0
    assert again.iterations(main) == 0, "iterations count by the turn"
    again.close()


async def test_usage_is_summed_by_agent_name_and_leaves_this_run_out(tmp_path: Path) -> None:
    store = create(tmp_path)
    for number, name in enumerate(("task", "explore", "task")):
        store.add_agent(f"child-{number}", store.main_agent_id, "call", name, "Look.")
        store.append(f"child-{number}", [AssistantMessage(text="x")], usage(10**number), 1)
    store.end_run(0)
    store.close()

    again = SessionStore.open(tmp_path, store.session_id)
    earlier = {
        "explore": usage(10),
        "task": Usage(prompt_tokens=101, completion_tokens=2, api_calls=2),
    }
    assert again.usage_by_agent() == earlier
    await again.append(again.main_agent_id, [], usage(5), 1).wait()
    assert again.usage_by_agent() == earlier
    assert again.history("child-0") == (AssistantMessage(text="x"),)
    assert again.history("nobody") == ()
    again.close()


def test_the_session_of_an_external_agent_is_kept_by_its_name(tmp_path: Path) -> None:
    store = create(tmp_path)
    main = store.main_agent_id
    first, second = (ExternalSession(session_id="x", cwd="/here", known=known) for known in (0, 2))
    other = ExternalSession(session_id="y", cwd="/there", known=1)
    store.append(main, [], None, 0, ("codex", first))
    store.append(main, [], None, 0, ("other", other))
    store.append(main, TRANSCRIPT[:2], usage(10), 1, ("codex", second))
    store.append(main, TRANSCRIPT[2:], None, 0)  # says nothing of it
    store.close()
    again = SessionStore.open(tmp_path, store.session_id)
    assert again.external_session(main, "codex") == second
    assert again.external_session(main, "other") == other
    assert again.external_session(main, "nobody") is None
    assert again.external_session("child", "codex") is None
    again.close()


async def test_a_session_without_a_place_for_external_ones_gets_it(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.close()
    with closing(sqlite3.connect(database(tmp_path, store.session_id))) as connection:
        connection.execute("DROP TABLE external_sessions")
    again = SessionStore.open(tmp_path, store.session_id)
    assert again.external_session(again.main_agent_id, "codex") is None
    session = ExternalSession(session_id="x", cwd="/here", known=1)
    await again.append(again.main_agent_id, [], None, 0, ("codex", session)).wait()
    assert again.external_session(again.main_agent_id, "codex") == session
    again.close()


def test_closing_writes_what_is_queued(tmp_path: Path) -> None:
    store = create(tmp_path)
    tickets = [store.append(store.main_agent_id, [UserMessage(text=str(number))], None, 0) for number in range(200)]
    store.close()
    store.close()
    assert all(ticket.done for ticket in tickets)
    assert store.failure is None
    again = SessionStore.open(tmp_path, store.session_id)
    assert again.history(again.main_agent_id) == tuple(UserMessage(text=str(number)) for number in range(200))
    again.close()


async def test_what_is_written_after_the_end_fails(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.close()
    with pytest.raises(StorageFailed, match="is closed"):
        await store.end_run(0).wait()


async def test_uncertain_calls_add_up_over_the_runs_before(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.add_agent("child", store.main_agent_id, "call", "task", "Look.")
    store.end_agent("child", "crashed", 2)
    store.end_agent(store.main_agent_id, "cancelled", 1)
    await store.end_run(130).wait()
    assert store.uncertain_calls() == 0, "this run's are the caller's to count"
    store.close()
    again = SessionStore.open(tmp_path, store.session_id)
    assert again.uncertain_calls() == 3
    again.close()


# -- files ------------------------------------------------------------------------------------------------------------


def test_only_the_owner_can_read_a_session(tmp_path: Path) -> None:
    home = tmp_path / "state" / "corral"
    before = os.umask(0)
    try:
        store = create(home)
        store.end_run(0)
        modes = {
            path.name: stat.S_IMODE(path.stat().st_mode) for path in database(home, store.session_id).parent.iterdir()
        }
        store.close()
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}
    assert {"session.db", "session.db-wal", "lock"} <= set(modes)
    for folder in (home.parent, home, home / "sessions", home / "sessions" / store.session_id):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_session_ids_are_unique_sort_by_time_and_are_plain(tmp_path: Path) -> None:
    stores = [create(tmp_path) for _ in range(3)]
    names = [store.session_id for store in stores]
    for store in stores:
        store.close()
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", name) for name in names)
    assert [name[:15] for name in names] == sorted(name[:15] for name in names)


@pytest.mark.parametrize(
    "session_id", ["", ".", "..", "../x", "/etc", "a/b", "-x", "a.b", "a\x00b", "é", "x" * 65, "20200101-000000-abcdef"]
)
def test_an_unknown_or_bad_id_is_unknown_and_leaves_the_folder_alone(tmp_path: Path, session_id: str) -> None:
    create(tmp_path).close()
    outside = tmp_path / "x"
    outside.mkdir()
    (outside / "session.db").write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UnknownSession, match="there is no session"):
        SessionStore.open(tmp_path, session_id)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_state_folder_that_can_not_be_made_is_a_storage_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="can't be stored below"):
        create(tmp_path / "file" / "corral")


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_second_holder_is_told_who_has_the_session(tmp_path: Path) -> None:
    store = create(tmp_path)
    with pytest.raises(SessionLocked, match=f"is in use by process {os.getpid()}") as caught:
        SessionStore.open(tmp_path, store.session_id)
    assert (caught.value.pid, caught.value.exit_code, caught.value.code) == (os.getpid(), 4, "session_locked")
    store.close()
    SessionStore.open(tmp_path, store.session_id).close()


def a_closed_session(home: Path, *, cleanly: bool) -> Path:
    """The database of a session with something in it."""
    store = create(home)
    for number in range(50):
        store.append(store.main_agent_id, [UserMessage(text=f"{number} " * 200)], usage(1), number)
    if cleanly:
        store.end_run(0)
    store.close()
    return database(home, store.session_id)


def refuse(home: Path, path: Path, error: type[StorageFailed]) -> str:
    """Opening fails with ``error``, names the file and leaves it as it is; the lock is free afterwards."""
    before = path.read_bytes()
    with pytest.raises(error):
        SessionStore.open(home, path.parent.name)
    with pytest.raises(error) as caught:
        SessionStore.open(home, path.parent.name)
    assert path.read_bytes() == before
    assert type(caught.value) is error
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 5
    return str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100], ids=["empty", "something else"])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = a_closed_session(tmp_path, cleanly=True)
    path.write_bytes(content)
    refuse(tmp_path, path, StoreCorrupt)


def test_another_program_s_database_is_refused(tmp_path: Path) -> None:
    path = a_closed_session(tmp_path, cleanly=True)
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE runs (epoch)")
    assert "is no session of corral" in refuse(tmp_path, path, StoreCorrupt)


def test_a_newer_format_is_refused_and_named(tmp_path: Path) -> None:
    path = a_closed_session(tmp_path, cleanly=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    assert "newer corral (format 99)" in refuse(tmp_path, path, StoreNewer)


def damage(path: Path) -> None:
    """Overwrite the pages after the first two, as a broken disk would."""
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xa5" * (len(content) - 8192)
    path.write_bytes(content)


def test_damage_is_found_before_anything_is_written_after_a_crash(tmp_path: Path) -> None:
    path = a_closed_session(tmp_path, cleanly=False)
    damage(path)
    refuse(tmp_path, path, StoreCorrupt)


def test_damage_in_the_first_pages_is_found_after_a_clean_end_too(tmp_path: Path) -> None:
    path = a_closed_session(tmp_path, cleanly=True)
    content = bytearray(path.read_bytes())
    content[100:4096] = b"\xa5" * 3996
    path.write_bytes(content)
    refuse(tmp_path, path, StoreCorrupt)


def test_an_item_that_is_none_of_ours_is_corruption_not_a_crash(tmp_path: Path) -> None:
    path = a_closed_session(tmp_path, cleanly=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute('UPDATE messages SET body = \'{"type": "alien"}\' WHERE number = 3')
    store = SessionStore.open(tmp_path, path.parent.name)
    with pytest.raises(StoreCorrupt, match="holds an item that can't be read"):
        store.history(store.main_agent_id)
    store.close()


# -- processes that die -----------------------------------------------------------------------------------------------

CHILD = """
import sys, trio
from pathlib import Path
from protocol.content import AssistantMessage, UserMessage
from protocol.usage import Usage
from supervisor.errors import StorageFailed
from supervisor.store.session_store import SessionStore

async def main(home, size):
    store = SessionStore.create(Path(home), project_root=Path(home), provider="p", model="m", agent_name="default")
    print(store.session_id, flush=True)
    store.add_agent("child", store.main_agent_id, "call", "task", "Look.")
    for number in range(100_000):
        store.append("child", [AssistantMessage(text=f"{number}")], Usage(prompt_tokens=1, api_calls=1), number)
        ticket = store.append(store.main_agent_id, [UserMessage(text=f"{number}" + "." * size)], None, number)
        try:
            await ticket.wait()
        except StorageFailed as error:
            print(error.code, flush=True)
            break
        print(number, flush=True)
    store.close()

trio.run(main, sys.argv[1], int(sys.argv[2]))
"""


@contextmanager
def writing_process(home: Path, *, limit: str = "", size: int = 10) -> Generator[subprocess.Popen[str], None, None]:
    """A process that begins a session, prints its id, and then the number of each item once it is stored."""
    process = subprocess.Popen(
        [sys.executable, "-c", limit + CHILD, str(home), str(size)],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def texts(store: SessionStore, agent_id: str) -> list[int]:
    """The numbers that the items of a transcript begin with."""
    found: list[int] = []
    for message in store.history(agent_id):
        assert isinstance(message, UserMessage | AssistantMessage)
        found.append(int(message.text.rstrip(".")))
    return found


@pytest.mark.parametrize("stored", [0, 1, 40])
def test_every_committed_row_outlives_a_killed_process(tmp_path: Path, stored: int) -> None:
    with writing_process(tmp_path) as process:
        session_id = read_line(process)
        last = -1
        for _ in range(stored):
            last = int(read_line(process))
        with pytest.raises(SessionLocked) as caught:
            SessionStore.open(tmp_path, session_id)
        assert caught.value.pid == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=SECONDS)

    store = SessionStore.open(tmp_path, session_id)
    assert store.epoch == 2
    main, child = texts(store, store.main_agent_id), texts(store, "child")
    assert main == list(range(len(main)))
    assert len(main) > last, "what was acknowledged is there"
    assert child == list(range(len(child)))
    assert len(main) <= len(child) <= len(main) + 1, "writes are stored in order"
    tokens = store.usage_by_agent().get("task", Usage()).prompt_tokens
    assert tokens == len(child), "an item and its usage are one transaction"
    store.close()


def test_a_killed_run_is_marked_and_its_open_calls_are_counted(tmp_path: Path) -> None:
    with writing_process(tmp_path) as process:
        session_id = read_line(process)
        read_line(process)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=SECONDS)
    store = SessionStore.open(tmp_path, session_id)
    # The main agent's last item is a prompt, so it waited for the model; the child's is a reply.
    assert store.uncertain_calls() == 1
    path = database(tmp_path, session_id)
    assert rows(path, "SELECT epoch, crashed, ended FROM runs ORDER BY epoch") == [(1, 1, None), (2, 0, None)]
    assert rows(path, "SELECT agent_id, outcome FROM agents ORDER BY 1") == [("child", "crashed"), ("main", None)]
    store.close()


def test_a_full_disk_is_a_failure_with_its_own_code_and_loses_nothing_stored(tmp_path: Path) -> None:
    """The limit on a file's size stands in for the disk's: SQLite can't grow its log beyond it."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))\n"
    with writing_process(tmp_path, limit=limit, size=2000) as process:
        session_id = read_line(process)
        stored = -1
        while (line := read_line(process)).isdigit():
            stored = int(line)
        assert line in ("storage_full", "storage_failed")
        assert process.wait(timeout=SECONDS) == 0
    assert stored > 0
    store = SessionStore.open(tmp_path, session_id)
    assert texts(store, store.main_agent_id)[: stored + 1] == list(range(stored + 1))
    store.close()


async def test_after_the_first_failure_every_write_fails_and_nothing_is_stored(tmp_path: Path) -> None:
    store = create(tmp_path)
    main = store.main_agent_id
    await store.append(main, [UserMessage(text="before")], None, 0).wait()
    wrong = store.add_agent(main, main, "call", "task", "an id that is taken")
    with pytest.raises(StorageFailed) as first:
        await wrong.wait()
    after = store.append(main, [UserMessage(text="after")], None, 0)
    assert after.done
    with pytest.raises(StorageFailed) as second:
        await after.wait()
    await after.wait_quietly()
    assert second.value is first.value
    assert store.failure is first.value
    assert store.history(main) == (UserMessage(text="before"),)
    store.close()


async def test_many_tasks_may_wait_and_one_that_gives_up_does_not_stop_the_write(tmp_path: Path) -> None:
    store = create(tmp_path)
    main = store.main_agent_id
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            for number in range(50):
                ticket = store.append(main, [UserMessage(text=str(number))], None, 0)
                nursery.start_soon(ticket.wait)
                nursery.start_soon(ticket.wait)
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.append(main, [UserMessage(text="50")], None, 0).wait()
        assert scope.cancelled_caught
        await store.flush().wait()
    assert texts(store, main) == list(range(51))
    store.close()
