"""Secrets: no key, token or password appears in an error, a log, a store's name or a stored object."""

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from uuid import uuid4

import pytest
from slackwater.cli.main import app as cli
from slackwater.errors import SlackwaterError, Unavailable
from slackwater.pipeline.dev.jvm_server import choose_port
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.objects.open import open_store
from slackwater.store.objects.s3_settings import S3Settings
from slackwater.store.objects.s3_store import S3Store
from typer.testing import CliRunner

from tests.support.histories import FlightsApp, Kafka, flights
from tests.support.s3_proxy import ERRORS, S3Proxy, s3_proxy
from tests.support.s3_servers import BUCKET

pytestmark = pytest.mark.s3

SECRETS = ("AKIA0SECRETKEYID", "hushhushsecretkey", "hushhushtoken", "hushhushuser", "hushhushpassword")
"""Access key, secret key and session token; user and password of an endpoint."""
LARGE = bytes((5 << 20) + 1)

REQUESTS: tuple[Callable[[S3Store], object], ...] = (
    lambda store: store.get("there"),
    lambda store: store.get_range("there", 1, 2),
    lambda store: store.put("new", b"data"),
    lambda store: store.put_if_absent("new", b"data"),
    lambda store: store.put("new", LARGE),
    lambda store: list(store.list("")),
    lambda store: list(store.list_folders("")),
    lambda store: list(store.unfinished_writes("")),
    lambda store: store.delete("there"),
)


@pytest.fixture(autouse=True, scope="module")
def environment(s3_server: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", SECRETS[0])
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS[1])
        patch.setenv("AWS_SESSION_TOKEN", SECRETS[2])
        yield


@pytest.fixture(scope="module")
def proxy(s3_server: str) -> Iterator[S3Proxy]:
    with s3_proxy(s3_server) as running:
        yield running


@pytest.fixture(scope="module")
def stores(proxy: S3Proxy, environment: None) -> tuple[S3Store, ...]:
    """Return two stores whose endpoint has a password: one from the environment, one from an argument."""
    settings = S3Settings(read_timeout_s=0.05, multipart_bytes=5 << 20, part_bytes=5 << 20, parallel_parts=1)
    endpoint = with_password(proxy.endpoint)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        both = [
            S3Store(BUCKET, uuid4().hex, endpoint_url=said, patience_s=0.001, settings=settings)
            for said in ("", endpoint)
        ]
        for store in both:
            with suppress(Unavailable):
                store.delete("nothing")  # which connects it
    return tuple(both)


def with_password(endpoint: str) -> str:
    return endpoint.replace("://", f"://{SECRETS[3]}:{SECRETS[4]}@")


def tells_nothing(*texts: object) -> None:
    for text in texts:
        for secret in SECRETS:
            assert secret not in str(text)


def everything_said(error: SlackwaterError) -> str:
    """Return the message, the hint, and the output of `--debug`, including causes."""
    return "\n".join((str(error), repr(error), error.hint, *traceback.format_exception(error)))


@pytest.mark.parametrize("accident", [*ERRORS, "drop", "hang"])
def test_no_failing_request_reveals_a_secret(
    stores: tuple[S3Store, ...], proxy: S3Proxy, caplog: pytest.LogCaptureFixture, accident: str
) -> None:
    caplog.set_level(logging.INFO)
    proxy.accidents = [accident] * 1000
    for store in stores:
        for request in REQUESTS:
            try:
                request(store)
            except SlackwaterError as error:
                tells_nothing(everything_said(error), pickle.dumps(error))
        tells_nothing(store, store.url, pickle.dumps(store), vars(store), caplog.text)


def test_no_error_about_an_unreachable_server_reveals_a_secret(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", with_password(f"http://127.0.0.1:{choose_port()}"))
    with pytest.raises(SlackwaterError) as caught:
        S3Store(BUCKET, patience_s=0.1).get("a")
    tells_nothing(everything_said(caught.value), caplog.text)


@pytest.mark.parametrize(
    "endpoint",
    [
        f"http://{SECRETS[3]}:{SECRETS[4]}@",
        f"{SECRETS[3]}:{SECRETS[4]}@host:9000",
        f"http://{SECRETS[3]}:a/{SECRETS[4]}@host:9000",
        f"http://{SECRETS[3]}:{SECRETS[4]}@host:port",
        f"http://{SECRETS[3]}:{SECRETS[4]}@[::1",
    ],
)
def test_no_error_about_an_invalid_endpoint_reveals_a_secret(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    for url in ("", endpoint):
        with pytest.raises(SlackwaterError) as caught:
            S3Store(BUCKET, endpoint_url=url, patience_s=0).get("a")
        tells_nothing(everything_said(caught.value))


@pytest.mark.parametrize(
    "root",
    [
        f"s3://{SECRETS[0]}:{SECRETS[1]}@bucket/prefix",
        f"s3://{SECRETS[0]}:a/{SECRETS[1]}@bucket/prefix",
        f"s3a://{SECRETS[0]}:{SECRETS[1]}@bucket/prefix",
        f"s3://{SECRETS[0]}@bucket/prefix",
        f"https://{SECRETS[3]}:{SECRETS[4]}@host/bucket",
    ],
)
def test_no_error_about_a_store_root_with_credentials_reveals_them(root: str) -> None:
    with pytest.raises(SlackwaterError, match="has credentials before '@'") as caught:
        open_store(root)
    tells_nothing(everything_said(caught.value))
    for words in (["status", "--store", root], ["--debug", "query", "app", "SELECT 1", "--store", root]):
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 2
        tells_nothing(done.output, done.stderr)


def test_no_secret_is_stored(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_S3_SSE", "AES256")
    store = open_store(s3_url)
    app = FlightsApp(store, Kafka())
    app.run(flights(6))
    pin_cut(store, resolve(store, app.name, now_ms=app.clock.now_ms), "before")
    objects = {info.key: store.get(info.key) for info in store.list("")}
    assert {key.rpartition(".")[2] for key in objects} == {"json", "parquet"}
    tells_nothing(objects)
