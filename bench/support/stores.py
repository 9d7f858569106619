"""A store root in S3, if its server was built."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.programs.go import is_built
from tests.support.s3_servers import ACCESS_KEY, BUCKET, SECRET_KEY, versitygw


@contextmanager
def s3_or_folder(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield a description of the store, and its root: in S3 if its server was built, otherwise in the folder."""
    if not is_built("versitygw"):
        yield "in folders", str(folder)
        return
    server = folder / "s3"
    server.mkdir(parents=True)
    with versitygw(server) as endpoint:
        names = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        with patch.dict(os.environ, names, AWS_REGION="us-east-1"):
            import boto3

            boto3.client("s3").create_bucket(Bucket=BUCKET)
            yield "over S3", f"s3://{BUCKET}"
