"""Object store in a bucket of Google Cloud Storage or a container of Azure Blob Storage, through obstore.

Credentials, endpoints and accounts come from each provider's environment variables and from the machine's identity.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ...common.extras import require_extras
from ...errors import Forbidden, NotFound, ObjectExists, ObjectNotFound, Refused, Usage
from .protocol import ObjectInfo, check_key, check_range
from .retry import Retry, TransientError
from .wrapper import BaseStore

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import AzureStore, ClientConfig, GCSStore

    Client = AzureStore | GCSStore

_PAGE_KEYS = 1000
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_RETRIED_STATUSES = ("408", "429")
_NO_BUCKET = re.compile(r"<Code>(ContainerNotFound|NoSuchBucket)</Code>|container does not exist|no bucket named")
_PAST_END = re.compile(r"Wanted range starting at|status code: 416")
_CLIENT_OPTIONS: "ClientConfig" = {
    "allow_http": True,  # an endpoint is https unless a variable names another one
    "connect_timeout": "5s",
    "read_timeout": "20s",
    "timeout": "300s",
}

T = TypeVar("T")


class _Provider(NamedTuple):
    name: str
    bucket: str
    """Word that the provider uses for a bucket."""
    variables: str
    """Variables that name an account or credentials, for hints."""
    endpoint: str
    """Variable of the endpoint, for hints."""


PROVIDERS = {
    "az": _Provider(
        "Azure Blob Storage",
        "container",
        "AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID with "
        "AZURE_CLIENT_SECRET and AZURE_TENANT_ID, or a managed identity",
        "AZURE_STORAGE_ENDPOINT",
    ),
    "gs": _Provider(
        "Google Cloud Storage",
        "bucket",
        "GOOGLE_APPLICATION_CREDENTIALS, or a service account of the machine",
        "GOOGLE_BASE_URL",
    ),
}
"""Providers by the scheme of a root."""


class CloudStore(BaseStore):
    """Objects under one prefix of a bucket (`gs://bucket/prefix`) or container (`az://container/prefix`).

    A request is retried for up to `patience_s` if the server does not answer, or answers with a request to retry (5xx,
    408, 429). Objects are written by one request each, so interrupted writes leave nothing.

    Every method may raise, in addition to the errors in its own docstring:
        Usage: variables of the account, the credentials or the endpoint are missing or malformed.
        Unavailable: the server did not answer within `patience_s`.
        NotFound: there is no such bucket or container.
        Forbidden: the credentials or permissions are insufficient.
        Refused: the key is invalid (Azure allows no backslash), or another error that a retry cannot fix.
    """

    def __init__(self, scheme: str, bucket: str, prefix: str = "", *, patience_s: float = 60.0) -> None:
        require_extras("clouds", f"a store at {scheme}://")
        super().__init__(partial(BaseStore.open_root, patience_s=patience_s))
        self._scheme, self._bucket = scheme, bucket
        self._base = f"{prefix.strip('/')}/".lstrip("/")
        self._patience_s = patience_s
        self._provider = PROVIDERS[scheme]
        self._connected: tuple[int, Client, Retry] | None = None

    def __repr__(self) -> str:
        return f"CloudStore({self.url!r})"

    def __getstate__(self) -> dict[str, object]:
        # Connections and locks cannot be pickled.
        return {**self.__dict__, "_connected": None, "_stores_by_root": {}}

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self._bucket}/{self._base}".rstrip("/")

    def get(self, key: str) -> bytes:
        name = self._full_key(key)
        try:
            return self._call(lambda client: client.get(name).bytes().to_bytes())
        except FileNotFoundError:
            raise ObjectNotFound(key, self.url) from None

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        name = self._full_key(key)
        # Reading one byte of an empty range checks that the object exists.
        end = start + max(length, 1)
        try:
            return self._call(lambda client: client.get_range(name, start=start, end=end).to_bytes())[:length]
        except FileNotFoundError:
            raise ObjectNotFound(key, self.url) from None
        except _PastEnd:
            return b""

    def put(self, key: str, data: bytes) -> None:
        name, content = self._full_key(key), bytes(data)
        self._call(lambda client: client.put(name, content, use_multipart=False))

    def put_if_absent(self, key: str, data: bytes) -> None:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        name, content = self._full_key(key), bytes(data)
        try:
            self._call(lambda client: client.put(name, content, mode="create", use_multipart=False))
        except (AlreadyExistsError, PreconditionError):
            raise ObjectExists(key, self.url) from None

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects under `prefix`. Costs one request for each 1,000 objects, sent as they are consumed.

        Azure cannot begin a listing at `start_after`: objects that sort before it are requested, and then left out.
        """
        # obstore's prefixes end with a whole segment.
        folder = prefix[: prefix.rfind("/") + 1]
        if not _is_path(folder.removesuffix("/")):
            return
        offset = start_after.rstrip("/")
        for page in self._pages(self._base + folder, self._base + offset if offset and _is_path(offset) else None):
            for entry in page:
                key = entry["path"].removeprefix(self._base)
                # Not every server skips what sorts before the offset.
                if key.startswith(prefix) and key > start_after:
                    yield ObjectInfo(key, entry["size"], int(entry["last_modified"].timestamp() * 1000))
                elif key > prefix and not key.startswith(prefix):
                    return

    def _pages(self, folder: str, offset: str | None) -> "Iterator[Sequence[ObjectMeta]]":
        pages: Iterator[Sequence[ObjectMeta]] | None = None

        def next_page(client: "Client") -> "Sequence[ObjectMeta]":
            nonlocal pages
            try:
                if pages is None:
                    pages = iter(client.list(folder.rstrip("/") or None, offset=offset, chunk_size=_PAGE_KEYS))
                return next(pages, ())
            except BaseException:
                # obstore's listing ends with an error, as if there were no more objects: a retry begins anew.
                pages = None
                raise

        while page := self._call(next_page):
            yield page
            offset = page[-1]["path"]

    def list_folders(self, prefix: str) -> Iterator[str]:
        folder = self._base + prefix
        listing = self._call(lambda client: client.list_with_delimiter(folder.rstrip("/") or None))
        names = [path.rstrip("/").removeprefix(folder) for path in listing["common_prefixes"]]
        yield from sorted(names, key=lambda name: f"{name}/".encode())

    def delete(self, key: str) -> None:
        name = self._full_key(key)
        with suppress(FileNotFoundError):
            self._call(lambda client: client.delete(name))

    def _full_key(self, key: str) -> str:
        if self._scheme == "az" and "\\" in key:
            raise Refused(f"object key {key!r} is not usable: Azure takes a backslash for a slash")
        return self._base + check_key(key)

    def _call(self, request: "Callable[[Client], T]") -> T:
        client, retry = self._connect()

        def attempt() -> T:
            try:
                return request(client)
            except Exception as error:
                raise self._translate(error) from None

        return retry.call(attempt)

    def _translate(self, error: Exception) -> Exception:
        """Return obstore's error as slackwater's error, without obstore's text, which contains signed URLs."""
        from obstore.exceptions import (
            AlreadyExistsError,
            GenericError,
            PermissionDeniedError,
            PreconditionError,
            UnauthenticatedError,
        )

        text = str(error)
        if _NO_BUCKET.search(text):
            return NotFound(
                self._provider.bucket,
                self._bucket,
                found=f"{self._provider.name} does not have it",
                hint=f"create the {self._provider.bucket}, or name another store root",
            )
        if isinstance(error, (FileNotFoundError, AlreadyExistsError, PreconditionError)):
            return error
        if _PAST_END.search(text):
            return _PastEnd()
        is_denied = isinstance(error, (PermissionDeniedError, UnauthenticatedError))
        if not is_denied and not isinstance(error, GenericError):
            return error
        if "token request" in text:
            return TransientError(f"no access token; credentials come from {self._provider.variables}")
        status, code = (match[1] if (match := pattern.search(text)) else "" for pattern in (_STATUS, _CODE))
        answer = f"{status} {code}".strip()
        if is_denied or status in ("401", "403"):
            return Forbidden(
                f"{self.url} refused the credentials or the request ({answer or 'no reason given'})",
                hint=f"set {self._provider.variables}; they need to read, write, list and delete objects here",
            )
        if not status:
            return TransientError("no answer in time" if "timed out" in text else "the connection broke")
        if status in _RETRIED_STATUSES or status.startswith("5"):
            return TransientError(answer)
        return Refused(f"{self.url} answered {answer}")

    def _connect(self) -> "tuple[Client, Retry]":
        # A forked child must not use its parent's connections and locks.
        if self._connected is None or self._connected[0] != os.getpid():
            client = self._open_client()
            where = f"{self._provider.name}, {self._provider.bucket} {self._bucket!r},"
            setting = f"{self._provider.endpoint} (default: {self._provider.name} itself)"
            self._connected = (os.getpid(), client, Retry(where, self._patience_s, setting=setting))
        return self._connected[1:]

    def _open_client(self) -> "Client":
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore, GCSStore

        open_client = AzureStore if self._scheme == "az" else GCSStore
        with suppress(BaseError):
            return open_client(self._bucket, client_options=_CLIENT_OPTIONS, retry_config={"max_retries": 0})
        # Neither the message nor the context has obstore's text, which has URLs and so signatures.
        raise Usage(
            f"{self.url}: the settings of {self._provider.name} are missing or malformed; they come from "
            f"{self._provider.variables}; {self._provider.endpoint}, if set, is a URL",
            hint=f"set {self._provider.variables}",
        )


def _is_path(text: str) -> bool:
    return not text or not any(segment in ("", ".", "..") for segment in text.split("/"))


class _PastEnd(Exception):
    """The start of a range is at the object's end or after it."""
