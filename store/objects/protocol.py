"""Interface of all object stores (`ObjectStore`), and the guarantees that every store must fulfil.

Stores in which interrupted writes leave data, such as multipart uploads, also implement `HasUnfinishedWrites`. Stores
on a server also implement `HasClock`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from ...errors import ObjectNotFound, Refused

# Listings are XML, which cannot contain control characters; lone surrogates are not valid text.
UNSUPPORTED_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_MAX_SEGMENT_BYTES = 255


class ObjectInfo(NamedTuple):
    """One entry of a listing: key, size and time of an object."""

    key: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """Immutable objects, read and written as a whole, under string keys ('/' separates folders).

    A read that starts after a put has returned sees that put. Every method retries with backoff while storage does not
    answer, and raises `Unavailable` when the store's patience ends.
    """

    @property
    def url(self) -> str:
        """Normalised store root: `s3://bucket/prefix` or an absolute folder."""

    def at(self, root: str) -> "ObjectStore":
        """Return the store at another root (a `url`; empty for this store). Repeated calls return one object.

        The returned store has the same patience and settings, and shares the request counters. Raises `Usage`.
        """

    def get(self, key: str) -> bytes:
        """Return the object's bytes. Raises `ObjectNotFound`."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes of the object from offset `start`; fewer at its end. Raises `ObjectNotFound`."""

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite the object, atomically. Use it only for keys that have a single writer."""

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create the object. Raises `ObjectExists` if the key exists, even if it was created meanwhile.

        If storage's answer is lost, the retry may raise `ObjectExists` because the caller's own write succeeded: read
        the object and compare.
        """

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix` and sorts after `start_after`, in key order."""

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders directly under `prefix` (which ends with '/'), in order, without slashes."""

    def delete(self, key: str) -> None:
        """Remove the object; no error if the object does not exist."""

    def local_path(self, key: str) -> Path | None:
        """Return the object's path on this machine's disk; None for a remote store."""


def check_range(start: int, length: int) -> None:
    if start < 0 or length < 0:
        raise ValueError(f"a range starts at 0 or later and is not negative; found start={start}, length={length}")


def exists(store: ObjectStore, key: str) -> bool:
    """Return True if the object exists. Costs one request, which reads one byte."""
    try:
        store.get_range(key, 0, 1)
    except ObjectNotFound:
        return False
    return True


def list_json(store: ObjectStore, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
    """Yield the `.json` objects under a prefix. Skips temporary uploads, which some servers list."""
    return (info for info in store.list(prefix, start_after) if info.key.endswith(".json"))


def check_key(key: str) -> str:
    """Return `key` if every store can hold it and it stays under the root.

    Raises `Refused` if the key is empty or absolute, has an empty, '.' or '..' segment, a control character, or a
    segment longer than file systems allow. A manipulated manifest may contain such a key.
    """
    segments = key.split("/")
    if UNSUPPORTED_CHARACTERS.search(key) or any(segment in ("", ".", "..") for segment in segments):
        raise Refused(f"object key {key!r} is not usable: expected names joined by '/', without '.' and '..'")
    if len(key) * 4 > _MAX_SEGMENT_BYTES and any(len(segment.encode()) > _MAX_SEGMENT_BYTES for segment in segments):
        raise Refused(f"object key {key!r} is not usable: expected names of at most {_MAX_SEGMENT_BYTES} bytes")
    return key


class UnfinishedWrite(NamedTuple):
    """A write that began and has not ended. It may still be running."""

    key: str
    """Key of the object being written, if known; otherwise the path of the temporary file."""
    id: str
    """Id by which the store distinguishes writes of one key."""
    begun_ms: int


@runtime_checkable
class HasClock(Protocol):
    """Store on a server with a clock of its own."""

    def now_ms(self) -> int | None:
        """Return the server's time to the second; None if the server does not return it. Costs one request."""


@runtime_checkable
class HasUnfinishedWrites(Protocol):
    """Store in which interrupted writes leave data."""

    def unfinished_writes(self, prefix: str) -> Iterator[UnfinishedWrite]:
        """Yield the unfinished writes of keys under `prefix`; all unfinished writes if their keys are unknown."""

    def discard(self, leftover: UnfinishedWrite) -> None:
        """Abort an unfinished write, and free its space. An ended write is no error."""
