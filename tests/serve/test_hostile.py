"""Hostile requests: none hangs, none causes a server error, and every answer conforms to the OpenAPI document."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import psutil
import pytest
import requests
import schemathesis
import urllib3
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS
from slackwater.serve.agents import tools  # noqa: F401  declares them
from slackwater.serve.agents.declared import TOOLS
from slackwater.serve.declare import ENDPOINTS

from tests.models.profiles import SECONDS, scaled
from tests.support.histories import FlightsApp

from .conftest import Ask, serving_apart

_CONFORMS = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
_NAMES = ("not_a_server_error", "negative_data_rejection", *_CONFORMS)
_CHECKS = [check for check in CHECKS.get_all() if check.__name__ in _NAMES]
_THERE = {"app": "flights", "ref": "now", "table": "carriers"}
_ENDLESS = [each.path for each in ENDPOINTS if each.streams and each.method == "GET"]
_BESIDE = ("/", "/healthz", "/openapi.json", "/page/main.js")
_HOW: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
_PATIENCE_S = 15
_MOST_BYTES = 1 << 30
"""Memory limit of the server and its SQL processes together."""


@dataclass
class Besieged:
    """A server process under attack, with figures about its answers."""

    url: str
    process: subprocess.Popen[bytes]
    cases: int = 0
    slowest_s: float = 0
    most_bytes: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)

    def send(self, case: Any) -> None:
        """Send one case, and check the answer against the document."""
        self.cases += 1
        path, began_s = case.operation.path, time.monotonic()
        is_positive = case.meta.generation.mode is GenerationMode.POSITIVE
        if self.cases % 2 and is_positive:
            # For names that do not exist, there is nothing more to find.
            for asked in (case.path_parameters, case.body):
                if isinstance(asked, dict):
                    asked.update({each: _THERE[each] for each in asked if each in _THERE})
        if path.startswith("/mcp/"):
            status = self._tool(path.removeprefix("/mcp/"), case.body, is_positive=is_positive)
        elif path in _ENDLESS:
            with requests.request(**case.as_transport_kwargs(), timeout=_PATIENCE_S, stream=True) as begun:
                status = begun.status_code
                assert next(begun.iter_content(1 << 16)), begun.url
        else:
            status = case.call_and_validate(checks=_CHECKS, timeout=_PATIENCE_S).status_code
        assert status < 500, (path, status)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
        if self.cases % 25 == 0:  # who its children are, takes a look at all processes
            self.most_bytes = max(self.most_bytes, self._bytes())

    def _tool(self, name: str, arguments: Any, *, is_positive: bool) -> int:
        if isinstance(arguments, bytes):  # no JSON at all
            arguments = arguments.decode("latin-1")
        asked = {"name": name, "arguments": arguments}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}
        headers = {"accept": "application/json, text/event-stream"}
        sent = requests.post(f"{self.url}/mcp", json=call, headers=headers, timeout=_PATIENCE_S)
        told = msgspec.json.decode(sent.content[sent.content.index(b"{") :].partition(b"\r\n")[0])
        if "error" in told:  # what MCP itself does not take
            assert not is_positive, (name, arguments, told)
            assert told["error"]["code"] == -32602, told
            return sent.status_code
        document = msgspec.json.decode(told["result"]["content"][0]["text"])
        assert document.get("error") != "Bug", (name, arguments)
        assert told["result"].get("isError") or is_positive, (name, arguments, document)
        return sent.status_code

    def _bytes(self) -> int:
        found = 0
        for each in (own := psutil.Process(self.process.pid), *own.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                found += each.memory_full_info().pss  # processes for SQL are forked: most of their pages are shared
        return found

    def __str__(self) -> str:
        took_s, mib = time.monotonic() - self.began_s, self.most_bytes >> 20
        by_status = ", ".join(f"{count:,} of {status}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.cases:,} cases in {took_s:.0f} s: {by_status}; slowest {self.slowest_s:.1f} s, memory {mib:,} MiB"
        )


@pytest.fixture
def besieged(written: FlightsApp, tmp_path: Any) -> Iterator[Besieged]:
    with serving_apart(written.store.url, tmp_path / "cache", "--mcp") as (url, process):
        yield Besieged(url, process)


def _document(url: str) -> dict[str, Any]:
    """Return the server's document, extended by the routes of the agents' tools and by the page's files."""
    document: dict[str, Any] = requests.get(f"{url}/openapi.json", timeout=_PATIENCE_S).json()
    anything = {"200": {"description": "", "content": {kind: {} for kind in ("application/json", "text/html", "*/*")}}}
    for name, tool in TOOLS.items():
        body = {"required": True, "content": {"application/json": {"schema": tool.schema}}}
        document["paths"][f"/mcp/{name}"] = {"post": {"requestBody": body, "responses": anything}}
    return document | {"paths": document["paths"] | {path: {"get": {"responses": anything}} for path in _BESIDE}}


@pytest.mark.timeout(SECONDS)
def test_answers_to_valid_and_invalid_requests_conform_to_the_document(besieged: Besieged) -> None:
    """Send a few hundred cases; over ten thousand with `SLACKWATER_PROFILE=ci`. `-rP` shows the results."""
    schema = schemathesis.openapi.from_dict(_document(besieged.url))
    schema.config.update(base_url=besieged.url)
    how = settings(scaled(25, in_ci=180), phases=[Phase.generate], **_HOW)

    def sending(case: Any) -> None:  # what hypothesis takes is a function
        besieged.send(case)

    for found in schema.get_all_operations():
        for mode in GenerationMode:
            with suppress(Unsatisfiable):  # of what nothing can be asked wrongly
                how(given(case=found.ok().as_strategy(generation_mode=mode))(sending))()
    print(besieged)  # noqa: T201  figures, for whoever asks for them
    assert besieged.cases > 200
    assert 0 < besieged.most_bytes < _MOST_BYTES


@pytest.fixture
def connected(instance: str) -> Callable[[], socket.socket]:
    host, port = instance.removeprefix("http://").split(":")
    return lambda: socket.create_connection((host, int(port)), timeout=180)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /apps/%00%ff%c3 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /apps HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /apps/flights/at/now/query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /apps HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
    ],
)  # fmt: skip
def test_bytes_that_are_no_http_request_end_the_connection(
    connected: Callable[[], socket.socket], ask: Ask, sent: bytes
) -> None:
    with connected() as connection:
        try:
            connection.sendall(sent)
            answered = connection.recv(1 << 16)
        except ConnectionError:
            answered = b""
    assert not answered or answered.startswith(b"HTTP/1.1 4")
    assert ask("/apps").status == 200


def test_a_request_that_never_ends_is_dropped(
    connected: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.serve.protocol._REQUEST_TIMEOUT_S", 0.3)
    for begun in (
        b"",
        b"GET /apps HTT",
        b"POST /apps/flights/at/now/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",
    ):
        with connected() as connection:
            connection.sendall(begun)
            while connection.recv(1 << 16):  # raises TimeoutError if the server keeps the connection
                pass


def test_a_body_beyond_the_limit_is_not_read(instance: str) -> None:
    sql = b'{"sql": "' + b"x" * (2 << 20) + b'"}'
    found = urllib3.PoolManager(retries=False).request("POST", f"{instance}/apps/flights/at/now/query", body=sql)
    assert found.status == 413


def test_pipelined_requests_in_one_packet_are_all_answered(connected: Callable[[], socket.socket]) -> None:
    count = 2_000
    with connected() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Filler: " + b"y" * 40 + b"\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * count)
        found = b""
        while found.count(b'"alive":true') < count:
            part = connection.recv(1 << 20)
            assert part
            found += part
    assert found.count(b"HTTP/1.1 200") == count
