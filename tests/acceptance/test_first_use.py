"""The first hours with the command: no model yet, a key that is wrong, a file piped in, settings, stored sessions.

Each test meets the real command as a person would, and reads what it says.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.stubs.corral_run import Place, Run
from tests.stubs.model_server import ModelServer, scripted, unused_address
from tests.stubs.replies import hang, status, text, tool_calls

LOCAL = ("lm-studio", "ollama", "llama-cpp", "vllm")
SCENARIO = json.dumps(
    {
        "agents": {
            "main": [
                {
                    "when": {"step": 1},
                    "reply": {
                        "text": "I look.",
                        "tool_calls": [{"name": "Read", "arguments": {"file_path": "a.txt"}}],
                    },
                },
                {"reply": {"text": "Done: {{prompt}}"}},
            ]
        }
    }
)


def settings(place: Place, body: str = "", **addresses: str) -> Path:
    """The user's file: ``body``, and local servers at these addresses, those left out nowhere."""
    places = {name: addresses.get(name.replace("-", "_"), "http://127.0.0.1:1/v1") for name in LOCAL}
    tables = "".join(f'[providers.{name}]\nbase-url = "{url}"\n' for name, url in places.items())
    path = place.config / "corral" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{body}\n{tables}")
    return path


def in_project(place: Place, *arguments: str, stdin: bytes | None = None, **environment: str) -> Run:
    return place.command("-C", str(place.project), *arguments, stdin=stdin, environment=environment)


@pytest.fixture
def script(place: Place) -> str:
    """A scenario that reads a.txt and repeats the prompt."""
    place.write("a.txt", "A\n")
    path = place.folder / "scenario.json"
    path.write_text(SCENARIO)
    return str(path)


# -- which model ------------------------------------------------------------------------------------------------------


def test_without_any_model_there_are_three_commands_to_try(place: Place) -> None:
    settings(place)
    run = in_project(place, "Say hello")
    assert (run.returncode, run.stdout) == (2, b"")
    first, *commands = run.stderr.splitlines()
    assert first.startswith("corral: no model to call: ")
    assert len(commands) == 3
    assert all("corral" in command and "--model" in command for command in commands)


def test_a_server_that_answers_on_this_machine_is_used_without_being_named(place: Place) -> None:
    with ModelServer(scripted([text("Hello!")])) as server:
        settings(place, vllm=server.url)
        run = in_project(place, "Say hello")
    assert (run.returncode, run.stdout) == (0, b"Hello!\n"), run
    assert f"corral: no provider was named: using stub of vllm at {server.url}\n" in run.stderr
    assert len(server.chats) == 1


def test_what_answers_but_is_no_model_server_is_not_used(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings(place, llama_cpp=f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
        run = in_project(place, "Say hello")
    assert run.returncode == 2
    assert "no model to call" in run.stderr


def test_a_key_decides_and_one_that_is_missing_or_refused_names_its_variable(place: Place) -> None:
    settings(place, '[providers.mine]\nbase-url = "https://mine.test/v1"\nkey-variable = "MINE_KEY"')
    missing = in_project(place, "Say hello", "--provider", "mine", "--model", "m")
    assert (missing.returncode, missing.stderr) == (2, "corral: mine needs a key: set MINE_KEY\n")
    with ModelServer(lambda _request: status(401, "bad key")) as server:
        settings(place, f'[providers.mine]\nbase-url = "{server.url}"\nkey-variable = "MINE_KEY"\nmodel = "m"')
        refused = in_project(place, "Say hello", MINE_KEY="sk-canary-77")
    assert refused.returncode == 1
    assert "check the key in MINE_KEY" in refused.stderr
    assert "canary" not in refused.stderr
    assert server.chats[0].headers["authorization"] == "Bearer sk-canary-77"


def test_a_server_that_is_not_there_is_told_at_each_retry_and_at_the_end(place: Place) -> None:
    url = unused_address()
    run = in_project(place, "x", "--base-url", url, "--model", "m", "--retry-delay", "0.01")
    assert run.returncode == 75, run
    lines = run.stderr.splitlines()
    assert len([line for line in lines if "trying again" in line]) == 5
    assert url in lines[-1]
    assert "is the server running?" in lines[-1]


def test_the_context_window_is_the_server_s_and_asking_for_it_makes_no_model_call(place: Place) -> None:
    with ModelServer(scripted([text("Hello!")])) as server:
        run = place.run(server)
    assert run.one("session_ready")["context_window"] > 0
    assert len(server.chats) == 1
    assert {request.method for request in server.requests if not request.is_chat} == {"GET"}


# -- the prompt -------------------------------------------------------------------------------------------------------


def test_what_is_piped_in_goes_behind_the_prompt(place: Place, script: str) -> None:
    run = in_project(place, "Explain @a.txt", "--script", script, stdin=b"x = 1\n")
    assert (run.returncode, run.stdout) == (0, b"Done: Explain @a.txt\n\n@a.txt:\nA\n\n\nx = 1\n"), run


def test_a_pipe_that_stays_silent_is_left_alone_with_a_note(place: Place, script: str) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end), os.fdopen(write_end, "wb"):
        done = subprocess.run(
            [str(place.executable), "Explain", "--script", script, "--stdin-timeout", "0.2", "-C", str(place.project)],
            stdin=read_end,
            capture_output=True,
            env=place.environment(),
            timeout=40,
            check=False,
        )
    assert done.stdout == b"Done: Explain\n"
    assert done.stderr == b"corral: standard input was silent for 0.2 s and is left alone; < /dev/null saves the wait\n"


# -- what is shown ----------------------------------------------------------------------------------------------------


def on_a_terminal(place: Place, *arguments: str, **environment: str) -> tuple[int, str]:
    """The command with a terminal of its own: its exit code and all that it showed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place.project)
        env = {**place.environment(), "TERM": "xterm-256color", "COLUMNS": "80", **environment}
        os.execve(place.executable, [str(place.executable), *arguments], env)
    bound = threading.Timer(40, os.kill, (pid, signal.SIGKILL))
    bound.start()
    shown = bytearray()
    try:
        while piece := _read(terminal):
            shown += piece
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        bound.cancel()
        os.close(terminal)
    return code, shown.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the other side has ended
        return b""


def test_on_a_terminal_the_steps_show_and_then_the_reply(place: Place, script: str) -> None:
    code, shown = on_a_terminal(place, "Say hello", "--script", script, NO_COLOR="1")
    assert code == 0
    assert re.fullmatch(r"  Read a\.txt\n  [0-9.k]+ tokens in [0-9.]+s, 2 model calls\nDone: Say hello\n", shown), shown
    assert "\x1b[1m" in on_a_terminal(place, "Say hello", "--script", script)[1]
    assert on_a_terminal(place, "Say hello", "--script", script, "-q") == (0, "Done: Say hello\n")


def test_a_reply_can_not_steer_the_terminal(place: Place) -> None:
    scenario = {"agents": {"*": [{"reply": {"text": "a\x1b]0;owned\x07\x1b[31mb\u202ec\x9b1md"}}]}}
    place.write("s.json", json.dumps(scenario))
    assert on_a_terminal(place, "x", "--script", "s.json", "-q") == (0, "abc1md\n")


@pytest.mark.parametrize(
    ("closed", "code", "stdout"),
    [("2>&-", 0, b"Done: x\n"), ("<&-", 0, b"Done: x\n"), ("<&- 2>&-", 0, b"Done: x\n"), (">&-", 141, b"")],
)
def test_a_descriptor_that_is_closed_from_the_start_is_only_less_to_read(
    place: Place, script: str, closed: str, code: int, stdout: bytes
) -> None:
    command = f"exec '{place.executable}' -v x --script '{script}' -C '{place.project}' {closed}"
    done = subprocess.run(
        ["sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=place.environment(),
        timeout=40,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, stdout)


def test_elsewhere_the_steps_show_only_with_v(place: Place, script: str) -> None:
    assert in_project(place, "x", "--script", script).stderr == ""
    run = in_project(place, "x", "--script", script, "-v")
    assert "  Read a.txt\n" in run.stderr
    assert "\x1b" not in run.stderr


# -- settings ---------------------------------------------------------------------------------------------------------


def test_config_show_says_each_value_and_where_it_comes_from(place: Place) -> None:
    path = settings(
        place,
        'provider = "mine"\nmax-turns = 5\nquiet = true\n'
        '[providers.mine]\nbase-url = "http://h.test/v1"\nkey-variable = "MINE"',
    )
    run = in_project(place, "config", "show")
    assert run.returncode == 2  # -C comes before the command's name
    run = place.command(
        "config",
        "show",
        "-C",
        str(place.project),
        "--max-turns",
        "7",
        environment={"CORRAL_MODEL": "m", "MINE": "sk-canary"},
    )
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in run.stdout.decode().splitlines() if line}
    assert rows["provider"] == ["mine", f"{path}, line 1"]
    assert rows["max-turns"] == ["7", "--max-turns"]
    assert rows["model"] == ["m", "CORRAL_MODEL"]
    assert rows["quiet"] == ["on", f"{path}, line 3"]
    assert rows["max-agents"] == ["64", "default"]
    assert rows["mine"][0] == "http://h.test/v1"
    assert "MINE (set)" in run.stdout.decode()
    assert b"canary" not in run.stdout


def test_a_wrong_key_in_the_file_names_file_and_line(place: Place) -> None:
    path = settings(place, '\nmodle = "m"')
    for arguments in (("x",), ("config", "show")):
        run = place.command(*arguments, "-C", str(place.project))
        assert run.returncode == 2
        assert f"{path}, line 2: there is no setting 'modle'; did you mean model?" in run.stderr


def test_settings_inside_the_project_are_ignored_with_a_note(place: Place, script: str) -> None:
    place.write("corral/config.toml", 'base-url = "http://evil.test/v1"\nprovider = "openai"\n')
    run = in_project(place, "x", "--script", script, XDG_CONFIG_HOME=str(place.project))
    assert run.returncode == 0, run
    assert run.stderr == (
        f"corral: {place.project}/corral/config.toml is ignored: it lies inside the project, whose files set nothing\n"
    )


def test_what_is_missing_is_told_together_with_the_file_that_was_ignored(place: Place) -> None:
    place.write("corral/config.toml", 'provider = "vllm"\nmodel = "m"\n')
    run = in_project(place, "x", "--provider", "openai", "--model", "m", XDG_CONFIG_HOME=str(place.project))
    assert run.returncode == 2
    assert [line.split(": ")[1] for line in run.stderr.splitlines()] == [
        f"{place.project}/corral/config.toml is ignored",
        "openai needs a key",
    ]


def test_the_project_s_instructions_are_in_the_system_prompt(place: Place) -> None:
    place.write("AGENTS.md", "Always use blanks.\n")
    with ModelServer(scripted([])) as server:
        place.run(server)
    assert "Always use blanks." in server.chats[0].messages[0]["content"]


@pytest.mark.parametrize(
    "fields",
    [{"base_url": "http://evil.test/v1"}, {"api_key": "x"}, {"acp": {"command": ["evil"]}}, {"sandbox": "off"}],
    ids=lambda fields: next(iter(fields)),
)
def test_a_project_s_agent_that_sets_what_it_may_not_is_an_error_with_its_name(
    place: Place, script: str, fields: dict[str, object]
) -> None:
    path = place.write_agent("evil", **fields)
    run = in_project(place, "x", "--script", script, "-a", "evil")
    assert (run.returncode, run.stdout) == (2, b"")
    assert run.stderr.startswith(f"corral: {path} is no agent: it may not set '{next(iter(fields))}': ")
    others = in_project(place, "x", "--script", script)
    assert others.returncode == 0
    assert str(path) in others.stderr


def test_the_project_s_env_file_is_never_read(place: Place) -> None:
    settings(place)
    place.write(".env", "OPENAI_API_KEY=sk-canary\nCORRAL_MODEL=m\n")
    assert "no model to call" in in_project(place, "x").stderr


# -- trust ------------------------------------------------------------------------------------------------------------


def test_trust_is_given_shown_lost_by_a_change_and_taken_back(place: Place) -> None:
    def trust(*arguments: str) -> str:
        run = place.command("trust", *arguments, str(place.project))
        assert run.returncode == 0, run
        return run.stdout.decode()

    assert "nothing to trust" in trust()
    place.write_agent("external", acp={"command": ["one"]})
    assert ": not trusted\n  agents/external.json  " in trust("--show")
    assert ": trusted, as long as" in trust()
    assert ": trusted\n" in trust("--show")
    place.write_agent("external", acp={"command": ["other"]})
    assert ": not trusted\n" in trust("--show")
    trust()
    assert "is not trusted any more" in trust("--remove")
    assert ": not trusted\n" in trust("--show")


# -- sessions ---------------------------------------------------------------------------------------------------------


def sessions(place: Place, *arguments: str) -> Run:
    return place.command("sessions", *arguments)


def states(place: Place) -> dict[str, str]:
    lines = [json.loads(line) for line in sessions(place, "list", "--json").stdout.splitlines()]
    return {line["session_id"]: line["state"] for line in lines}


def test_stored_sessions_are_listed_shown_exported_and_deleted_by_a_unique_beginning(place: Place, script: str) -> None:
    assert "no session is stored yet" in sessions(place, "list").stderr
    run = in_project(place, "Say hello", "--script", script, "--output-format", "stream-json")
    in_project(place, "Say more", "--script", script, "-s", run.session_id)
    listed = sessions(place, "list").stdout.decode()
    assert re.search(rf"^{run.session_id}  complete +[0-9-]+ [0-9:]+ .* scripted +Say hello$", listed, re.MULTILINE), (
        listed
    )
    shown = sessions(place, "show", run.session_id[:17]).stdout.decode()
    assert "> Say hello" in shown
    assert "> Say more" in shown
    assert f"{place.project}" in shown
    exported = json.loads(sessions(place, "export", run.session_id).stdout)
    assert [each["epoch"] for each in exported["runs"]] == [1, 2]
    assert [each["type"] for each in exported["agents"][0]["messages"]].count("user") == 2
    assert exported["usage"]["api_calls"] == 4
    in_project(place, "Another", "--script", script)
    ambiguous = sessions(place, "delete", run.session_id[:2])
    assert ambiguous.returncode == 2
    assert "begins the ids of 2 sessions" in ambiguous.stderr
    assert sessions(place, "delete", run.session_id).returncode == 0
    assert run.session_id not in states(place)
    assert sessions(place, "show", run.session_id).returncode == 2


def test_a_live_run_is_running_and_can_not_be_deleted_and_a_killed_one_is_crashed(place: Place) -> None:
    with ModelServer(scripted([hang()])) as server, place.start(server) as live:
        server.wait_for_requests(1)
        ((session_id, state),) = states(place).items()
        assert state == "running"
        refused = sessions(place, "delete", session_id)
        assert refused.returncode == 4
        assert f"in use by process {live.process.pid}" in refused.stderr
        second = place.run(server, "-s", session_id)
        assert second.returncode == 4
        assert f"in use by process {live.process.pid}" in second.stderr
        live.signal(signal.SIGKILL)
        live.finish(checked=False)
        assert states(place) == {session_id: "crashed"}
    with ModelServer(scripted([text("Again.")])) as server:
        assert place.run(server, "-s", session_id[:-2]).returncode == 0
    assert states(place) == {session_id: "complete"}
    runs = json.loads(sessions(place, "show", session_id, "--json").stdout)["runs"]
    assert [each["state"] for each in runs] == ["crashed", "complete"]


def database(place: Place, session_id: str) -> Path:
    return place.home / "state" / "corral" / "sessions" / session_id / "session.db"


@pytest.mark.parametrize(("kind", "state"), [("damaged", "damaged"), ("newer", "newer")])
def test_a_store_that_is_damaged_or_newer_is_refused_named_and_left_untouched(
    place: Place, script: str, kind: str, state: str
) -> None:
    run = in_project(place, "x", "--script", script, "--output-format", "stream-json")
    path = database(place, run.session_id)
    if kind == "damaged":
        path.write_bytes(b"no database at all" * 500)
    else:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    again = in_project(place, "x", "--script", script, "-s", run.session_id)
    assert (again.returncode, again.stdout) == (5, b"")
    assert str(path) in again.stderr
    assert sessions(place, "show", run.session_id).returncode == 5
    assert states(place) == {run.session_id: state}
    assert path.read_bytes() == before


def test_everything_that_is_stored_is_the_owner_s_alone(place: Place, script: str) -> None:
    before = os.umask(0)
    try:
        in_project(place, "x", "--script", script)
    finally:
        os.umask(before)
    found = list((place.home / "state" / "corral").rglob("*"))
    assert found
    assert {oct(path.stat().st_mode & 0o077) for path in found} == {"0o0"}


def small_disk(place: Place) -> tuple[str, ...]:
    """A command before another that puts the state folder on a file system of one megabyte, for that one alone."""
    state = place.home / "state"
    state.mkdir()
    mount = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(state))
    if (
        shutil.which("unshare") is None
        or subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("needs the right to make a mount of its own")
    return prefix


@pytest.mark.parametrize("cause", ["full disk", "limit"])
def test_no_tool_runs_whose_call_could_not_be_stored(place: Place, cause: str) -> None:
    prefix = small_disk(place) if cause == "full disk" else ("prlimit", "--fsize=1000000")
    calls = [("w", "Write", {"file_path": "made.txt", "content": "x"}), ("r", "Read", {"file_path": "y" * 3_000_000})]
    with ModelServer(scripted([tool_calls(calls)])) as server, place.start(server, prefix=prefix) as live:
        run = live.finish()
    assert run.returncode == 5, run
    assert run.end["code"] == ("storage_full" if cause == "full disk" else "storage_failed")
    assert not (place.project / "made.txt").exists()
    if cause == "full disk":
        assert "the disk is full: make room and resume the session" in run.stderr
