"""The object store in an S3 bucket, at AWS or any server with conditional writes."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import ClientError

from .errors import ObjectExists, ObjectNotFound
from .keys import check_key
from .leftovers import Leftover
from .objects import ObjectInfo, check_range
from .retry import Retry
from .s3_client import Options, client, http_status, shown_endpoint, translated

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

__all__ = ["S3Store"]

_NOT_FOUND = 404
_PRECONDITION_FAILED = 412
_NO_SUCH_RANGE = 416

T = TypeVar("T")


class S3Store:
    """Objects under one prefix of one bucket.

    Every request is repeated while the server does not answer or asks to come again (5xx, SlowDown, a
    conflict of conditional writes), until `patience_s` is over. Endpoint, region and credentials come from
    where AWS's own tools take them; AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL name a server that is not AWS's.

    Every method may raise, besides what it names:
        Unavailable: the server did not answer within `patience_s`.
        NotFound: there is no such bucket.
        Refused: credentials, permissions or region are wrong, or the key is not usable.
        Usage: the endpoint is not a URL.

    Args:
        bucket: the bucket's name; it must exist.
        prefix: goes before every key, without slashes at its ends; empty for the bucket itself.
        endpoint_url: instead of what the environment says.
        region: instead of what the environment says.
        patience_s: how long a request is repeated, in seconds.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str = "",
        region: str = "",
        patience_s: float = 60.0,
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix.strip("/")
        self._base = f"{self._prefix}/" if self._prefix else ""
        self._patience_s = patience_s
        self._options = Options(endpoint_url, region, timeout_s=min(30.0, max(5.0, patience_s)))
        self._client: tuple[int, S3Client] | None = None
        self._retry = Retry(self._where, patience_s)

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        # Connections and locks stay behind when a store is sent to another process.
        return (_restored, (self._bucket, self._prefix, self._options, self._patience_s))

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def get(self, key: str) -> bytes:
        """The object's bytes. Raises `ObjectNotFound`."""
        return self._get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer at the object's end. Raises `ObjectNotFound`."""
        check_range(start, length)
        # HTTP has no empty range; one byte tells whether the object exists.
        last = start + max(length, 1) - 1
        return self._get(key, Range=f"bytes={start}-{last}")[:length]

    def _get(self, key: str, **extra: Any) -> bytes:
        name = self._name(key)

        def attempt(s3: "S3Client") -> bytes:
            with s3.get_object(Bucket=self._bucket, Key=name, **extra)["Body"] as body:
                return body.read()

        try:
            return self._call(attempt, expected=(_NOT_FOUND, _NO_SUCH_RANGE))
        except ClientError as error:
            if http_status(error) == _NO_SUCH_RANGE:
                return b""  # it starts at the object's end or after it
            raise ObjectNotFound(key, self.url) from None

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite, atomically."""
        name = self._name(key)
        self._call(lambda s3: s3.put_object(Bucket=self._bucket, Key=name, Body=data))

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create the object. Raises `ObjectExists` when the key is taken, also by a race.

        A repeated request whose first answer was lost may raise `ObjectExists` for the caller's own write:
        read back and compare.
        """
        name = self._name(key)
        try:
            self._call(
                lambda s3: s3.put_object(Bucket=self._bucket, Key=name, Body=data, IfNoneMatch="*"),
                expected=(_PRECONDITION_FAILED,),
            )
        except ClientError:
            raise ObjectExists(key, self.url) from None

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` and sorts after `start_after`, in the order of keys.

        One request for each 1,000 objects, made as they are taken.
        """
        extra = {"StartAfter": self._base + start_after} if start_after else {}
        for page in self._pages(Prefix=self._base + prefix, **extra):
            for entry in page.get("Contents", ()):
                # A key that ends with '/' is how some tools draw an empty folder.
                if not entry["Key"].endswith("/"):
                    yield ObjectInfo(
                        entry["Key"].removeprefix(self._base),
                        entry["Size"],
                        int(entry["LastModified"].timestamp() * 1000),
                    )

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders directly under `prefix` (which ends with '/' or is empty), in order."""
        for page in self._pages(Prefix=self._base + prefix, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                yield entry["Prefix"].removeprefix(self._base + prefix).removesuffix("/")

    def delete(self, key: str) -> None:
        """Remove the object; no error when it is not there."""
        name = self._name(key)
        self._call(lambda s3: s3.delete_object(Bucket=self._bucket, Key=name))

    def leftovers(self, prefix: str) -> Iterator[Leftover]:
        """Uploads in parts of keys under `prefix` that were neither completed nor aborted. A request for each 1,000."""
        given: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._base + prefix}

        def ask(s3: "S3Client") -> Any:
            return s3.list_multipart_uploads(**given)

        while True:
            page = self._call(ask)
            for entry in page.get("Uploads", ()):
                begun_ms = int(entry["Initiated"].timestamp() * 1000)
                yield Leftover(entry["Key"].removeprefix(self._base), entry["UploadId"], begun_ms)
            if not page.get("IsTruncated"):
                return
            given |= {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def discard(self, leftover: Leftover) -> None:
        """Abort an upload; no error when it has ended."""
        name = self._name(leftover.key)
        with suppress(ClientError):
            self._call(
                lambda s3: s3.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=leftover.id),
                expected=(_NOT_FOUND,),
            )

    def local_path(self, key: str) -> Path | None:
        """Always None: the object is elsewhere."""
        return None

    def _name(self, key: str) -> str:
        return self._base + check_key(key)

    def _pages(self, **parameters: Any) -> Iterator[Any]:
        while True:
            page: Any = self._call(lambda s3: s3.list_objects_v2(Bucket=self._bucket, **parameters))
            yield page
            if not page.get("IsTruncated"):
                return
            parameters["ContinuationToken"] = page["NextContinuationToken"]

    def _call(self, request: "Callable[[S3Client], T]", *, expected: Collection[int] = ()) -> T:
        s3 = self._s3()

        def attempt() -> T:
            with translated(self._bucket, shown_endpoint(s3), expected):
                return request(s3)

        return self._retry.call(attempt)

    def _s3(self) -> "S3Client":
        if self._client is None or self._client[0] != os.getpid():
            self._client = (os.getpid(), client(self._options))
        return self._client[1]

    def _where(self) -> str:
        return f"S3 at {shown_endpoint(self._s3())}, bucket {self._bucket!r},"


def _restored(bucket: str, prefix: str, options: Options, patience_s: float) -> S3Store:
    return S3Store(bucket, prefix, endpoint_url=options.endpoint_url, region=options.region, patience_s=patience_s)
