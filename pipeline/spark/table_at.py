"""A table at a moment, as Spark's processes get it: version, store, and how to read it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ...common.instants import iso
from ...errors import NotFound, Usage
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.moments import having, heads_of, read_version
from ...snapshot.cut.resolve import resolve, telling_if_collected
from ...store.objects.open import access_to, open_store, take
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3_settings import S3Access, S3Place, S3Settings
from ...store.versions import history
from ...store.versions.apps import in_folder
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import may_have, owner, table_of, tables_of

_log = logging.getLogger("slackwater")
_HINT = 'spark.read.format("slackwater").option("at", "-5m").load("APP/TABLE")'


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Address of a store, for processes with the driver's access. Pickled to them by Spark."""

    root: str
    s3_settings: S3Settings
    s3: S3Access | None = field(default=None, repr=False)
    """The driver's access to the store; None if the root is enough."""

    def open(self) -> ObjectStore:
        """Return the store; a reused worker keeps it open."""
        return _open(self.root, self.s3_settings, take(self.s3))

    def as_here(self) -> StorePlace:
        """Return a copy with access for other processes. Call it shortly before use: credentials may be temporary."""
        return replace(self, s3=access_to(self.open()))


@lru_cache(maxsize=8)
def _open(root: str, settings: S3Settings, place: S3Place | None) -> ObjectStore:
    return open_store(root, settings=settings, place=place)


@dataclass(frozen=True, slots=True)
class VersionedTable:
    """A table at a version of its stage. The manifest is read when needed, because names of SSTs may change."""

    store: StorePlace
    app: str
    """Folder of the app."""
    stage: str
    """Stage of the table, under its name at that version."""
    version: int
    table: str
    clock_ms: int
    """Clock that decides which rows are expired."""

    @classmethod
    def find(cls, place: StorePlace, path: str, at: str, now_ms: int) -> VersionedTable:
        """Return the table of `APP/TABLE` at a moment, given as after the `@` of a ref; empty for the newest.

        Raises `Usage` for an invalid path or moment, and `NotFound` for one that does not exist.
        """
        store, (app, table) = place.open(), _names(path)
        cut = resolve(store, in_folder(store, f"{app}@{at}" if at else app), now_ms=now_ms)
        if cut.thinned is not None:
            answered = iso(cut.thinned.answered_ms, "milliseconds")
            _log.warning(
                "%s@%s: gc has thinned out the history there; reading the moment %s instead", path, at, answered
            )
        return cls.of_cut(place, having(store, cut, (table,)), table)

    @classmethod
    def of_cut(cls, place: StorePlace, cut: Cut, table: str) -> VersionedTable:
        """Return a table of a cut."""
        stage, manifest = next((name, head) for name, head in cut.stages.items() if table in tables_of(head, name))
        then = manifest.stage + table.removeprefix(stage)
        return cls(place, cut.app, manifest.stage, manifest.version, then, cut.clock_ms(table))

    @classmethod
    def of_version(cls, place: StorePlace, path: str, version: int, clock_ms: int) -> VersionedTable:
        """Return the table of `APP/TABLE` at a version of its stage. Raises as `find`."""
        store, (app, table) = place.open(), _names(path)
        folder = in_folder(store, app)
        stage = owner(table, heads_of(store, folder, may_have(table, history.list_stages(store, folder))))
        return cls(place, folder, stage, version, table, clock_ms)

    def read(self, store: ObjectStore) -> Manifest:
        """Return the manifest with this table as its main one. Raises `NotFound` if it was collected or has none."""
        manifest = table_of(read_version(store, self.app, self.stage, self.version), self.table)
        if manifest.table is None:
            raise NotFound(f"table at {self.app}/{self.stage}@v{self.version}", self.table)
        return manifest

    @contextmanager
    def reading(self, store: ObjectStore, manifest: Manifest) -> Iterator[None]:
        """Raise `NotFound` with the moment's name if the version is collected during the block."""
        with telling_if_collected(store, Cut(self.app, {self.stage: manifest})):
            yield


def _names(path: str) -> tuple[str, str]:
    """Return the app and the table of a path. Raises `Usage`."""
    app, _, table = path.partition("/")
    if not app or not table:
        raise Usage(f"{path!r} is not a table; expected APP/TABLE", hint=_HINT)
    return app, table
