"""Declaration of a source, as the program writes it and the store keeps it."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from ...common import runtime
from ...errors import ObjectExists, Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import codec, keys, limits

Format = Literal["json", "csv", "parquet"]
_IDENTITY = {
    "address": "path",
    "content": "format",
    "header": "header",
    "glob": "path_glob_filter",
    "read_change_feed": "read_change_feed",
    "ignore_deletes": "ignore_deletes",
    "skip_change_commits": "skip_change_commits",
    "starting_version": "starting_version",
}
"""Fields that decide which rows the source has, and in which order, with the names of their arguments."""


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source that an app reads. Its topic is named `<kind>:<name>`."""

    kind: Literal["files", "delta", "iceberg"]
    name: limits.Name
    address: limits.ShortText
    """Folder or URL; `CATALOG.NAMESPACE.TABLE` of an Iceberg table."""
    id: limits.ShortText = ""
    """Id of the list of files, which takes the place of Kafka's topic id; empty in a program."""
    content: Format = "parquet"
    header: bool = False
    """True if the first line of each CSV file has the columns' names and is no record."""
    glob: limits.ShortText = ""
    """Pattern that names of files match; empty for all."""
    starting_version: limits.Count | None = None
    """Version of a Delta table whose changes are read first; None for the rows of its newest version."""
    read_change_feed: bool = False
    ignore_deletes: bool = False
    skip_change_commits: bool = False
    max_files: limits.Count = 0
    """Maximum number of files of a batch; 0 for no limit."""

    @property
    def topic(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def label(self) -> str:
        """Name of the source in messages."""
        if self.kind == "files":
            return f"folder {self.address}"
        return f"{self.kind.capitalize()} table {self.address}"


def _key(topic: str) -> str:
    return f"{keys.source(topic)}source.json"


def find_source(store: ObjectStore, topic: str) -> Source | None:
    return codec.find(store, _key(topic), Source, key_of=lambda source: _key(source.topic))


def declare_source(store: ObjectStore, source: Source) -> Source:
    """Store a source that a program declares, and return it with its id. Its options may change, but not its rows.

    Raises `Refused` if the store has files of another source under this name.
    """
    stored = find_source(store, source.topic)
    if stored is None:
        stored = replace(source, id=runtime.random_hex())
        try:
            store.put_if_absent(_key(source.topic), codec.encode(stored))
        except ObjectExists:
            return declare_source(store, source)
    different = [name for name in _IDENTITY if getattr(stored, name) != getattr(source, name)]
    if different and next(store.list(keys.source_files(source.topic)), None) is None:
        # No offset of the old declaration means a row: it was a mistake, such as a mistyped path or a wrong format.
        stored = replace(source, id=runtime.random_hex())
        store.put(_key(source.topic), codec.encode(stored))
    elif different:
        before, now = (
            ", ".join(f"{_IDENTITY[name]}={getattr(at, name)!r}" for name in different) for at in (stored, source)
        )
        raise Refused(
            f"source {source.topic!r} has {now} in the program, but was read with {before} before",
            hint="give the source another name (name=...): then it is a new input, read from its beginning",
        )
    if (current := replace(source, id=stored.id)) != stored:
        store.put(_key(source.topic), codec.encode(current))
    return current
