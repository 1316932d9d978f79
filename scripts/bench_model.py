"""The model server of the bench: answers at once, and says when each request came in.

It speaks as much of the OpenAI-compatible protocol as one streaming client needs. The address says what the model is
to do: below ``/bash/30`` it makes thirty Bash calls, one a reply, below ``/read/30`` thirty Read calls, below
``/none/0`` it answers with text at once. Below ``/fan/8/100`` it gives work to eight sub-agents in one reply, and
answers each of these with a Bash call that prints a hundred lines (with text at once where the number is 0), but not
before it is told to: a number on stdin lets so many sub-agents go on. How far it has come it reads from the request.

    python -m scripts.bench_model     prints its port, then for each model call the time (`time.monotonic_ns`), and for
                                      the reply that gives work to sub-agents the time once more when it leaves
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SUB_AGENT_PROMPT = "a part of the work"


class Server(ThreadingHTTPServer):
    """``let_go`` holds the sub-agents' replies back; room for many who connect at the same moment."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Model)
        self.let_go = threading.Semaphore(0)
        self._telling = threading.Lock()

    def tell(self, number: int) -> None:
        """Print a line that no other thread's line gets into."""
        with self._telling:
            print(number, flush=True)


class Model(BaseHTTPRequestHandler):
    """One connection, kept open between calls."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one segment

    def do_POST(self) -> None:
        """Answer one model call."""
        arrived = time.monotonic_ns()
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        assert isinstance(self.server, Server)
        self.server.tell(arrived)
        _, kind, calls, lines, *_ = self.path.split("/")
        done = sum(message["role"] == "tool" for message in messages)
        if kind == "fan" and done == 0 and _is_of_sub_agent(messages):
            reply = _printing_reply(int(lines)) if int(lines) else _final_reply()
            self.server.let_go.acquire()
        elif kind == "fan" and _is_of_sub_agent(messages):
            reply = _final_reply()
        elif kind == "fan" and done == 0:
            reply = _delegating_reply(int(calls))
            self.server.tell(time.monotonic_ns())
        else:
            reply = _reply(kind, done) if done < int(calls) else _final_reply()
        self._answer("text/event-stream", reply)

    def do_GET(self) -> None:
        """The list of models, for a client that asks."""
        self._answer("application/json", b'{"object":"list","data":[{"id":"bench","object":"model"}]}')

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing: stdout holds the times alone."""

    def _answer(self, content_type: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


def _is_of_sub_agent(messages: list[dict[str, Any]]) -> bool:
    return any(message["role"] == "user" and SUB_AGENT_PROMPT in str(message["content"]) for message in messages)


def _delegating_reply(agents: int) -> bytes:
    calls: list[dict[str, object]] = []
    for index in range(agents):
        arguments = {"agent_name": "task", "prompt": f"{SUB_AGENT_PROMPT}: {index}"}
        function = {"name": "InvokeAgent", "arguments": json.dumps(arguments)}
        calls.append({"index": index, "id": f"call{index}", "type": "function", "function": function})
    return _events({"role": "assistant", "tool_calls": calls}, "tool_calls")


def _reply(kind: str, done: int) -> bytes:
    return _one_call(done, *(_bash(done) if kind == "bash" else _read(done)))


def _printing_reply(lines: int) -> bytes:
    return _one_call(0, "Bash", {"command": f"seq {lines}"})


def _one_call(done: int, name: str, arguments: dict[str, object]) -> bytes:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"index": 0, "id": f"call{done}", "type": "function", "function": function}
    return _events({"role": "assistant", "tool_calls": [call]}, "tool_calls")


# No two calls in a row are the same: the loop guard would stop the run.


def _bash(done: int) -> tuple[str, dict[str, object]]:
    return "Bash", {"command": f"true {done}"}


def _read(done: int) -> tuple[str, dict[str, object]]:
    return "Read", {"file_path": f"file{done % 10}.txt", "start_line": done + 1}


def _final_reply() -> bytes:
    return _events({"role": "assistant", "content": "Done."}, "stop")


def _events(delta: dict[str, object], finish: str) -> bytes:
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    chunks: list[dict[str, object]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"choices": [], "usage": usage},
    ]
    shared = {"id": "bench", "object": "chat.completion.chunk", "created": 0, "model": "bench"}
    lines = [json.dumps({**shared, **chunk}) for chunk in chunks]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


def main() -> int:
    """Serve until stdin ends."""
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for line in sys.stdin:
        server.let_go.release(int(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
