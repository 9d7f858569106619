"""Whatever is sent, nothing hangs, nothing is a bug of the server's, and what it says is what its document says."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
import urllib3
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS
from slackwater.serve.declare import ENDPOINTS

from tests.models.profiles import scaled

from .conftest import Ask

_CONFORMS = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
_NAMES = ("not_a_server_error", "negative_data_rejection", *_CONFORMS)
_CHECKS = [check for check in CHECKS.get_all() if check.__name__ in _NAMES]
THERE = {"app": "flights", "ref": "now", "table": "carriers"}
_STREAMS = [each.path for each in ENDPOINTS if each.streams and each.method == "GET"]  # these have no end
_HOW: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def _schema(url: str) -> Any:
    return schemathesis.openapi.from_url(f"{url}/openapi.json").exclude(path=_STREAMS)


def test_what_the_document_allows_and_what_it_does_not(instance: str) -> None:
    """A few hundred cases; with `SLACKWATER_PROFILE=ci`, some ten thousand."""
    asked = 0

    def try_one(case: Any) -> None:
        nonlocal asked
        asked += 1
        if asked % 2 and case.meta.generation.mode is GenerationMode.POSITIVE:
            # Of names that nobody has, there is no more to be heard.
            case.path_parameters.update({each: THERE[each] for each in case.path_parameters if each in THERE})
        case.call_and_validate(checks=_CHECKS, timeout=15)

    how = settings(scaled(60, in_ci=500), phases=[Phase.generate], **_HOW)
    for found in _schema(instance).get_all_operations():
        for mode in GenerationMode:
            with suppress(Unsatisfiable):  # of what nothing can be asked wrongly
                how(given(case=found.ok().as_strategy(generation_mode=mode))(try_one))()
    assert asked > 100


@pytest.fixture
def connected(instance: str) -> Callable[[], socket.socket]:
    host, port = instance.removeprefix("http://").split(":")
    return lambda: socket.create_connection((host, int(port)), timeout=15)


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
def test_what_is_no_request_ends_the_connection(connected: Callable[[], socket.socket], ask: Ask, sent: bytes) -> None:
    with connected() as connection:
        try:
            connection.sendall(sent)
            answered = connection.recv(1 << 16)
        except ConnectionError:
            answered = b""
    assert not answered or answered.startswith(b"HTTP/1.1 4")
    assert ask("/apps").status == 200


def test_a_request_that_never_ends_is_not_waited_for(
    connected: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.serve.protocol._PATIENCE_S", 0.3)
    for begun in (
        b"",
        b"GET /apps HTT",
        b"POST /apps/flights/at/now/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",
    ):
        with connected() as connection:
            connection.sendall(begun)
            began_s = time.monotonic()
            while connection.recv(1 << 16):
                pass
            assert time.monotonic() - began_s < 5


def test_a_body_that_is_too_large_is_not_read(instance: str) -> None:
    sql = b'{"sql": "' + b"x" * (2 << 20) + b'"}'
    found = urllib3.PoolManager(retries=False).request("POST", f"{instance}/apps/flights/at/now/query", body=sql)
    assert found.status == 413


def test_many_requests_in_one_part_are_all_answered(connected: Callable[[], socket.socket]) -> None:
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
