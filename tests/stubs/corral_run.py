"""Runs of the real ``corral`` command, read as a client reads them.

`Place` is a project and a home of its own in a temporary folder. ``place.run(server, ...)`` runs the command to its
end; ``with place.start(server, ...) as live:`` leaves it running. Every run has an absolute bound, must leave no
process behind, and its stream must hold all that `stream_rules.check_stream` knows.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.stubs import process_table
from tests.stubs.model_server import ModelServer
from tests.stubs.stream_rules import Line, check_stream

RUN_TIMEOUT = 40.0
"""Seconds after which a run is killed and the test fails."""

COMMAND = Path(sys.executable).with_name("corral")
MARKER = "TEST_RUN_MARKER"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that has ended."""

    stdout: bytes
    stderr: str
    returncode: int

    @cached_property
    def lines(self) -> list[Line]:
        """The lines of the stream; fails on anything that is no line of JSON."""
        assert self.stdout == b"" or self.stdout.endswith(b"\n"), f"the last line is cut: {self.stdout[-200:]!r}"
        return [json.loads(line) for line in self.stdout.decode().split("\n")[:-1]]

    def of_type(self, kind: str) -> list[Line]:
        """All lines of one type."""
        return [line for line in self.lines if line["type"] == kind]

    def one(self, kind: str) -> Line:
        """The only line of its type."""
        found = self.of_type(kind)
        assert len(found) == 1, f"{len(found)} lines of type {kind}\n{self}"
        return found[0]

    def types(self) -> list[str]:
        """The types of all lines, in order."""
        return [line["type"] for line in self.lines]

    def outcomes(self) -> dict[str, str]:
        """How each tool call ended, by its id."""
        return {line["id"]: line["outcome"] for line in self.of_type("tool_call_result")}

    def outputs(self) -> dict[str, str]:
        """What each tool call answered, by its id."""
        return {line["id"]: line["output"] for line in self.of_type("tool_call_result")}

    @property
    def end(self) -> Line:
        """Why the turn ended."""
        reason: Line = self.one("turn_end")["reason"]
        return reason

    @property
    def session_id(self) -> str:
        """The session's id."""
        found: str = self.one("session_ready")["session_id"]
        return found

    def __str__(self) -> str:
        text = self.stdout.decode(errors="replace")
        return f"exit {self.returncode}\n--- stdout\n{text[-20_000:]}\n--- stderr\n{self.stderr[-5_000:]}"


@dataclass
class LiveRun:
    """A run that is under way."""

    process: subprocess.Popen[bytes]
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stdout: bytearray = field(default_factory=bytearray)
    _stderr: bytearray = field(default_factory=bytearray)
    _readers: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def __post_init__(self) -> None:
        for stream, kept in ((self.process.stdout, self._stdout), (self.process.stderr, self._stderr)):
            if stream is not None:
                thread = threading.Thread(target=self._read, args=(stream.fileno(), kept), daemon=True)
                self._readers.append(thread)
                thread.start()

    def _read(self, descriptor: int, kept: bytearray) -> None:
        while piece := os.read(descriptor, 65_536):
            with self._changed:
                kept += piece
                self._changed.notify_all()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor alone."""
        self.process.send_signal(number)

    def wait_for(self, wanted: Callable[[Line], bool], count: int = 1, timeout: float = 20.0) -> list[Line]:
        """The lines that are ``wanted``, as soon as there are ``count``."""

        def found() -> list[Line]:
            whole = bytes(self._stdout).split(b"\n")[:-1]
            return [line for line in map(json.loads, whole) if wanted(line)]

        with self._changed:
            arrived = self._changed.wait_for(lambda: len(found()) >= count, timeout)
            assert arrived, f"the lines did not come within {timeout} s\n{self._snapshot()}"
            return found()

    def wait_for_output(self, text: str, count: int = 1) -> list[Line]:
        """Lines of live tool output that hold ``text``."""
        return self.wait_for(lambda line: line["type"] == "tool_output_line" and text in line["line"], count)

    def wait_for_stderr(self, text: str, timeout: float = 20.0) -> None:
        """Return once ``text`` stands on standard error."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: text in self.stderr, timeout)
            assert arrived, f"{text!r} was not said within {timeout} s\n{self._snapshot()}"

    def finish(self, timeout: float = RUN_TIMEOUT, *, checked: bool = True) -> Run:
        """Wait for its end; a run that does not end in time is killed and fails the test.

        ``checked`` says that its stdout is a stream which reached its last lines and must hold all rules.
        """
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s\n{self._snapshot()}") from None
        for thread in self._readers:
            thread.join(timeout=5)
            assert not thread.is_alive(), "a process left behind holds an output pipe"
        run = self._snapshot()
        if checked:
            check_stream(run.lines, run.returncode)
        return run

    @property
    def stderr(self) -> str:
        """What it wrote there so far."""
        return self._stderr.decode(errors="replace")

    def kill(self) -> None:
        """End the supervisor and its group if they still run."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)

    def close(self) -> None:
        """Let go of the pipes; nobody may hold their other ends any more."""
        for thread in self._readers:
            thread.join(timeout=5)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _snapshot(self) -> Run:
        code = self.process.poll()
        return Run(
            stdout=bytes(self._stdout),
            stderr=self.stderr,
            returncode=-1000 if code is None else code,
        )


class Place:
    """A project and a home; ``config`` is the folder of XDG_CONFIG_HOME, ``executable`` the command that is run."""

    def __init__(self, folder: Path, executable: Path = COMMAND) -> None:
        self.executable = executable
        self.folder = folder
        self.project = folder / "project"
        self.home = folder / "home"
        self.config = self.home / "config"
        self.project.mkdir()
        self.home.mkdir()

    def write(self, name: str, text: str) -> Path:
        """Make a file of the project, its folders too."""
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def write_agent(self, name: str, **fields: object) -> Path:
        """Make an agent file in the project."""
        described = {"name": name, "system_prompt": f"You are {name}.", **fields}
        return self.write(f"agents/{name}.json", json.dumps(described))

    def model_flags(self, server: ModelServer | str) -> list[str]:
        """The flags that choose the stub as the model."""
        url = server if isinstance(server, str) else server.url
        return ["--provider", "lmstudio", "--model", "stub", "--base-url", url, "--project-root", str(self.project)]

    def run(
        self,
        server: ModelServer | str,
        *flags: str,
        prompt: str = "Fix the parser",
        form: str = "stream-json",
        timeout: float = RUN_TIMEOUT,
    ) -> Run:
        """One run with a prompt; its stream is checked."""
        arguments = ["-p", prompt, "--output-format", form, *self.model_flags(server), *flags]
        run = self.command(*arguments, timeout=timeout)
        if form == "stream-json" and run.returncode not in (2, 4, 5):
            check_stream(run.lines, run.returncode)
        return run

    def command(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        environment: Mapping[str, str] | None = None,
        timeout: float = RUN_TIMEOUT,
    ) -> Run:
        """The command with exactly these arguments, to its end."""
        with self._started(arguments, stdin=stdin, environment=environment or {}) as live:
            return live.finish(timeout, checked=False)

    @contextlib.contextmanager
    def start(
        self, server: ModelServer | str, *flags: str, stdout: int = subprocess.PIPE, prefix: tuple[str, ...] = ()
    ) -> Generator[LiveRun, None, None]:
        """A run that the block may look at and signal; the block must see it end.

        ``stdout`` is a descriptor to write to instead of the pipe that is read here, ``prefix`` a command that
        becomes the run by exec.
        """
        arguments = ["-p", "Fix the parser", "--output-format", "stream-json", *self.model_flags(server), *flags]
        with self._started(arguments, stdout=stdout, prefix=prefix) as live:
            yield live
            assert live.process.poll() is not None, "the block must see the run end"

    def environment(self) -> dict[str, str]:
        """A clean environment: no settings, no keys."""
        return {
            "XDG_CONFIG_HOME": str(self.config),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_DATA_HOME": str(self.home / "data"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
        }

    @contextlib.contextmanager
    def _started(
        self,
        arguments: Sequence[str],
        *,
        stdin: bytes | None = None,
        environment: Mapping[str, str] = {},
        stdout: int = subprocess.PIPE,
        prefix: tuple[str, ...] = (),
    ) -> Generator[LiveRun, None, None]:
        marker = uuid.uuid4().hex
        with process_table.subreaper():
            known = frozenset(process.pid for process in process_table.descendants(os.getpid()))
            traces = process_table.Traces(known=known, marker=marker, folders=(self.folder,))
            process = subprocess.Popen(
                [*prefix, str(self.executable), *arguments],
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=stdout,
                stderr=subprocess.PIPE,
                cwd=self.folder,
                env={**self.environment(), **environment, MARKER: marker},
                start_new_session=True,
            )
            live = LiveRun(process)
            left: list[process_table.Process] = []
            try:
                if stdin is not None and process.stdin is not None:
                    with contextlib.suppress(BrokenPipeError), process.stdin:
                        process.stdin.write(stdin)
                yield live
            finally:
                live.kill()
                left = traces.left_behind()
                live.close()
            assert not left, f"left behind: {left}"
            assert "Traceback (most recent call last)" not in live.stderr, live.stderr
