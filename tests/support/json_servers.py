"""HTTP servers of tests that answer with JSON, on free ports, each in a thread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TypeVar


class JsonServer(ThreadingHTTPServer):
    """A server that is started by `serving`."""

    daemon_threads = True

    def __init__(self, handler: type[JsonHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class JsonHandler(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: object = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


Server = TypeVar("Server", bound=JsonServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Run a server until the block ends."""
    with server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
