"""Object store in an S3 bucket, on AWS or any server with conditional writes. Large objects are moved in parts."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar, cast

from botocore.exceptions import BotoCoreError, ClientError

from ...common import runtime
from ...errors import ObjectExists, ObjectNotFound, Refused
from .protocol import ObjectInfo, UnfinishedWrite, check_key, check_range
from .retry import Retry, TransientError
from .s3_client import DIRECTORY_BUCKET, Connection, connection, error_code, translate_errors, without_credentials
from .s3_settings import S3Access, S3ClientConfig, S3Credentials, S3Settings, load_s3_settings
from .wrapper import BaseStore

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.response import StreamingBody
    from mypy_boto3_s3 import S3Client

_NO_SUCH_UPLOAD = "NoSuchUpload"
_NO_SUCH_KEY = "NoSuchKey"
_NO_SUCH_RANGE = "InvalidRange"
_NO_DATA_CODES = (_NO_SUCH_KEY, _NO_SUCH_RANGE)
_PRECONDITION_FAILED = "PreconditionFailed"
_ENDPOINT_SETTING = (
    "AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL (default: AWS's configuration, then AWS itself); the bucket comes from "
    "--store, SLACKWATER_STORE or store in slackwater.toml"
)
_MIN_READ_TIMEOUT_S = 5.0
_CHUNK_BYTES = 1 << 16
_MAX_ATTEMPTS = 3

T = TypeVar("T")


class S3Store(BaseStore):
    """Objects under one prefix of one bucket.

    A request is retried for up to `patience_s` if the server does not answer, or answers with a request to retry (5xx,
    SlowDown, a conflict of conditional writes). All stores of this process share a budget of retries. Endpoint, region
    and credentials come from AWS's usual configuration; AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL name a server that is
    not AWS's. Large objects are moved in parts.

    Every method may raise, in addition to the errors in its own docstring:
        Unavailable: the server did not answer within `patience_s`.
        NotFound: there is no such bucket.
        Refused: credentials, permissions or region are wrong, the key is invalid, or the server does not encrypt.
        Usage: the endpoint is not a URL.

    Args:
        bucket: the bucket's name; it must exist.
        prefix: prefix of every key, without slashes at its ends; empty for the bucket itself.
        endpoint_url: overrides the environment.
        patience_s: time for which a request is retried, in seconds.
        settings: encryption, timeouts and parts; None takes them from the environment.
        client_config: configuration from another process (`s3_client.use_access`); overrides `endpoint_url` and
            `settings`.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str = "",
        patience_s: float = 60.0,
        settings: S3Settings | None = None,
        client_config: S3ClientConfig | None = None,
    ) -> None:
        self._client_config = client_config or S3ClientConfig(
            without_credentials(endpoint_url), "", settings or load_s3_settings(os.environ)
        )
        super().__init__(partial(BaseStore.open_root, patience_s=patience_s, client_config=self._client_config))
        self._bucket = bucket
        self._is_directory_bucket = bucket.endswith(DIRECTORY_BUCKET)
        self._base = f"{prefix.strip('/')}/".lstrip("/")
        self._patience_s = patience_s
        self._settings = self._client_config.settings
        self._connected: tuple[int, Connection, Retry] | None = None

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    def __getstate__(self) -> dict[str, object]:
        # Connections and locks cannot be pickled.
        return {**self.__dict__, "_connected": None, "_stores_by_root": {}}

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._base}".rstrip("/")

    def access(self) -> S3Access | None:
        """Return the client configuration and current credentials for another process; None without credentials.

        Temporary credentials that are about to expire are renewed first.
        """
        connected, _ = self._connect()
        if connected.credentials is None:
            return None
        with translate_errors(self._bucket, connected.endpoint):
            now = connected.credentials.get_frozen_credentials()
        credentials = S3Credentials(now.access_key or "", now.secret_key or "", now.token or "")
        return S3Access(connected.config_for_others, credentials)

    def get(self, key: str) -> bytes:
        """Return the object's bytes: the first part by one request, then the other parts in parallel.

        Raises `Refused` if the object is repeatedly overwritten during the read.
        """
        part_bytes = self._settings.part_bytes
        for _ in range(_MAX_ATTEMPTS):
            first, etag, size = self._get(key, part_bytes, 0)
            starts = range(len(first), size, part_bytes)
            if not starts:
                return first
            same: dict[str, Any] = {"IfMatch": etag} if etag else {}
            try:
                with runtime.executor(min(self._settings.parallel_parts, len(starts))) as pool:
                    parts = pool.map(partial(self._get, key, part_bytes, **same), starts)
                    return b"".join((first, *(data for data, _, _ in parts)))
            except ClientError as error:
                if error_code(error) != _PRECONDITION_FAILED:
                    raise
        raise Refused(
            f"object {self._full_key(key)!r} in bucket {self._bucket!r} was overwritten {_MAX_ATTEMPTS} times "
            f"while it was read",
            hint="find out what else writes under this store root",
        )

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        # HTTP has no empty range; reading one byte checks that the object exists.
        return self._get(key, max(length, 1), start)[0][:length]

    def _get(self, key: str, length: int, start: int, **condition: Any) -> tuple[bytes, str, int]:
        name = self._full_key(key)

        def request(s3: "S3Client") -> tuple[bytes, str, int]:
            until_s = runtime.monotonic() + self._settings.attempt_timeout_s
            part = f"bytes={start}-{start + length - 1}"
            answer = s3.get_object(Bucket=self._bucket, Key=name, Range=part, **condition)
            data = _read_body(answer["Body"], until_s)
            size = answer.get("ContentRange", "").rpartition("/")[2]
            return data, answer.get("ETag", ""), int(size) if size.isdigit() else len(data)

        try:
            return self._call(
                request, expected=(*_NO_DATA_CODES, _PRECONDITION_FAILED) if condition else _NO_DATA_CODES
            )
        except ClientError as error:
            if error_code(error) == _NO_SUCH_RANGE:
                return b"", "", 0  # the range starts at the object's end or after it
            if error_code(error) == _NO_SUCH_KEY:
                raise ObjectNotFound(key, self.url) from None
            raise

    def put(self, key: str, data: bytes) -> None:
        name = self._full_key(key)
        if len(data) > self._settings.multipart_bytes:
            self._upload(name, data)
        else:
            self._call(lambda s3: s3.put_object(Bucket=self._bucket, Key=name, Body=data))

    def _upload(self, name: str, data: bytes) -> None:
        """Write an object in parts. The object appears with the last request.

        A failed upload is aborted with one request; if that fails too, garbage collection removes the parts. Raises
        `Refused` if others repeatedly abort the upload.
        """
        # The import takes a tenth of a command's start time, and only large objects are uploaded in parts.
        from boto3.s3.transfer import TransferConfig, create_transfer_manager

        config = TransferConfig(
            # The caller has applied the threshold.
            multipart_threshold=1,
            multipart_chunksize=self._settings.part_bytes,
            max_concurrency=self._settings.parallel_parts,
            # The CRT client would create its own S3 client.
            preferred_transfer_client="classic",
        )
        # The manager copies parts into memory, so it gets no more parts than are in transfer.
        config.max_in_memory_upload_chunks = self._settings.parallel_parts
        for _ in range(_MAX_ATTEMPTS):
            patient = cast("BaseClient", _RetryingClient(self._call, self._connect()[0].s3))
            try:
                with create_transfer_manager(patient, config) as manager:
                    manager.upload(BytesIO(data), self._bucket, name).result()
            except ClientError as error:
                # Either the answer to the completion was lost and the server has forgotten the upload, or the upload
                # was aborted.
                if error_code(error) != _NO_SUCH_UPLOAD:
                    raise
            else:
                return
        raise Refused(
            f"the upload of {name!r} in parts to bucket {self._bucket!r} was aborted {_MAX_ATTEMPTS} times before "
            f"it was "
            "complete",
            hint="find out what aborts uploads there: a lifecycle rule, or another program",
        )

    def put_if_absent(self, key: str, data: bytes) -> None:
        name = self._full_key(key)
        try:
            self._call(
                lambda s3: s3.put_object(Bucket=self._bucket, Key=name, Body=data, IfNoneMatch="*"),
                expected=(_PRECONDITION_FAILED,),
            )
        except ClientError:
            raise ObjectExists(key, self.url) from None

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects under `prefix`. Costs one request for each 1,000 objects, sent as they are consumed."""
        if self._is_directory_bucket:
            yield from self._list_directories(prefix, start_after)
            return
        extra = {"StartAfter": self._base + start_after} if start_after else {}
        yield from self._listed(Prefix=self._base + prefix, **extra)

    def _list_directories(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """Yield the objects of a directory bucket: it lists whole folders only, in no order."""
        folder = (self._base + prefix).rpartition("/")[0]
        infos = self._listed(Prefix=f"{folder}/" if folder else "")
        yield from sorted(info for info in infos if info.key.startswith(prefix) and info.key > start_after)

    def _listed(self, **params: str) -> Iterator[ObjectInfo]:
        for page in self._pages("list_objects_v2", "ContinuationToken", **params):
            for entry in page.get("Contents", ()):
                # Some tools create keys that end with '/' for empty folders.
                if not entry["Key"].endswith("/"):
                    modified_ms = int(entry["LastModified"].timestamp() * 1000)
                    yield ObjectInfo(entry["Key"].removeprefix(self._base), entry["Size"], modified_ms)

    def list_folders(self, prefix: str) -> Iterator[str]:
        pages = self._pages("list_objects_v2", "ContinuationToken", Prefix=self._base + prefix, Delimiter="/")
        entries = (entry for page in pages for entry in page.get("CommonPrefixes", ()))
        names = (entry["Prefix"].removeprefix(self._base + prefix).removesuffix("/") for entry in entries)
        yield from sorted(names) if self._is_directory_bucket else names

    def delete(self, key: str) -> None:
        name = self._full_key(key)
        self._call(lambda s3: s3.delete_object(Bucket=self._bucket, Key=name))

    def now_ms(self) -> int | None:
        answer = self._call(lambda s3: s3.list_objects_v2(Bucket=self._bucket, Prefix=self._base, MaxKeys=1))
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return None if date is None else int(parsedate_to_datetime(date).timestamp() * 1_000)

    def unfinished_writes(self, prefix: str) -> Iterator[UnfinishedWrite]:
        """Yield the unfinished multipart uploads under `prefix`. Costs one request per 1,000 uploads.

        Some servers (versitygw 1.8) cannot continue a listing within a key. If a page ends between two uploads of a
        key, the later uploads are skipped until the earlier ones are discarded.
        """
        for page in self._pages("list_multipart_uploads", "KeyMarker", Prefix=self._base + prefix):
            for entry in page.get("Uploads", ()):
                begun_ms = int(entry["Initiated"].timestamp() * 1000)
                yield UnfinishedWrite(entry["Key"].removeprefix(self._base), entry["UploadId"], begun_ms)

    def discard(self, leftover: UnfinishedWrite) -> None:
        name = self._full_key(leftover.key)
        with suppress(ClientError):
            self._call(
                lambda s3: s3.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=leftover.id),
                expected=(_NO_SUCH_UPLOAD,),
            )

    def _full_key(self, key: str) -> str:
        return self._base + check_key(key)

    def _pages(self, method: str, token_name: str, **params: Any) -> Iterator[Any]:
        while True:
            page: Any = self._call(lambda s3: getattr(s3, method)(Bucket=self._bucket, **params))
            yield page
            if not page.get("IsTruncated"):
                return
            params[token_name] = page[f"Next{token_name}"]

    def _call(self, request: "Callable[[S3Client], T]", *, expected: Collection[str] = ()) -> T:
        connected, retry = self._connect()

        def attempt() -> T:
            with translate_errors(self._bucket, connected.endpoint, expected):
                return request(connected.s3)

        return retry.call(attempt)

    def _connect(self) -> tuple[Connection, Retry]:
        # A forked child must not use its parent's connections and locks.
        if self._connected is None or self._connected[0] != os.getpid():
            # A short deadline also limits the wait for a single answer.
            silence_s = min(self._settings.read_timeout_s, max(_MIN_READ_TIMEOUT_S, self._patience_s))
            shared = connection(self._client_config, silence_s)
            where = f"S3 at {shared.endpoint}, bucket {self._bucket!r},"
            retry = Retry(where, self._patience_s, setting=_ENDPOINT_SETTING, budget=shared.budget)
            self._connected = (os.getpid(), shared, retry)
        return self._connected[1:]


class _RetryingClient:
    """S3 client for boto3's transfer manager. It retries single requests, not the whole upload."""

    def __init__(self, call: Callable[..., Any], s3: "S3Client") -> None:
        self.meta = s3.meta
        self._s3 = s3
        self._call = call
        self._failed: Exception | None = None
        self.create_multipart_upload = partial(self._call_with_retries, "create_multipart_upload")
        self.upload_part = partial(self._call_with_retries, "upload_part")
        self.complete_multipart_upload = partial(self._call_with_retries, "complete_multipart_upload")

    def abort_multipart_upload(self, **params: Any) -> None:
        # Not retried: the server may be unreachable, and the deadline has passed.
        with suppress(ClientError, BotoCoreError):
            self._s3.abort_multipart_upload(**params)

    def _call_with_retries(self, method: str, **params: Any) -> Any:
        def attempt(s3: "S3Client") -> Any:
            # If one part has failed permanently, the other parts are useless.
            if self._failed is not None:
                raise self._failed
            if "Body" in params:
                params["Body"].seek(0)
            return getattr(s3, method)(**params)

        try:
            return self._call(attempt, expected=(_NO_SUCH_UPLOAD,))
        except Exception as error:
            self._failed = self._failed or error
            raise


def _read_body(body: "StreamingBody", until_s: float) -> bytes:
    """Return the whole body of an answer. Raises `TransientError` if it has not arrived by `until_s`.

    `until_s` is a time of the monotonic clock. botocore limits the silence on a connection, but not the duration of an
    answer.
    """
    chunks = []
    with body:
        while chunk := body.read(_CHUNK_BYTES):
            chunks.append(chunk)
            if runtime.monotonic() > until_s:
                raise TransientError("the answer takes too long to arrive")
    return b"".join(chunks)
