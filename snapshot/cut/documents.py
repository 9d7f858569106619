"""Reading the small JSON documents beside an app's history, many at once: snapshots, requests, operations."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from ...errors import ObjectNotFound
from ...store.objects.protocol import ObjectInfo, ObjectStore
from ...store.versions import codec

T = TypeVar("T", bound=Struct)


def read_documents(
    store: ObjectStore, listed: Iterable[ObjectInfo], kind: type[T], key_of: Callable[[T], str]
) -> Iterator[T]:
    """What these objects hold, in their order, without those that are gone since they were listed. A read for each.

    `key_of` gives the key under which a value belongs, by what it says.

    Raises:
        Corruption: one cannot be read, or belongs elsewhere.
        Unavailable: storage did not answer.
    """
    for info in listed:
        with suppress(ObjectNotFound):
            yield codec.read(store, info.key, kind, under=key_of)
