"""An HTTP server on a free port of this machine, for tests that play the Hub."""

import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass
class Fault:
    """Trouble with the next `times` requests that match.

    `kind` is a status (503; 429 comes with Retry-After), `drop` (the connection closes before the answer) or `cut` (in
    the middle of it).
    """

    pattern: str  # of `METHOD /path`
    kind: str
    times: float = 1


class LocalServer:
    """Answers within a `with` block; its handlers find it as `hub`."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"hub": self}))
        self.faults: list[Fault] = []
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class QuietHandler(BaseHTTPRequestHandler):
    """Writes no log."""

    hub: Any
    protocol_version = "HTTP/1.1"

    def in_trouble(self, request: str) -> str | None:
        """The kind of fault that the request meets, if any. A connection that does not answer is closed here."""
        fault = next((f for f in self.hub.faults if f.times > 0 and re.search(f.pattern, request)), None)
        if fault is None:
            return None
        fault.times -= 1
        if fault.kind == "drop":
            self.close_connection = True
            self.connection.close()
        return fault.kind

    def send(self, body: bytes, status: int, headers: dict[str, str], kind: str | None = None) -> None:
        """Send an answer, with the fault of that kind."""
        if kind == "drop":
            return
        if kind is not None and kind.isdecimal():
            body, status, headers = b"{}", int(kind), {"Retry-After": "7"} if kind == "429" else {}
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if kind == "cut" else body)
        self.close_connection = self.close_connection or kind == "cut"

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (BrokenPipeError, ConnectionResetError, ValueError):  # the client has gone, or we have hung up
            self.close_connection = True

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):
            pass

    def log_message(self, *_: object) -> None:
        pass
