"""The model server of the bench: answers at once, and says when each request came in.

It speaks as much of the OpenAI-compatible protocol as one streaming client needs. The address says what the model is
to do: below ``/bash/30`` it makes thirty Bash calls, one a reply, below ``/read/30`` thirty Read calls, below
``/none/0`` it answers with text at once. How far it has come it reads from the request.

    python -m scripts.bench_model     prints its port, then for each model call the time (`time.monotonic_ns`)
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Model(BaseHTTPRequestHandler):
    """One connection, kept open between calls."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one segment

    def do_POST(self) -> None:
        """Answer one model call."""
        arrived = time.monotonic_ns()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        print(arrived, flush=True)
        _, kind, calls, *_ = self.path.split("/")
        done = sum(message["role"] == "tool" for message in json.loads(body)["messages"])
        self._answer("text/event-stream", _reply(kind, done) if done < int(calls) else _final_reply())

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


def _reply(kind: str, done: int) -> bytes:
    name, arguments = _bash(done) if kind == "bash" else _read(done)
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
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
