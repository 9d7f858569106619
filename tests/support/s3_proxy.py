"""An S3 server with faults: a proxy in front of a real server that disturbs the next requests as tests ask.

`python -m tests.support.s3_proxy ENDPOINT PORT SEED RATE` serves until it is killed, with random faults.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import urlsplit

ERRORS = {
    "SlowDown": 503,
    "InternalError": 500,
    "ConditionalRequestConflict": 409,
    "InvalidAccessKeyId": 403,
    "AuthorizationHeaderMalformed": 400,
    "InvalidRequest": 400,
    "NotImplemented": 501,
    "NoSuchUpload": 404,
    "NoSuchPage": 404,
    "PreconditionFailed": 412,
}
BY_CHANCE = ("SlowDown", "InternalError", "drop", "lose", "cut")


class S3Proxy(ThreadingHTTPServer):
    """Forwards to `endpoint`. Each request takes the next word of `accidents`:

    - the code of an S3 error: the request is not forwarded and gets that answer;
    - drop: it is not forwarded, and the connection is closed;
    - lose: it is forwarded, and the connection is closed without an answer;
    - cut: it is forwarded, and half of the answer's body arrives;
    - drip: it is forwarded, and the answer's body arrives byte by byte, until the client hangs up;
    - hang: it is not forwarded, and never answered;
    - "" or none left: it is forwarded.

    With `overloaded` set, every request meets SlowDown, and with `silent` it hangs. Every request takes `delay_s`
    longer, as if the server were far away. With `chance`, that share `rate` of the requests meets one of `BY_CHANCE`,
    and delays vary.
    """

    daemon_threads = True
    chance: Random | None = None
    rate = 0.0

    def __init__(self, endpoint: str, delay_s: float = 0.0, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.behind = urlsplit(endpoint).netloc
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.delay_s = delay_s
        self.lock = Lock()
        self.ended = Event()
        self.reset()

    def reset(self) -> None:
        """Reset all faults and release hanging requests."""
        self.ended.set()
        self.ended = Event()
        self.accidents: list[str] = []
        self.overloaded = self.silent = False
        self.seen: list[str] = []
        """Method and path of each request."""
        self.answered: list[tuple[str, str, int, int]] = []
        """Method, path, and object bytes received and sent, of each forwarded request."""

    @property
    def requests(self) -> int:
        """Return the number of requests."""
        return len(self.seen)

    def handle_error(self, *_: Any) -> None:
        """Ignore a client that has closed the connection."""

    def accident_by_chance(self) -> tuple[str, float]:
        """Return the fault of the next request, and its delay in seconds."""
        if self.chance is None:
            return "", self.delay_s
        accident = self.chance.choice(BY_CHANCE) if self.chance.random() < self.rate else ""
        return accident, min(self.chance.expovariate(1 / self.delay_s), 2.0) if self.delay_s else 0.0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: S3Proxy

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            self.server.seen.append(f"{self.command} {self.path}")
            accident, delay_s = self.server.accident_by_chance()
            accident = self.server.accidents.pop(0) if self.server.accidents else accident
        time.sleep(delay_s)
        accident = "SlowDown" if self.server.overloaded else "hang" if self.server.silent else accident
        self.close_connection = accident in ("drop", "lose", "cut", "drip", "hang")
        if accident == "hang":
            self.server.ended.wait()
        if accident in ("drop", "hang"):
            return
        if accident in ERRORS:
            self._answer(
                ERRORS[accident],
                f"<Error><Code>{accident}</Code><Message>So it is.</Message></Error>".encode(),
            )
            return
        behind = HTTPConnection(self.server.behind)
        try:
            behind.request(self.command, self.path, body, dict(self.headers))
            answer = behind.getresponse()
            data = answer.read()
        except (OSError, HTTPException):  # the server behind is away, which its clients see as a cut connection
            self.close_connection = True
            return
        finally:
            behind.close()
        listing = "list-type=" in self.path
        back = len(data) if self.command == "GET" and not listing and answer.status < 300 else 0
        self.server.answered.append(("LIST" if listing else self.command, self.path, len(body), back))
        if accident != "lose":
            self._answer(answer.status, data, dict(answer.headers), accident)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815 - http.server's names

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None, accident: str = "") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            if name.lower() not in ("connection", "content-length", "date", "server", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if accident == "drip":
            self._drip(data)
        else:
            self.wfile.write(data[: len(data) // 2] if accident == "cut" else data)

    def _drip(self, data: bytes) -> None:
        with suppress(ConnectionError):
            for at in range(len(data)):
                self.wfile.write(data[at : at + 1])
                if self.server.ended.wait(0.01):
                    return

    def log_message(self, *_: Any) -> None:
        """Suppress the log."""


@contextmanager
def s3_proxy(endpoint: str, *, delay_s: float = 0.0) -> Iterator[S3Proxy]:
    """Run a proxy, and stop it at the end."""
    with S3Proxy(endpoint, delay_s) as proxy:
        thread = Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.ended.set()
            proxy.shutdown()
            thread.join()


if __name__ == "__main__":
    with S3Proxy(sys.argv[1], 0.003, int(sys.argv[2])) as served:
        served.chance, served.rate = Random(int(sys.argv[3])), float(sys.argv[4])
        served.serve_forever()
