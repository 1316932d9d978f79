"""The front door, mostly as a real process: what a person or a script sees of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("corral")
SECONDS = 30.0
SCENARIO = json.dumps({"agents": {"*": [{"reply": {"text": "Done."}}]}})


def environment(home: Path, **more: str) -> dict[str, str]:
    """A clean environment with a home of its own: no key, no CORRAL_ variable of the person who runs the tests."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **more}


def corral(
    home: Path, *arguments: str, stdin: bytes = b"", variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end in ``home``."""
    command: Sequence[str] = [str(COMMAND), *arguments]
    env = environment(home, **(variables or {}))
    return subprocess.run(command, cwd=home, env=env, input=stdin, capture_output=True, timeout=SECONDS, check=False)


def test_version_is_the_distribution_s(tmp_path: Path) -> None:
    from importlib.metadata import version

    done = corral(tmp_path, "--version")
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, f"corral {version('corral')}\n", b"")


def test_help_names_every_flag_its_variables_and_the_exit_codes(tmp_path: Path) -> None:
    from supervisor.flags import ONE_SHOT_FLAGS

    done = corral(tmp_path, "--help")
    text = done.stdout.decode()
    assert done.returncode == 0
    assert done.stderr == b""
    for flags in ONE_SHOT_FLAGS.values():
        for flag in flags:
            assert f"--{flag.name}" in text
    assert "CORRAL_" in text
    assert "exit codes: 0 complete" in text


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(tmp_path: Path, argument: str) -> None:
    probe = (
        "import sys; from supervisor.cli import main; code = main(sys.argv[1:]); "
        "print(sorted({'trio', 'msgspec', 'httpx', 'asyncio', 'importlib.metadata'} & set(sys.modules)), "
        "file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, argument], env=environment(tmp_path), capture_output=True, timeout=SECONDS
    )
    assert (done.returncode, done.stderr) == (0, b"[]\n")


@pytest.mark.parametrize(("closed", "code"), [(">&-", 141), ("2>&-", 0)])
def test_a_stream_that_is_closed_from_the_start_is_no_traceback(tmp_path: Path, closed: str, code: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f"'{COMMAND}' --version {closed}"], env=environment(tmp_path), timeout=SECONDS, capture_output=True
    )
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_a_closed_stdout_is_no_traceback(tmp_path: Path, argument: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [str(COMMAND), argument], env=environment(tmp_path), stdout=write_end, stderr=subprocess.PIPE, timeout=SECONDS
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


WRONG: list[tuple[list[str], str]] = [
    (["--prompt-file", "nowhere"], "nowhere can't be read"),
    (["--provider", "ollama", "--model", "m"], "there is no prompt"),
    (["-p", ""], "there is no prompt"),
    (["-p", " \n"], "there is no prompt"),
    (["fix", "it"], "put it in quotes"),
    (["-p", "one", "two"], "two prompts"),
    (["-p"], '-p takes the prompt: -p "TEXT"'),
    (["x", "--modle", "m"], "did you mean --model?"),
    (["x", "--model"], "expected one argument"),
    (["x", "--output-format", "yaml"], "--output-format is one of text, json, stream-json, not 'yaml'"),
    (["x", "--trust", "root"], "--trust is one of plan, safe, auto"),
    (["x", "--max-turns", "0"], "--max-turns takes a whole number of at least 1, not '0'"),
    (["x", "--max-turns", "1.5"], "--max-turns takes a whole number"),
    (["x", "--max-tokens-total", "99999999999999999999"], "--max-tokens-total takes a whole number"),
    (["x", "--max-agents", "-1"], "--max-agents takes a whole number of at least 0"),
    (["x", "--timeout", "nan"], "--timeout takes a number over 0, not 'nan'"),
    (["x", "--timeout", "0"], "--timeout takes a number over 0"),
    (["x", "--idle-timeout", "inf"], "--idle-timeout takes a number over 0"),
    (["x", "--retry-delay", "-1"], "--retry-delay takes a number of at least 0"),
    (["x", "--project-root", "nowhere"], "there is no folder nowhere"),
    (["x", "--project-root", "file"], "is not a folder"),
    (["x", "--agent", "nobody"], "there is no agent 'nobody'; there are default, explore, plan, task, verify"),
    (["x", "--provider", "acme"], "there is no provider 'acme'"),
    (["x", "--provider", "lmstudio"], "name it with --model"),
    (["x", "--provider", "openai", "--model", "m"], "set OPENAI_API_KEY"),
    (["x", "--provider", "openai-compatible", "--model", "m"], "needs --base-url"),
    (["x", "--base-url", "localhost:80", "--model", "m"], "starts with http:// or https://"),
    (["x", "--base-url", "http://u:secret@h/v1", "--model", "m"], "no user and password"),
    (["x", "--provider", "scripted"], "--script FILE"),
    (["x", "--script", "nowhere.json"], "nowhere.json can't be read"),
    (["x", "--script", "file"], "file"),
    (["x", "--script", "scenario.json", "--session", "../../etc"], "there is no session '../../etc'"),
    (["x", "--script", "scenario.json", "--session", "20200101-000000-abcdef"], "there is no session"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG, ids=[" ".join(each) or "nothing" for each, _ in WRONG])
def test_what_is_wrong_is_one_sentence_on_stderr_and_exit_code_2(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "file").write_text("no scenario")
    (tmp_path / "scenario.json").write_text(SCENARIO)
    done = corral(tmp_path, *arguments)
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (2, b""), said
    assert re.fullmatch(r"corral: [^\n]+\n", said), said
    assert sentence in said
    assert "secret" not in said


def test_a_wrong_flag_is_reported_though_stdin_never_ends(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end), os.fdopen(write_end, "wb"):
        done = subprocess.run(
            [str(COMMAND), "--timeout", "soon"],
            env=environment(tmp_path),
            stdin=read_end,
            capture_output=True,
            timeout=SECONDS,
        )
    assert done.returncode == 2
    assert b"--timeout" in done.stderr


def test_an_error_can_not_steer_the_terminal(tmp_path: Path) -> None:
    done = corral(tmp_path, "x", "--agent", "\x1b]0;owned\x07\u202e\nsecond line")
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert not set("\x1b\x07\u202e") & set(done.stderr.decode())


def test_a_variable_with_a_wrong_value_is_named(tmp_path: Path) -> None:
    done = corral(tmp_path, "x", variables={"CORRAL_MAX_TURNS": "many"})
    assert done.returncode == 2
    assert b"CORRAL_MAX_TURNS takes a whole number of at least 1, not 'many'" in done.stderr


def test_a_deleted_current_folder_is_a_sentence(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"cd '{gone}' && rmdir '{gone}' && exec '{COMMAND}' -p x"
    done = subprocess.run(
        ["/bin/sh", "-c", script], env=environment(tmp_path), capture_output=True, timeout=SECONDS, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"corral: the current folder is gone: name the project's with --project-root\n" in done.stderr


def test_ctrl_c_while_modules_are_imported_is_130_without_a_traceback(tmp_path: Path) -> None:
    """A module that shadows trio says that its import has begun, and then never ends."""
    started = tmp_path / "started"
    os.mkfifo(started)
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "trio.py").write_text(f"import signal\nopen({str(started)!r}, 'w').close()\nsignal.pause()\n")
    process = subprocess.Popen(
        [str(COMMAND), "-p", "x", "--provider", "ollama", "--model", "m"],
        env=environment(tmp_path, PYTHONPATH=str(modules)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _interrupt_after(started, process)


def test_ctrl_c_while_a_scenario_is_read_is_130_without_a_traceback(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario"
    os.mkfifo(scenario)
    process = subprocess.Popen(
        [str(COMMAND), "-p", "x", "--script", str(scenario)],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _interrupt_after(scenario, process, "wb")


def _interrupt_after(fifo: Path, process: subprocess.Popen[bytes], mode: str = "rb") -> None:
    """Interrupt ``process`` once it has opened ``fifo``, and look at its end."""
    opened = threading.Event()
    bound = threading.Thread(target=_let_open, args=(fifo, process, opened))
    bound.start()
    try:
        with fifo.open(mode):
            opened.set()
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=SECONDS)
        assert (process.returncode, stdout, stderr) == (130, b"", b"")
    finally:
        opened.set()
        process.kill()
        process.wait()
        bound.join()


def _let_open(fifo: Path, process: subprocess.Popen[bytes], opened: threading.Event) -> None:
    """Once ``process`` has ended, or should have, be the other end that an open of ``fifo`` waits for, until it is."""
    try:
        process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
    descriptor = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    opened.wait(SECONDS)
    os.close(descriptor)


def test_a_process_that_ends_before_it_opens_the_fifo_is_a_failure_and_no_wait_without_end(tmp_path: Path) -> None:
    fifo = tmp_path / "never"
    os.mkfifo(fifo)
    for mode in ("rb", "wb"):
        process = subprocess.Popen(["true"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with pytest.raises(AssertionError):
            _interrupt_after(fifo, process, mode)


def test_an_ignored_interrupt_stays_ignored() -> None:
    probe = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from supervisor.cli import main; "
        "main(['--version']); assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_run_finds_python_s_own_interrupt_handler() -> None:
    from supervisor.cli import main

    before = signal.getsignal(signal.SIGINT)
    assert main(["--version"]) == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_a_command_is_one_line_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from supervisor import cli

    monkeypatch.setitem(cli.COMMANDS, "count", "tests.supervisor.test_cli:count_arguments")
    assert cli.main(["count", "--a", "b"]) == 2


def count_arguments(arguments: list[str]) -> int:
    """The command of the test above."""
    return len(arguments)
