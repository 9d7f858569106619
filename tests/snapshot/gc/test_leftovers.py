"""Old leftovers of interrupted writes are deleted, in S3 and on disk."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.open import open_store

from tests.support.histories import FlightsApp, Kafka, flights


def test_temporary_files_of_killed_puts_are_deleted_once_they_are_old(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    FlightsApp(store, Kafka()).run(flights(10))
    old, new = tmp_path / ".slackwater-tmp" / "old", tmp_path / ".slackwater-tmp" / "new"
    for path in (old, new):
        path.write_bytes(b"half of it")
    os.utime(old, (1, 1))
    assert collect(store, "flights", Retention(), by="test").leftovers == 1
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.s3
def test_interrupted_multipart_uploads_are_aborted(s3_url: str) -> None:
    import boto3

    store = open_store(s3_url)
    FlightsApp(store, Kafka())
    place = urlsplit(s3_url)
    s3, prefix = boto3.client("s3"), place.path.strip("/")
    for key in ("flights/stages/legs/sst/01BROKEN.parquet", "other/stages/legs/sst/01THEIRS.parquet"):
        s3.create_multipart_upload(Bucket=place.netloc, Key=f"{prefix}/{key}")
    # This server says of every upload that it began in 2010.
    assert collect(store, "flights", Retention(), by="test").leftovers == 1
    left = s3.list_multipart_uploads(Bucket=place.netloc, Prefix=prefix).get("Uploads", [])
    assert [upload["Key"] for upload in left] == [f"{prefix}/other/stages/legs/sst/01THEIRS.parquet"]
