"""Encryption at rest is requested with every put, and checked."""

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from slackwater.errors import Forbidden, Refused, SlackwaterError, Usage
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.settings import load
from slackwater.store.objects.open import open_store
from slackwater.store.objects.s3_settings import S3Settings
from slackwater.store.objects.s3_store import S3Store

from tests.store.objects.s3.directory_buckets import SESSION
from tests.support.running import Ledger
from tests.support.s3_servers import BUCKET

KEY = "arn:aws:kms:us-east-1:123456789012:key/0a1b"
PART = 5 << 20
LARGE = bytes(PART + 1)

WRITES: dict[str, Callable[[S3Store], None]] = {
    "put": lambda store: store.put("a", b"data"),
    "put_if_absent": lambda store: store.put_if_absent("a", b"data"),
    "in parts": lambda store: store.put("a", LARGE),
}


def encryption(url: str) -> set[tuple[str | None, str | None]]:
    """Return the encryption and the key of all objects under a root, as the server reports them."""
    place, s3 = urlsplit(url), boto3.client("s3")
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=place.netloc, Prefix=place.path.strip("/"))
    keys = [entry["Key"] for page in pages for entry in page["Contents"]]
    heads = [s3.head_object(Bucket=place.netloc, Key=key) for key in keys]
    return {(head.get("ServerSideEncryption"), head.get("SSEKMSKeyId")) for head in heads}


def stored(url: str, settings: S3Settings) -> S3Store:
    place = urlsplit(url)
    return S3Store(place.netloc, place.path, settings=settings)


@pytest.mark.s3
@pytest.mark.parametrize("write", WRITES)
def test_every_way_of_writing_requests_encryption(s3_url: str, write: str) -> None:
    WRITES[write](stored(s3_url, S3Settings(sse="AES256", multipart_bytes=PART, part_bytes=PART)))
    assert encryption(s3_url) == {("AES256", None)}
    by_kms = S3Settings(sse="aws:kms", sse_kms_key_id=KEY, sse_bucket_key=True, multipart_bytes=PART, part_bytes=PART)
    overwritten = stored(s3_url, by_kms)
    overwritten.delete("a")
    # The server does not keep this one of uploads in parts.
    bucket_keys: set[object] = set()
    overwritten._connect()[0].s3.meta.events.register(
        "before-send.s3",
        lambda request, **_: bucket_keys.add(request.headers.get("x-amz-server-side-encryption-bucket-key-enabled")),
    )
    WRITES[write](overwritten)
    assert encryption(s3_url) == {("aws:kms", KEY)}
    assert b"true" in bucket_keys


@pytest.mark.s3
@pytest.mark.parametrize("write", WRITES)
def test_a_server_that_does_not_encrypt_is_refused(versitygw_server: str, write: str) -> None:
    # It takes the header and keeps the object as it is.
    settings = S3Settings(sse="AES256", multipart_bytes=PART, part_bytes=PART)
    store = S3Store(BUCKET, uuid4().hex, endpoint_url=versitygw_server, settings=settings)
    with pytest.raises(Refused, match="did not encrypt an object: asked for 'AES256', found 'nothing'") as caught:
        WRITES[write](store)
    assert "SLACKWATER_S3_SSE" in caught.value.hint
    assert list(store.unfinished_writes("")) == []


class Raw(BytesIO):
    def stream(self, **_: object) -> Iterator[bytes]:
        yield self.read()


@pytest.mark.parametrize(
    ("sse", "status", "error", "hint"),
    [
        ("", 200, None, ""),
        ("AES256", 200, None, ""),
        ("aws:kms", 200, Refused, "make aws:kms the default encryption of"),
        ("", 403, Forbidden, "s3express:CreateSession"),
    ],
)
def test_the_encryption_and_the_right_of_directory_buckets_are_their_own(
    monkeypatch: pytest.MonkeyPatch, sse: str, status: int, error: type[SlackwaterError] | None, hint: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "tests")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)

    def answer(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        # As Amazon's directory buckets with their default encryption do.
        headers = {"x-amz-server-side-encryption": "AES256"} if request.method == "PUT" else {}
        body = SESSION if status == 200 else "<Error><Code>AccessDenied</Code></Error>"
        return AWSResponse(request.url, status, headers, Raw(b"" if headers else body.encode()))

    settings = S3Settings(sse=sse, connect_timeout_s=4 + status / 100)  # connections are shared by their settings
    store = S3Store("b--use1-az4--x-s3", "p", settings=settings)
    store._connect()[0].s3.meta.events.register("before-send.s3", answer)
    with pytest.raises(error) if error else nullcontext() as caught:
        store.put("a", b"data")
    if caught is not None:
        assert hint in caught.value.hint
        assert "b--use1-az4--x-s3" in caught.value.message


@pytest.mark.ci
@pytest.mark.s3
@pytest.mark.kafka
@pytest.mark.spark
def test_the_settings_in_the_file_apply_to_every_process_that_writes(
    kafka: EmbeddedKafka, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slackwater.toml").write_text(f'[s3]\nsse = "aws:kms"\nsse_kms_key_id = "{KEY}"\n')
    ledger = Ledger(kafka.bootstrap, tmp_path, store=s3_url)
    program = ledger.program.resolve()
    monkeypatch.chdir(tmp_path)
    ledger.send(2_000)
    # A Spark of its own: one that runs already keeps the environment that it was started with.
    words = ("--app", ledger.app, "--master", "local[2]", "--until-caught-up")
    ledger.slackwater("run", str(program), *words)
    ledger.slackwater("snapshot", "take", ledger.app, "one", "--instant")
    assert {key.rpartition(".")[2] for key, *_ in open_store(s3_url).list("")} == {"json", "parquet"}
    assert encryption(s3_url) == {("aws:kms", KEY)}


def test_variables_take_precedence_over_the_file_and_are_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slackwater.toml").write_text(
        f'[s3]\nsse = "aws:kms"\nsse_kms_key_id = "{KEY}"\nsse_bucket_key = true\nread_timeout_s = 7\n'
    )
    environ = {"SLACKWATER_S3_READ_TIMEOUT_S": "2.5", "SLACKWATER_S3_PART_BYTES": ""}
    expected = S3Settings(sse="aws:kms", sse_kms_key_id=KEY, sse_bucket_key=True, read_timeout_s=2.5)
    assert load(environ=environ, folder=tmp_path).s3 == expected
    monkeypatch.setenv("SLACKWATER_S3_READ_TIMEOUT_S", "2.5")
    before = dict(os.environ)
    assert load(folder=tmp_path).s3 == expected
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('sse = "aes"', "s3.sse is 'aes': expected 'AES256' or 'aws:kms'"),
        ("sse = 256", "s3.sse is 256: expected `str`"),
        ('sse_kms_key = "x"', "s3.sse_kms_key is not a setting; the nearest is"),
        ('sse_kms_key_id = "x"', "s3.sse_kms_key_id needs encryption by KMS, but"),
        ('sse = "AES256"\nsse_bucket_key = true', "s3.sse is 'AES256'"),
        ('sse_bucket_key = "maybe"', "s3.sse_bucket_key is 'maybe'"),
        ("part_bytes = 1000", "s3.part_bytes is 1000: expected `int` >= 5242880"),
        ("parallel_parts = 1.5", "s3.parallel_parts is 1.5: expected `int`"),
        ("read_timeout_s = nan", "s3.read_timeout_s is nan"),
        ("read_timeout_s = 0", "s3.read_timeout_s is 0: expected `float` >= 0.001"),
        ("retries_at_once = 0", "s3.retries_at_once is 0: expected `float` >= 1"),
    ],
)
def test_an_invalid_setting_is_refused_with_the_reason(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "slackwater.toml").write_text(f"[s3]\n{line}\n")
    with pytest.raises(Usage) as caught:
        load(environ={}, folder=tmp_path)
    assert message in caught.value.message
    assert str(tmp_path) in caught.value.message


def test_an_invalid_variable_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="SLACKWATER_S3_SSE is 'none': expected 'AES256' or 'aws:kms'"):
        load(environ={"SLACKWATER_S3_SSE": "none"}, folder=tmp_path)
    with pytest.raises(Usage, match="SLACKWATER_S3_SEE is not a setting; the nearest is SLACKWATER_S3_SSE"):
        load(environ={"SLACKWATER_S3_SEE": "AES256"}, folder=tmp_path)
    (tmp_path / "slackwater.toml").write_text("s3 = 5\n")
    with pytest.raises(Usage, match="s3 must be a table"):
        load(environ={}, folder=tmp_path)
