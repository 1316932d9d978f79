"""An agent of the Agent Client Protocol as a process, without a model: ``FAKE_MODE`` says how it behaves.

    python fake_acp_agent.py

Variables name files in which it leaves what a test wants to see: ``FAKE_METHODS`` the methods it was called with, one
a line; ``FAKE_CANCELS`` the cancels among them; ``FAKE_PIDS`` the pids of itself and its children, one a line;
``FAKE_MESSAGES`` each whole message. ``FAKE_STOP_REASON`` is what its prompts end with, ``end_turn`` if not set.
In the mode ``remembering`` it keeps its sessions in the folder ``FAKE_SESSIONS`` and announces ``FAKE_CAPABILITIES``.

It uses the standard library alone, and nothing of ours.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

Message = dict[str, Any]
SESSION = "session-of-the-fake"
IGNORES_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"


def leave(name: str, text: str) -> None:
    if path := os.environ.get(name):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def write(*messages: Message) -> None:
    """Write them all at once."""
    sys.stdout.write("".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages))
    sys.stdout.flush()


def read() -> Message:
    """The next message; ends the process where there is none."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    message = cast(Message, json.loads(line))
    leave("FAKE_MESSAGES", line.strip())
    if "method" in message:
        leave("FAKE_METHODS", message["method"])
    if message.get("method") == "session/cancel":
        leave("FAKE_CANCELS", "session/cancel")
    return message


def read_until(method: str) -> Message:
    while (message := read()).get("method") != method:
        pass
    return message


def answer(request: Message, result: Message) -> None:
    write({"id": request["id"], "result": result})


def end_prompt(request: Message, stop_reason: str | None = None) -> None:
    answer(request, {"stopReason": stop_reason or os.environ.get("FAKE_STOP_REASON", "end_turn")})


def update_of(session_id: str, kind: str, **fields: Any) -> Message:
    update = {"sessionUpdate": kind, **fields}
    return {"method": "session/update", "params": {"sessionId": session_id, "update": update}}


def say(text: str, session_id: str = SESSION) -> None:
    write(update_of(session_id, "agent_message_chunk", content={"type": "text", "text": text}))


def open_session() -> None:
    answer(read_until("initialize"), {"protocolVersion": 1, "agentCapabilities": {}})
    answer(read_until("session/new"), {"sessionId": SESSION})


def next_prompt() -> tuple[Message, str]:
    request = read_until("session/prompt")
    return request, "".join(block.get("text", "") for block in request["params"]["prompt"])


def start_child(*arguments: str, **options: Any) -> None:
    """A child that says a line once it is as it should be."""
    child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, **options)
    assert child.stdout is not None
    child.stdout.readline()
    leave("FAKE_PIDS", str(child.pid))


# -- modes ------------------------------------------------------------------------------------------------------------


def plain() -> None:
    open_session()
    while True:
        request, _ = next_prompt()
        say("hello from the fake")
        end_prompt(request)


def steered() -> None:
    open_session()
    request, _ = next_prompt()
    say("first, ")
    end_prompt(request)
    request, text = next_prompt()
    say(f"then: {text}")
    end_prompt(request)
    read()


def interrupted() -> None:
    open_session()
    request, _ = next_prompt()
    say("cut off, ")
    read_until("session/cancel")
    end_prompt(request, "cancelled")
    request, text = next_prompt()
    say(f"then: {text}")
    end_prompt(request)
    read()


def deaf() -> None:
    """Says something and then takes no notice of anything."""
    open_session()
    next_prompt()
    say("I am at it")
    while True:
        read()


def cancellable() -> None:
    open_session()
    request, _ = next_prompt()
    say("I am at it")
    read_until("session/cancel")
    end_prompt(request, "cancelled")
    read()


def permission() -> None:
    open_session()
    request, _ = next_prompt()
    kinds = {"no": "reject_once", "once": "allow_once", "always": "allow_always"}
    options = [{"optionId": name, "name": name, "kind": kind} for name, kind in kinds.items()]
    params = {"sessionId": SESSION, "toolCall": {"toolCallId": "call-1", "title": "Write it"}, "options": options}
    write({"id": 0, "method": "session/request_permission", "params": params})
    say(json.dumps(read()["result"]))
    end_prompt(request)
    read()


def file_writer() -> None:
    open_session()
    request, _ = next_prompt()
    Path("written.txt").write_text("by the fake\n", encoding="utf-8")
    say(str(Path.cwd()))
    end_prompt(request)
    read()


def environment() -> None:
    open_session()
    request, _ = next_prompt()
    say(json.dumps(dict(os.environ)))
    end_prompt(request)
    read()


def silent() -> None:
    signal.pause()


def lingering() -> None:
    """Answers, and then takes neither the end of its input nor SIGTERM for a reason to go; nor does its child."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start_child("-c", IGNORES_SIGTERM)
    open_session()
    request, _ = next_prompt()
    say("hello from the fake")
    end_prompt(request)
    signal.pause()


def wrapper() -> None:
    """Answers and exits by itself, and leaves children in its group that would outlive it."""
    open_session()
    request, _ = next_prompt()
    for _ in range(3):
        start_child("-c", IGNORES_SIGTERM)
    say("hello from the fake")
    end_prompt(request)


def unreaped() -> None:
    """Leaves an orphan in its group that dies and is reaped by nobody for a while."""
    open_session()
    request, _ = next_prompt()
    start_child("-c", "import os, sys; os.fork() and os._exit(0); print(flush=True)")
    say("hello from the fake")
    end_prompt(request)
    read()


def malformed() -> None:
    read()
    sys.stderr.write("this is no JSON\n")
    sys.stderr.flush()
    sys.stdout.write('{"jsonrpc": "2.0", "id": 1, "result": {\n')
    sys.stdout.flush()
    read()


def early_exit() -> None:
    sys.stderr.write("no luck today\n")
    sys.stderr.flush()
    sys.exit(2)


def killed() -> None:
    open_session()
    next_prompt()
    os.kill(os.getpid(), signal.SIGKILL)


def noisy_on_stderr() -> None:
    """Fills its standard error and its output many times over before it reads its prompt."""
    open_session()
    for _ in range(200):
        sys.stderr.write("x" * 8000 + "\n")
        say("y" * 8000)
    request, text = next_prompt()
    say(str(len(text)))
    end_prompt(request)
    read()


def remembering() -> None:
    """Says, as JSON, all prompts of its session; one that begins with ``wait`` ends with its cancel."""
    capabilities = json.loads(os.environ.get("FAKE_CAPABILITIES", "{}"))
    answer(read_until("initialize"), {"protocolVersion": 1, "agentCapabilities": capabilities})
    session = opened_session()
    while True:
        request, text = next_prompt()
        with session.open("a", encoding="utf-8") as file:
            file.write(json.dumps(text) + "\n")
        if text.startswith("wait"):
            say("I wait", session.name)
            read_until("session/cancel")
            end_prompt(request, "cancelled")
        else:
            say(json.dumps(prompts_of(session)), session.name)
            end_prompt(request)


def opened_session() -> Path:
    """The file of the session that we are asked for, once it is one that there is."""
    folder = Path(os.environ["FAKE_SESSIONS"])
    while (request := read())["method"] != "session/new":
        session = folder / str(request["params"]["sessionId"])
        if not session.exists():
            write({"id": request["id"], "error": {"code": -32002, "message": "there is no such session"}})
            continue
        replayed = replay_of(session) if request["method"] == "session/load" else []
        half = len(replayed) // 2  # some agents go on with it after their answer
        write(*replayed[:half], {"id": request["id"], "result": {}}, *replayed[half:])
        return session
    folder.mkdir(exist_ok=True)
    session = folder / f"session-{len(list(folder.iterdir())) + 1}"
    session.touch()
    answer(request, {"sessionId": session.name})
    return session


def prompts_of(session: Path) -> list[str]:
    return [json.loads(line) for line in session.read_text(encoding="utf-8").splitlines()]


def replay_of(session: Path) -> list[Message]:
    name, said = session.name, {"type": "text", "text": "replayed"}
    return [
        message
        for prompt in prompts_of(session)
        for message in (
            update_of(name, "user_message_chunk", content={"type": "text", "text": prompt}),
            update_of(name, "tool_call", toolCallId="old", title="Old", status="completed", rawOutput="old"),
            update_of(name, "agent_message_chunk", content=said),
        )
    ]


MODES: dict[str, Callable[[], None]] = {
    mode.__name__: mode
    for mode in (
        plain, steered, interrupted, deaf, cancellable, permission, file_writer, environment, silent, lingering,
        wrapper, unreaped, malformed, early_exit, killed, noisy_on_stderr, remembering,
    )
}  # fmt: skip


if __name__ == "__main__":
    leave("FAKE_PIDS", str(os.getpid()))
    MODES[os.environ.get("FAKE_MODE", "plain")]()
