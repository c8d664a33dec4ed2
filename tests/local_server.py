"""An HTTP server on a free port of this machine, for tests that play the Hub."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class LocalServer:
    """Answers within a `with` block; its handlers find it as `hub`."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"hub": self}))
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

    def log_message(self, *_: object) -> None:
        pass
