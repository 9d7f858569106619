"""The one narrow seam to storage. S3, a local folder and memory offer the same guarantees through it.

Where storage keeps what writes that never ended have left, uploads in parts or files, a store says that, too.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from ...errors import ObjectNotFound, Refused

# Listings are XML, which cannot say control characters; lone surrogates are not text.
UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_MAX_SEGMENT_BYTES = 255


class ObjectInfo(NamedTuple):
    """One entry of a listing."""

    key: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """Whole, immutable objects under string keys ('/' separates folders).

    A read that starts after a put has returned sees that put. Every method may raise `Unavailable` when storage did
    not answer within the store's patience; retries with backoff are the implementation's business.
    """

    @property
    def url(self) -> str:
        """The store root as the user wrote it, normalised: `s3://bucket/prefix` or an absolute folder."""

    def at(self, root: str) -> "ObjectStore":
        """The store at another root, a `url` or empty for this one; the same one each time.

        Requests to it are made as to this one: with its patience and settings, and counted where this one's are. Raises
        `Usage` where the root cannot be understood.
        """

    def get(self, key: str) -> bytes:
        """The object's bytes. Raises `ObjectNotFound`."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer at the object's end. Raises `ObjectNotFound`."""

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite, atomically. For keys that only one writer ever uses."""

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create the object. Raises `ObjectExists` when the key is taken, also by a race.

        A retry after a lost answer may raise `ObjectExists` for the caller's own write: read back and compare.
        """

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` and sorts after `start_after`, in the order of keys."""

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders directly under `prefix` (which ends with '/'), in order, without slashes."""

    def delete(self, key: str) -> None:
        """Remove the object; no error when it is not there."""

    def local_path(self, key: str) -> Path | None:
        """Where the object lies on this machine's disk, or None for a remote store."""


def check_range(start: int, length: int) -> None:
    """Raise `ValueError` for what a slice would silently read as "from the end": a negative `start` or `length`."""
    if start < 0 or length < 0:
        raise ValueError(f"a range starts at 0 or later and is not negative; found start={start}, length={length}")


def exists(store: ObjectStore, key: str) -> bool:
    """Whether there is such an object. One request, for a byte of it."""
    try:
        store.get_range(key, 0, 1)
    except ObjectNotFound:
        return False
    return True


def documents(store: ObjectStore, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
    """The JSON objects under a prefix. Some servers also list an upload under way, by a name of its own."""
    return (info for info in store.list(prefix, start_after) if info.key.endswith(".json"))


def check_key(key: str) -> str:
    """Return `key` if every store can hold it and it stays under the root.

    Raises `Refused` where it is empty, absolute, has an empty, '.' or '..' segment, a control character, or a segment
    longer than file systems take; a manifest that was tampered with is one way to meet such a key.
    """
    segments = key.split("/")
    if UNSPEAKABLE.search(key) or any(segment in ("", ".", "..") for segment in segments):
        raise Refused(f"object key {key!r} is not usable: expected names joined by '/', without '.' and '..'")
    if len(key) * 4 > _MAX_SEGMENT_BYTES and any(len(segment.encode()) > _MAX_SEGMENT_BYTES for segment in segments):
        raise Refused(f"object key {key!r} is not usable: expected names of at most {_MAX_SEGMENT_BYTES} bytes")
    return key


class Leftover(NamedTuple):
    """A write that was begun and has not ended. It may still be under way."""

    key: str
    """What it would have become, where that is known; else where it lies."""
    id: str
    """Tells writes of the same key apart; a store's own."""
    begun_ms: int
    """By storage's clock."""


@runtime_checkable
class Leftovers(Protocol):
    """A store in which writes leave something when they break off."""

    def leftovers(self, prefix: str) -> Iterator[Leftover]:
        """Writes of keys under `prefix` that have not ended; all of them where keys are not known."""

    def discard(self, leftover: Leftover) -> None:
        """End one for good and free what it takes; no error when it has ended."""
