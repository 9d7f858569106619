"""Answers of a server during a store outage, or with many idle connections open."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from slackwater.client import Client
from slackwater.serve import tokens
from slackwater.serve.protocol import PROBES, LimitedHttpProtocol
from slackwater.serve.server import ListenOptions
from slackwater.settings import Settings
from slackwater.store.objects.open import open_store

from tests.support.histories import FlightsApp
from tests.support.running import eventually
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_servers import BUCKET

from .conftest import Ask, made, serving

CARRIERS = "/apps/flights/at/now/tables/carriers"
GUARDED = ListenOptions(needs_tokens=True)
MOST_S = 20.0
"""Limit in seconds. An answer takes two, but up to a minute if it waits for the store; a busy machine adds some."""


@pytest.fixture
def behind(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    """Return the proxy between the server and S3."""
    with s3_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


@pytest.fixture
def guarded(written: FlightsApp, behind: S3Proxy, tmp_path: Path) -> Iterator[tuple[Ask, str]]:
    """Start a server over S3 that requires tokens; yield its client and a token."""
    store = open_store(f"s3://{BUCKET}/{uuid4().hex}")
    for info in written.store.list(""):
        store.put(info.key, written.store.get(info.key))
    with Client(Settings(store=store.url, cache=str(tmp_path / "own"), cache_max_bytes=1 << 30)) as client:
        token = made(client, "reports", verbs=("read", "sql"))
    with serving(store.url, tmp_path / "cache", GUARDED) as url:
        yield Ask(url), token
        behind.reset()


def took(ask: Callable[[], object]) -> float:
    began_s = time.monotonic()
    ask()
    return time.monotonic() - began_s


@pytest.mark.s3
def test_without_the_store_a_request_with_a_token_fails_soon_with_the_reason(
    guarded: tuple[Ask, str], behind: S3Proxy
) -> None:
    ask, token = guarded
    behind.silent = True

    def refused() -> None:
        found = ask.token(token, CARRIERS, key="C1")
        assert (found.status, found.json["error"]) == (503, "Unavailable")
        assert "the store" in found.json["message"]

    assert took(refused) < MOST_S
    assert took(refused) < MOST_S
    assert [ask(each).status for each in PROBES] == [200, 200, 503, 200]
    assert b"slackwater_serve_store_answers 0.0" in ask("/metrics").body
    behind.reset()
    eventually(lambda: ask("/readyz").status == 200, "it is ready again")
    eventually(lambda: ask.token(token, CARRIERS, key="C1").status == 200, "it answers again")


@pytest.mark.s3
def test_known_tokens_stay_valid_during_a_store_outage(
    guarded: tuple[Ask, str], behind: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, token = guarded
    assert ask.token(token, CARRIERS, key="C1").status == 200
    monkeypatch.setattr(tokens, "_TOKEN_CACHE_S", 0.0)
    behind.silent = True
    assert ask.token(token, "/me").json["name"] == "reports"
    found: list[int] = []
    assert took(lambda: found.append(ask.token(token, "/apps").status)) < MOST_S  # which only the store knows
    assert found == [503]
    monkeypatch.setattr(tokens, "_OUTAGE_TOKEN_CACHE_S", 0.0)
    assert ask.token(token, "/me").status == 503


def test_idle_connections_do_not_block_other_clients(ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(LimitedHttpProtocol, "max_connections", 50)
    host, port = ask.url.removeprefix("http://").split(":")
    with ExitStack() as stack:
        for number in range(200):
            opened = stack.enter_context(socket.create_connection((host, int(port)), 30))
            if number % 2:
                opened.sendall(b"GET /apps HTTP/1.1\r\nHost: 127.0.0.1\r\nX-a: ")  # and never ends
        assert [ask(each, headers={"connection": "close"}).status for each in (*PROBES, "/apps")] == [200] * 5
        open_ = float(ask("/metrics").body.split(b"\nslackwater_serve_connections ")[1].split()[0])
        assert open_ <= 51


def test_probes_are_answered_however_many_requests_are_running(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.serve.web.MAX_REQUESTS", 0)
    found = ask("/apps")
    assert (found.status, found.json["error"], found.headers["retry-after"]) == (503, "Unavailable", "1")
    assert [ask(each).status for each in PROBES] == [200] * 4


def test_metrics_count_requests_by_route_and_status(ask: Ask) -> None:
    def counted(what: str, status: int) -> float:
        lines = ask("/metrics").body.decode().splitlines()
        name = f'slackwater_serve_requests_total{{status="{status}",what="{what}"}} '
        return next((float(each.removeprefix(name)) for each in lines if each.startswith(name)), 0.0)

    before = counted("get", 200), counted("get", 404)
    ask(CARRIERS, key="C1")
    ask("/apps/nobodys/at/now/tables/carriers", key="C1")
    assert (counted("get", 200), counted("get", 404)) == (before[0] + 1, before[1] + 1)
