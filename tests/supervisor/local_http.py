"""A small HTTP server on the loopback with fixed answers, for what is asked of model servers beside the calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


class FixedAnswers:
    """``with FixedAnswers({"/v1/models": {...}}) as server:`` answers these paths, all others with 404.

    ``asked`` has every request so far: method, path, body and the Authorization header.
    """

    def __init__(self, answers: Mapping[str, object]) -> None:
        self.asked: list[tuple[str, str, bytes, str]] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                asked.append((self.command, self.path, body, self.headers.get("authorization", "")))
                found = self.path in answers
                content = json.dumps(answers[self.path]).encode() if found else b"no such path"
                self.send_response(200 if found else 404)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET  # noqa: N815 - the library's names

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                """Nothing is logged."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.port: int = self._server.server_address[1]
        self.root = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.root}/v1"

    def __enter__(self) -> FixedAnswers:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def listing(*models: str, **more: object) -> dict[str, object]:
    """The answer to ``/v1/models``."""
    return {"object": "list", "data": [{"id": model, "object": "model", **more} for model in models]}
