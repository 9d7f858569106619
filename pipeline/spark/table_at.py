"""One table at one moment, as Spark's processes are told of it: which version, where, and how to read it."""

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
from ...store.objects.s3.settings import S3Access, S3Place, S3Settings
from ...store.versions import history
from ...store.versions.apps import in_folder
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import may_have, owner, table_of, tables_of

_log = logging.getLogger("slackwater")
_HINT = 'spark.read.format("slackwater").option("at", "-5m").load("APP/TABLE")'


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store, for processes that get to it as the driver does. Crosses to them by pickle, inside Spark."""

    root: str
    s3_settings: S3Settings
    s3: S3Access | None = field(default=None, repr=False)
    """How the driver gets to it; None where its root is enough."""

    def open(self) -> ObjectStore:
        """The store; a worker is used again, and with it what it has open."""
        return _open(self.root, self.s3_settings, take(self.s3))

    def as_here(self) -> StorePlace:
        """The same, for processes that know nothing but this: credentials may be temporary, so shortly before use."""
        return replace(self, s3=access_to(self.open()))


@lru_cache(maxsize=8)
def _open(root: str, settings: S3Settings, place: S3Place | None) -> ObjectStore:
    return open_store(root, settings=settings, place=place)


@dataclass(frozen=True, slots=True)
class VersionedTable:
    """A version of a stage that has the table. Its manifest is read where it is needed: names of SSTs may change."""

    store: StorePlace
    app: str
    """The app's folder."""
    stage: str
    """Whose the table is, as it was called then."""
    version: int
    table: str
    clock_ms: int
    """By which its rows are expired."""

    @classmethod
    def find(cls, place: StorePlace, path: str, at: str, now_ms: int) -> VersionedTable:
        """The table of `APP/TABLE` at a moment, as it stands behind the `@` of a ref; the newest for an empty one.

        Raises `Usage` for what is no such path or moment, and `NotFound` for what there is not.
        """
        store, (app, table) = place.open(), _names(path)
        cut = resolve(store, in_folder(store, f"{app}@{at}" if at else app), now_ms=now_ms)
        if cut.thinned is not None:
            answered = iso(cut.thinned.answered_ms, "milliseconds")
            _log.warning(
                "%s@%s: history was thinned out by gc there; what is read is the moment %s", path, at, answered
            )
        return cls.of_cut(place, having(store, cut, (table,)), table)

    @classmethod
    def of_cut(cls, place: StorePlace, cut: Cut, table: str) -> VersionedTable:
        """A table that a cut has."""
        stage, manifest = next((name, each) for name, each in cut.stages.items() if table in tables_of(each, name))
        then = manifest.stage + table.removeprefix(stage)
        return cls(place, cut.app, manifest.stage, manifest.version, then, cut.clock_ms(table))

    @classmethod
    def of_version(cls, place: StorePlace, path: str, version: int, clock_ms: int) -> VersionedTable:
        """The table of `APP/TABLE` at a version of its stage. Raises as `find`."""
        store, (app, table) = place.open(), _names(path)
        folder = in_folder(store, app)
        stage = owner(table, heads_of(store, folder, may_have(table, history.list_stages(store, folder))))
        return cls(place, folder, stage, version, table, clock_ms)

    def read(self, store: ObjectStore) -> Manifest:
        """The version as one that has the table as its own. Raises `NotFound` where it was collected, or has none."""
        found = table_of(read_version(store, self.app, self.stage, self.version), self.table)
        if found.table is None:
            raise NotFound(f"table at {self.app}/{self.stage}@v{self.version}", self.table)
        return found

    @contextmanager
    def reading(self, store: ObjectStore, manifest: Manifest) -> Iterator[None]:
        """While it is read. Raises `NotFound`, which names the moment, where it was collected meanwhile."""
        with telling_if_collected(store, Cut(self.app, {self.stage: manifest})):
            yield


def _names(path: str) -> tuple[str, str]:
    """App and table of a path. Raises `Usage`."""
    app, _, table = path.partition("/")
    if not app or not table:
        raise Usage(f"{path!r} names no table of an app", hint=_HINT)
    return app, table
