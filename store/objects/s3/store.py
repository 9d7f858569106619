"""The object store in an S3 bucket, at AWS or any server with conditional writes."""

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import ClientError

from ....errors import ObjectExists, ObjectNotFound
from ..protocol import Leftover, ObjectInfo, check_key, check_range
from ..retry import Retry
from ..wrapper import OtherRoots
from .client import Connection, connection, error_code, hand_over, translated, without_credentials
from .settings import S3Access, S3Place, S3Settings, settings_in
from .transfer import download, read, upload

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_NO_SUCH_UPLOAD = "NoSuchUpload"
_NO_SUCH_RANGE = "InvalidRange"
_NO_BYTES = ("NoSuchKey", _NO_SUCH_RANGE)
_SETTING = (
    "AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL (else AWS's configuration, or AWS itself), the bucket that of --store, "
    "SLACKWATER_STORE or store in slackwater.toml"
)
_PRECONDITION_FAILED = "PreconditionFailed"
_SHORTEST_READ_S = 5.0

T = TypeVar("T")


class S3Store(OtherRoots):
    """Objects under one prefix of one bucket.

    Every request is repeated while the server does not answer or asks to come again (5xx, SlowDown, a
    conflict of conditional writes), until `patience_s` is over, and within a budget that all stores of this process
    share. Endpoint, region and credentials come from where AWS's own tools take them; AWS_ENDPOINT_URL_S3 or
    AWS_ENDPOINT_URL name a server that is not AWS's. Large objects are moved in parts.

    Every method may raise, besides what it names:
        Unavailable: the server did not answer within `patience_s`.
        NotFound: there is no such bucket.
        Refused: credentials, permissions or region are wrong, the key is not usable, or the server does not encrypt.
        Usage: the endpoint is not a URL.

    Args:
        bucket: the bucket's name; it must exist.
        prefix: goes before every key, without slashes at its ends; empty for the bucket itself.
        endpoint_url: instead of what the environment says.
        patience_s: how long a request is repeated, in seconds.
        settings: of encryption, timeouts and parts; None for what the environment says.
        place: where another process said that S3 is, and how (`session.take`); endpoint and settings are its.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str = "",
        patience_s: float = 60.0,
        settings: S3Settings | None = None,
        place: S3Place | None = None,
    ) -> None:
        self._place = place or S3Place(without_credentials(endpoint_url), "", settings or settings_in(os.environ))
        super().__init__(partial(OtherRoots.open_root, patience_s=patience_s, place=self._place))
        self._bucket = bucket
        self._base = f"{prefix.strip('/')}/".lstrip("/")
        self._patience_s = patience_s
        self._settings = self._place.settings
        self._connected: tuple[int, Connection, Retry] | None = None

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    def __getstate__(self) -> dict[str, object]:
        # Connections and locks stay behind when a store is sent to another process.
        return {**self.__dict__, "_connected": None, "_others": {}}

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._base}".rstrip("/")

    def access(self) -> S3Access | None:
        """How this process gets to the store now, for another; None when nothing names credentials."""
        connected, _ = self._connect()
        with translated(self._bucket, connected.endpoint):
            return hand_over(connected, self._settings)

    def get(self, key: str) -> bytes:
        name = self._name(key)
        return self._read(key, lambda: download(self._call, self._bucket, name, self._settings, _NO_BYTES))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        name = self._name(key)
        # HTTP has no empty range; one byte tells whether the object exists.
        wanted = f"bytes={start}-{start + max(length, 1) - 1}"

        def attempt(s3: "S3Client") -> bytes:
            until_s = time.monotonic() + self._settings.attempt_timeout_s
            return read(s3.get_object(Bucket=self._bucket, Key=name, Range=wanted)["Body"], until_s)

        return self._read(key, lambda: self._call(attempt, expected=_NO_BYTES))[:length]

    def _read(self, key: str, ask: Callable[[], bytes]) -> bytes:
        try:
            return ask()
        except ClientError as error:
            if error_code(error) == _NO_SUCH_RANGE:
                return b""  # it starts at the object's end or after it
            raise ObjectNotFound(key, self.url) from None

    def put(self, key: str, data: bytes) -> None:
        name = self._name(key)
        if len(data) > self._settings.multipart_bytes:
            upload(self._call, self._connect()[0].s3, self._bucket, name, data, self._settings)
        else:
            self._call(lambda s3: s3.put_object(Bucket=self._bucket, Key=name, Body=data))

    def put_if_absent(self, key: str, data: bytes) -> None:
        name = self._name(key)
        try:
            self._call(
                lambda s3: s3.put_object(Bucket=self._bucket, Key=name, Body=data, IfNoneMatch="*"),
                expected=(_PRECONDITION_FAILED,),
            )
        except ClientError:
            raise ObjectExists(key, self.url) from None

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore`. One request for each 1,000 objects, made as they are taken."""
        extra = {"StartAfter": self._base + start_after} if start_after else {}
        for page in self._pages("list_objects_v2", "ContinuationToken", Prefix=self._base + prefix, **extra):
            for entry in page.get("Contents", ()):
                # A key that ends with '/' is how some tools draw an empty folder.
                if not entry["Key"].endswith("/"):
                    modified_ms = int(entry["LastModified"].timestamp() * 1000)
                    yield ObjectInfo(entry["Key"].removeprefix(self._base), entry["Size"], modified_ms)

    def list_folders(self, prefix: str) -> Iterator[str]:
        for page in self._pages("list_objects_v2", "ContinuationToken", Prefix=self._base + prefix, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                yield entry["Prefix"].removeprefix(self._base + prefix).removesuffix("/")

    def delete(self, key: str) -> None:
        name = self._name(key)
        self._call(lambda s3: s3.delete_object(Bucket=self._bucket, Key=name))

    def leftovers(self, prefix: str) -> Iterator[Leftover]:
        """Uploads in parts of keys under `prefix` that were neither completed nor aborted. A request for each 1,000.

        Of uploads of one key that a page's end parts, those on the next page are left out, to be found once the others
        are gone: not every server (versitygw 1.8) goes on in the middle of a key.
        """
        for page in self._pages("list_multipart_uploads", "KeyMarker", Prefix=self._base + prefix):
            for entry in page.get("Uploads", ()):
                begun_ms = int(entry["Initiated"].timestamp() * 1000)
                yield Leftover(entry["Key"].removeprefix(self._base), entry["UploadId"], begun_ms)

    def discard(self, leftover: Leftover) -> None:
        name = self._name(leftover.key)
        with suppress(ClientError):
            self._call(
                lambda s3: s3.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=leftover.id),
                expected=(_NO_SUCH_UPLOAD,),
            )

    def _name(self, key: str) -> str:
        return self._base + check_key(key)

    def _pages(self, method: str, goes_on_at: str, **params: Any) -> Iterator[Any]:
        while True:
            page: Any = self._call(lambda s3: getattr(s3, method)(Bucket=self._bucket, **params))
            yield page
            if not page.get("IsTruncated"):
                return
            params[goes_on_at] = page[f"Next{goes_on_at}"]

    def _call(self, request: "Callable[[S3Client], T]", *, expected: Collection[str] = ()) -> T:
        connected, retry = self._connect()

        def attempt() -> T:
            with translated(self._bucket, connected.endpoint, expected):
                return request(connected.s3)

        return retry.call(attempt)

    def _connect(self) -> tuple[Connection, Retry]:
        # A forked child takes over neither connections nor locks.
        if self._connected is None or self._connected[0] != os.getpid():
            # Who has little patience does not wait long for one answer.
            silence_s = min(self._settings.read_timeout_s, max(_SHORTEST_READ_S, self._patience_s))
            made = connection(self._place, silence_s)
            where = f"S3 at {made.endpoint}, bucket {self._bucket!r},"
            retry = Retry(where, self._patience_s, setting=_SETTING, budget=made.budget)
            self._connected = (os.getpid(), made, retry)
        return self._connected[1:]
