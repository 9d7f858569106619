"""Large objects, moved in parts, some of them at a time."""

import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from boto3.s3.transfer import TransferConfig, create_transfer_manager
from botocore.exceptions import BotoCoreError, ClientError

from ....errors import Refused
from ..retry import TransientError
from .client import error_code
from .settings import S3Settings

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.response import StreamingBody
    from mypy_boto3_s3 import S3Client

_CHUNK_BYTES = 1 << 16
_NO_SUCH_UPLOAD = "NoSuchUpload"
_CHANGED = "PreconditionFailed"
_TRIES = 3

T = TypeVar("T")


class Asking(Protocol):
    """Makes one request, repeated while the server does not answer; answers with an expected code are raised."""

    def __call__(self, request: "Callable[[S3Client], T]", *, expected: Collection[str] = ()) -> T:
        """What `request` returns."""


def upload(ask: Asking, s3: "S3Client", bucket: str, name: str, data: bytes, settings: S3Settings) -> None:
    """Write an object in parts, by boto3's transfer manager. Until the last request it does not exist.

    An upload that fails is aborted, with one request; what that cannot reach, garbage collection finds.

    Raises:
        Refused: somebody ends the upload again and again before it is complete.
        Exception: as `ask` raises.
    """
    config = TransferConfig(
        # Decided by our own threshold.
        multipart_threshold=1,
        multipart_chunksize=settings.part_bytes,
        max_concurrency=settings.parallel_parts,
        # The other one would talk to S3 by a client of its own.
        preferred_transfer_client="classic",
    )
    # It copies each part before it sends it: no more of them than are on their way.
    config.max_in_memory_upload_chunks = settings.parallel_parts
    for _ in range(_TRIES):
        patient = cast("BaseClient", _Patient(ask, s3))
        try:
            with create_transfer_manager(patient, config) as manager:
                manager.upload(BytesIO(data), bucket, name).result()
        except ClientError as error:
            # Its completion was lost on the way back, and is not known any more; or somebody has aborted it.
            if error_code(error) != _NO_SUCH_UPLOAD:
                raise
        else:
            return
    raise Refused(
        f"the upload of {name!r} in parts to bucket {bucket!r} was ended {_TRIES} times before it was complete",
        hint="see who aborts uploads there: a lifecycle rule, or another program",
    )


class _Patient:
    """What the transfer manager takes for its client: every request is repeated by itself, not the whole upload."""

    def __init__(self, ask: Asking, s3: "S3Client") -> None:
        self.meta = s3.meta
        self._s3 = s3
        self._ask = ask
        self._failed: Exception | None = None
        self.create_multipart_upload = partial(self._patiently, "create_multipart_upload")
        self.upload_part = partial(self._patiently, "upload_part")
        self.complete_multipart_upload = partial(self._patiently, "complete_multipart_upload")

    def abort_multipart_upload(self, **params: Any) -> None:
        # Once: the server may be away, and was waited for long enough.
        with suppress(ClientError, BotoCoreError):
            self._s3.abort_multipart_upload(**params)

    def _patiently(self, method: str, **params: Any) -> Any:
        def attempt(s3: "S3Client") -> Any:
            # When one part has failed for good, the others need not be waited for.
            if self._failed is not None:
                raise self._failed
            if "Body" in params:
                params["Body"].seek(0)
            return getattr(s3, method)(**params)

        try:
            return self._ask(attempt, expected=(_NO_SUCH_UPLOAD,))
        except Exception as error:
            self._failed = self._failed or error
            raise


def download(ask: Asking, bucket: str, name: str, settings: S3Settings, expected: Collection[str]) -> bytes:
    """An object, the first of it by one request and the rest, if there is more, in parts.

    Raises:
        ClientError: with an `expected` code.
        Refused: the object is overwritten again and again meanwhile.
        Exception: as `ask` raises.
    """
    for _ in range(_TRIES):
        first, etag, size = ask(_part(bucket, name, 0, settings), expected=expected)
        starts = range(len(first), size, settings.part_bytes)
        if not starts:
            return first
        same = {"IfMatch": etag} if etag else {}
        parts = [_part(bucket, name, start, settings, **same) for start in starts]
        try:
            with ThreadPoolExecutor(min(settings.parallel_parts, len(parts))) as pool:
                rest = pool.map(lambda part: ask(part, expected=(*expected, _CHANGED))[0], parts)
                return b"".join((first, *rest))
        except ClientError as error:
            if error_code(error) != _CHANGED:
                raise
    raise Refused(
        f"object {name!r} in bucket {bucket!r} was overwritten {_TRIES} times while it was read",
        hint="see who else writes under this store root",
    )


def _part(
    bucket: str, name: str, start: int, settings: S3Settings, **condition: Any
) -> "Callable[[S3Client], tuple[bytes, str, int]]":
    """A request for a part of an object; it returns the bytes, the object's ETag and its size."""

    def request(s3: "S3Client") -> tuple[bytes, str, int]:
        asked_s = time.monotonic()
        wanted = f"bytes={start}-{start + settings.part_bytes - 1}"
        answer = s3.get_object(Bucket=bucket, Key=name, Range=wanted, **condition)
        data = read(answer["Body"], asked_s + settings.attempt_timeout_s)
        size = answer.get("ContentRange", "").rpartition("/")[2]
        return data, answer.get("ETag", ""), int(size) if size.isdigit() else len(data)

    return request


def read(body: "StreamingBody", until_s: float) -> bytes:
    """All of an answer's body; `until_s` is a time of the monotonic clock.

    boto3 limits how long a connection may be silent, not how long an answer may take: a server that drips would hold
    a request for ever.

    Raises:
        TransientError: it has not arrived by then.
    """
    chunks = []
    with body:
        while chunk := body.read(_CHUNK_BYTES):
            chunks.append(chunk)
            if time.monotonic() > until_s:
                raise TransientError("the answer takes too long to arrive")
    return b"".join(chunks)
