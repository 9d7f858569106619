"""Schema registries that are down, deny access, or are another kind of server: one sentence each, without secrets."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from slackwater.errors import NotFound, Refused, Unavailable, Usage
from slackwater.pipeline.dev.jvm_server import HOST, choose_port
from slackwater.pipeline.messages.registry import USER_INFO_FILE_VARIABLE, USER_INFO_VARIABLE, Registry, Schema

Answer = Callable[[str, str], tuple[int, str]]
"""Function from path and Authorization header to status and body."""


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Serve these answers; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path, self.headers.get("authorization", ""))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_port}"
        server.shutdown()


def test_an_unreachable_registry_is_named_after_the_patience_is_over() -> None:
    registry = Registry.at_url(f"http://{HOST}:{choose_port()}/", 0.2)
    with pytest.raises(Unavailable, match=rf"the schema registry at {registry.url} has not answered for") as caught:
        registry.by_id(1)
    assert "nothing is lost" in caught.value.hint


def test_requests_are_retried_until_the_registry_is_back_and_schemas_are_cached() -> None:
    asked: list[str] = []

    def answer(path: str, _authorization: str) -> tuple[int, str]:
        asked.append(path)
        return (503, "starting") if len(asked) < 3 else (200, json.dumps({"schema": '"int"'}))

    with answering(answer) as url:
        registry = Registry.at_url(url, 30)
        assert registry.by_id(7) == registry.by_id(7) == Schema("AVRO", '"int"')
    assert asked == ["/schemas/ids/7"] * 3


def test_referenced_schemas_are_fetched_too() -> None:
    answers = {
        "/subjects/orders-value/versions/latest": {
            "schema": "A",
            "schemaType": "PROTOBUF",
            "references": [{"name": "b.proto", "subject": "b/c", "version": 2}],
        },
        "/subjects/b%2Fc/versions/2": {"schema": "B", "schemaType": "PROTOBUF"},
    }
    with answering(lambda path, _: (200, json.dumps(answers[path]))) as url:
        schema = Registry.at_url(url, 1).latest("orders-value", None)
    assert schema == Schema("PROTOBUF", "A", (("b.proto", Schema("PROTOBUF", "B")),))


def test_credentials_are_sent_and_never_printed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(USER_INFO_VARIABLE, "me:hush7hush")
    seen: list[str] = []

    def answer(_path: str, authorization: str) -> tuple[int, str]:
        seen.append(authorization)
        return 401, "who?"

    with caplog.at_level(logging.DEBUG), answering(answer) as url:
        registry = Registry.at_url(url, 1)
        with pytest.raises(Refused, match="denies this user access") as caught:
            registry.latest("orders-value", None)
    assert seen == ["Basic bWU6aHVzaDdodXNo"]
    shown = f"{registry!r} {caught.value.message} {caught.value.hint} {caplog.text}"
    assert "hush7hush" not in shown
    assert "bWU6" not in shown


def test_a_denied_user_is_told_which_setting_has_the_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "registry"
    file.write_text("me:hush")
    for name, value in ((USER_INFO_VARIABLE, "me:hush"), (USER_INFO_FILE_VARIABLE, str(file))):
        with answering(lambda *_: (403, "who?")) as url, monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(Refused, match="denies this user access") as caught:
                Registry.at_url(url, 1).latest("orders-value", None)
        assert f"set {name}=" in caught.value.hint


def test_credentials_in_a_file_are_read_again_when_they_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, seen = tmp_path / "registry", list[str]()
    file.write_text("me:first\n")
    monkeypatch.setenv(USER_INFO_FILE_VARIABLE, str(file))

    def answer(_path: str, authorization: str) -> tuple[int, str]:
        seen.append(base64.b64decode(authorization.removeprefix("Basic ")).decode())
        return 200, '{"schema": "A"}'

    with answering(answer) as url:
        registry = pickle.loads(pickle.dumps(Registry.at_url(url, 1)))  # noqa: S301  as Spark's workers get it
        registry.by_id(1)
        file.write_text("me:second")
        registry.by_id(2)
    assert seen == ["me:first", "me:second"]
    monkeypatch.setenv(USER_INFO_VARIABLE, "me:hush7hush")
    with pytest.raises(Usage, match=f"{USER_INFO_VARIABLE} and {USER_INFO_FILE_VARIABLE} are both set"):
        Registry.at_url("http://localhost:8081", 1)


@pytest.mark.parametrize("body", ["<html>", "[]", '{"schema": 3}'])
def test_another_kind_of_server_is_reported_as_no_registry(body: str) -> None:
    with answering(lambda *_: (200, body)) as url, pytest.raises(Refused, match="schema registry"):
        Registry.at_url(url, 1).by_id(1)


def test_an_unknown_subject_is_named() -> None:
    known = '{"error_code": 40402, "message": "Version 3 not found"}'
    with answering(lambda *_: (404, known)) as url, pytest.raises(NotFound, match="no subject named 'x, version 3'"):
        Registry.at_url(url, 1).latest("x", 3)


@pytest.mark.parametrize(("status", "body"), [(404, "no backend"), (404, "{}"), (429, ""), (503, "")])
def test_overload_and_proxy_errors_are_retried(status: int, body: str) -> None:
    answers = iter([(status, body)])
    schema = json.dumps({"schema": '"string"'})
    with answering(lambda *_: next(answers, (200, schema))) as url:
        assert Registry.at_url(url, 30).by_id(1) == Schema("AVRO", '"string"')
    with answering(lambda *_: (status, body)) as url, pytest.raises(Unavailable):
        Registry.at_url(url, 0.1).by_id(2)


@pytest.mark.parametrize("url", ["localhost:8081", "ftp://x", "http://", "http://me:hush@host", "http://me@host"])
def test_an_invalid_url_or_one_with_a_password_is_refused(url: str) -> None:
    with pytest.raises(Usage) as caught:
        Registry.at_url(url, 1)
    assert "hush" not in f"{caught.value.message}{caught.value.hint}"
