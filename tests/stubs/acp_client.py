"""A client of ``corral acp`` over pipes: sends any bytes, reads every line, and says so if one is no JSON-RPC.

``with acp_client(place, server) as client:`` starts the command; when the block ends its input is closed, and then it
must end by itself and leave no process behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeAlias

from tests.stubs import process_table
from tests.stubs.corral_run import MARKER, Place
from tests.stubs.model_server import ModelServer

Json: TypeAlias = dict[str, Any]
SECONDS = 20.0


def allow_once(request: Json) -> Json:
    """The answer of a person who says yes."""
    return {"outcome": {"outcome": "selected", "optionId": request["params"]["options"][0]["optionId"]}}


class AcpClient:
    """The client's side. ``answer`` gives the results of the agent's own requests; None answers later or never."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.answer: Callable[[Json], Json | None] = allow_once
        self.sent: list[Json] = []
        self._received: list[Json] = []
        self._faults: list[str] = []
        self._changed = threading.Condition()
        self._numbers = 0
        self._may_read = threading.Event()
        self._may_read.set()
        self._is_done = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    # -- what is read

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._may_read.wait(SECONDS)
            if self._is_done:
                break
            try:
                message: Json = json.loads(line)
                assert message["jsonrpc"] == "2.0"
            except (ValueError, AssertionError, KeyError, TypeError):
                with self._changed:
                    self._faults.append(f"stdout holds a line that is no message: {line[:200]!r}")
                continue
            with self._changed:
                self._received.append(message)
                self._changed.notify_all()
            if "method" in message and "id" in message and (result := self.answer(message)) is not None:
                self.send({"jsonrpc": "2.0", "id": message["id"], "result": result})
        with self._changed:
            self._changed.notify_all()
        if self._is_done:
            self.process.stdout.close()

    @contextlib.contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Take nothing from the agent while the block runs."""
        self._may_read.clear()
        try:
            yield
        finally:
            self._may_read.set()

    def stop_reading(self) -> None:
        """Close our end of the agent's output, at the next line that comes."""
        self._is_done = True

    @property
    def received(self) -> list[Json]:
        """All messages so far."""
        with self._changed:
            assert not self._faults, self._faults
            return list(self._received)

    def wait_for(self, wanted: Callable[[Json], bool], seconds: float = SECONDS, count: int = 1) -> Json:
        """The last of the first ``count`` messages that are ``wanted``, once it is there."""
        found: list[Json] = []

        def is_there() -> bool:
            found[:] = [message for message in self._received if wanted(message)]
            return len(found) >= count

        with self._changed:
            arrived = self._changed.wait_for(is_there, seconds)
        assert arrived, f"it did not come within {seconds} s; {self.received[-10:]}"
        return found[count - 1]

    def wait_for_update(self, kind: str, seconds: float = SECONDS, **fields: object) -> Json:
        """The first update of its kind with these fields."""

        def is_wanted(message: Json) -> bool:
            update = message.get("params", {}).get("update", {})
            return update.get("sessionUpdate") == kind and all(update.get(name) == fields[name] for name in fields)

        update: Json = self.wait_for(is_wanted, seconds)["params"]["update"]
        return update

    def updates(self, session: str | None = None) -> list[Json]:
        """All updates so far, of one session or of all."""
        return [
            message["params"]["update"]
            for message in self.received
            if message.get("method") == "session/update" and session in (None, message["params"]["sessionId"])
        ]

    def of_kind(self, kind: str, session: str | None = None) -> list[Json]:
        """The updates of one kind."""
        return [update for update in self.updates(session) if update["sessionUpdate"] == kind]

    def text(self, session: str | None = None) -> str:
        """The main agent's text."""
        return "".join(update["content"]["text"] for update in self.of_kind("agent_message_chunk", session))

    # -- what is sent

    def raw(self, data: bytes) -> None:
        """Send these bytes."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def send(self, message: Json) -> None:
        """Send one message."""
        self.sent.append(message)
        self.raw(json.dumps(message).encode() + b"\n")

    def ask(self, method: str, /, **params: object) -> int:
        """Send a request and return its id."""
        self._numbers += 1
        self.send({"jsonrpc": "2.0", "id": self._numbers, "method": method, "params": params})
        return self._numbers

    def response(self, number: object, seconds: float = SECONDS) -> Json:
        """The answer to a request, once it is there."""
        return self.wait_for(lambda message: "method" not in message and message["id"] == number, seconds)

    def call(self, method: str, /, **params: object) -> Json:
        """A request and its result; an error fails."""
        response = self.response(self.ask(method, **params))
        assert "result" in response, response
        result: Json = response["result"]
        return result

    def error(self, method: str, /, **params: object) -> Json:
        """A request and its error; a result fails."""
        response = self.response(self.ask(method, **params))
        assert "error" in response, response
        error: Json = response["error"]
        return error

    def notify(self, method: str, /, **params: object) -> None:
        """Send a notification."""
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    # -- the usual beginning

    def initialize(self, **capabilities: object) -> Json:
        """Greet."""
        return self.call("initialize", protocolVersion=1, clientCapabilities=capabilities)

    def new(self, folder: Path) -> str:
        """A new session in ``folder``."""
        session: str = self.call("session/new", cwd=str(folder), mcpServers=[])["sessionId"]
        return session

    def prompt(self, session: str, text: str = "Fix the parser") -> int:
        """Send a prompt and return the request's id."""
        return self.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    def turn(self, session: str, text: str = "Fix the parser") -> str:
        """A whole turn; its stop reason."""
        reason: str = self.response(self.prompt(session, text))["result"]["stopReason"]
        return reason

    # -- the end

    def close(self) -> None:
        """End the agent's input."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def finish(self, seconds: float = SECONDS) -> int:
        """Wait for its end, and return the exit code."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s; {self.received[-10:]}") from None
        self._thread.join(5)
        assert not self._thread.is_alive(), "a process left behind holds the output pipe"
        assert self.received is not None
        return code


def second_shell(place: Place, *arguments: str) -> bytes:
    """What a command says while the agent runs."""
    command = [str(place.executable), *arguments]
    return subprocess.run(command, env=place.environment(), capture_output=True, timeout=30, check=True).stdout


def opened(client: AcpClient, place: Place, **capabilities: object) -> str:
    """A session in the place's project."""
    client.initialize(**capabilities)
    return client.new(place.project)


@contextlib.contextmanager
def acp_client(
    place: Place, server: ModelServer | None, *flags: str, stderr: Path | None = None
) -> Generator[AcpClient, None, None]:
    """A client of a new ``corral acp``; see the module. ``stderr`` is where the agent's own words go."""
    marker = uuid.uuid4().hex
    words = stderr or place.folder / f"stderr-{marker}"
    model = [] if server is None else ["--provider", "lmstudio", "--model", "stub", "--base-url", server.url]
    with process_table.subreaper(), words.open("wb") as error:
        known = frozenset(process.pid for process in process_table.descendants(os.getpid()))
        traces = process_table.Traces(known=known, marker=marker, folders=(place.folder,))
        process = subprocess.Popen(
            [str(place.executable), "acp", *model, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=error,
            cwd=place.folder,
            env={**place.environment(), MARKER: marker},
            start_new_session=True,
        )
        client = AcpClient(process)
        left: list[process_table.Process] = []
        try:
            yield client
            client.close()
            client.finish()
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
            left = traces.left_behind()
            client.close()
            assert process.stdout is not None
            process.stdout.close()
        assert not left, f"left behind: {left}"
        said = words.read_text(errors="replace")
        assert "Traceback (most recent call last)" not in said, said
