"""Keys: in no environment, file, stream or message, and out of reach of the commands that a model runs.

Source: the safety contract, rules 3, 8 and 9. As root a command may read whatever it likes of any process; as an
ordinary user it may not, which is tried where the tests run as root and can become one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.stubs.corral_run import Place, Run
from tests.stubs.model_server import ModelServer, scripted
from tests.stubs.replies import status, tool_calls

CANARY = "sk-canary-5ab12f"
NOBODY = 65534

SEARCH = r"""
for file in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do
  tr '\0' '\n' <$file 2>/dev/null | grep -q CANARY_TEXT && echo "found in $file"
done
env | grep CANARY_TEXT && echo "found in env"
echo searched
"""
"""A command that looks for the canary wherever it may; the word is put together there, so it never finds itself."""


def search(text: str = CANARY) -> str:
    return SEARCH.replace("CANARY_TEXT", f'"{text[:4]}""{text[4:]}"')


def everything_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def run_with_key(place: Place, server: ModelServer, *flags: str) -> Run:
    arguments = ["-p", "x", "--output-format", "stream-json", "--base-url", server.url, "--model", "m", *flags]
    return place.command("-C", str(place.project), *arguments, environment={"CORRAL_API_KEY": CANARY})


@pytest.mark.parametrize("spawn", ["fork", "fresh"])
def test_a_key_reaches_the_server_and_is_in_no_environment_or_argument_of_our_processes(
    place: Place, spawn: str
) -> None:
    with ModelServer(scripted([tool_calls([("look", "Bash", {"command": search()})])])) as server:
        run = run_with_key(place, server, "--spawn", spawn)
    assert server.chats[0].headers["authorization"] == f"Bearer {CANARY}"
    output = run.outputs()["look"]
    assert "searched" in output, run
    assert "found in" not in output


def test_a_key_is_in_no_store_stream_or_message_though_the_server_repeats_it(place: Place) -> None:
    with ModelServer(lambda _request: status(400, f"no such key {CANARY}")) as server:
        run = run_with_key(place, server)
    assert run.returncode == 1
    assert CANARY.encode() not in run.stdout
    assert CANARY not in run.stderr
    assert CANARY.encode() not in everything_below(place.home)


def as_ordinary_user() -> list[str]:
    """A command before another that makes it run as an ordinary user; one that can read files, so that it finds Python.

    The right to read files says nothing of processes: those are kept apart by who they are and whether they let it be.
    """
    if os.geteuid() != 0:
        return []
    rights = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *rights]
    if (
        shutil.which("setpriv") is None
        or subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("needs an ordinary user, or setpriv and the right to become one")
    return prefix


@pytest.mark.parametrize(
    ("spawn", "debuggable"), [("fork", "0"), ("fresh", "0"), ("fork", "1")], ids=["fork", "fresh", "debuggable"]
)
def test_a_command_of_an_ordinary_user_reads_nothing_of_our_processes(
    place: Place, spawn: str, debuggable: str
) -> None:
    prefix = as_ordinary_user()
    if prefix:
        for folder in (place.project, place.home):
            os.chown(folder, NOBODY, NOBODY)
    command = "for p in $PPID $(awk '{print $4}' /proc/$PPID/stat); do for n in environ maps; do head -c 1 /proc/$p/$n"
    command += " >/dev/null 2>&1 && echo READ $n; done; done; echo searched as $(id -u)"
    with ModelServer(scripted([tool_calls([("look", "Bash", {"command": command})])])) as server:
        arguments = ["-p", "x", "--output-format", "stream-json", "--base-url", server.url, "--model", "m"]
        done = subprocess.run(
            [*prefix, str(place.executable), *arguments, "--spawn", spawn, "-C", str(place.project)],
            env={**place.environment(), "CORRAL_API_KEY": CANARY, "CORRAL_DEBUGGABLE": debuggable},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=40,
            check=False,
        )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    outputs = [line["output"] for line in lines if line["type"] == "tool_call_result"]
    assert len(outputs) == 1, done
    assert f"searched as {NOBODY if prefix else os.geteuid()}" in outputs[0]
    assert ("READ" in outputs[0]) is (debuggable == "1"), outputs[0]


def test_a_hook_of_the_project_s_repository_is_never_run(place: Place) -> None:
    subprocess.run(["git", "init", "-q", str(place.project)], check=True, env=place.environment())
    trap = place.write("trap.sh", f"#!/bin/sh\ntouch {place.folder}/sprung\n")
    trap.chmod(0o755)
    with (place.project / ".git" / "config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = "{trap}"\n\tpager = "{trap}"\n\thooksPath = "{place.project}"\n')
    place.write(".gitignore", "ignored/\n")
    calls = [
        ("a", "Grep", {"pattern": "touch"}),
        ("b", "Glob", {"pattern": "**/*"}),
        ("c", "List", {"path": "."}),
        ("d", "Write", {"file_path": "new.txt", "content": "x"}),
    ]
    with ModelServer(scripted([tool_calls(calls)])) as server:
        run = place.run(server)
    assert run.returncode == 0, run
    assert not (place.folder / "sprung").exists()
