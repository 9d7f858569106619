"""SSTs that a clone gets for itself: copies of the source's, byte by byte, or rewritten where something is hidden.

Each lies under the ULID that it has in the source. So whoever goes on with a copy that was broken off finds what is
there already, and passes over it if its checksum is right.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import xxhash
from msgspec.structs import replace

from ...moments.cut.graph import Cut
from ...store.compaction.rewrite import rewritten
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.fetch import fetch
from ...store.versions import keys
from ...store.versions.manifest import Manifest, Sst
from ...store.versions.side_tables import each_sst, tables_of
from .mask import Masks

_WORKERS = min(os.cpu_count() or 1, 4)
"""Each has an SST in memory."""


def sizes(cut: Cut, masks: Masks, *, deep: bool) -> dict[str, int]:
    """The tables whose SSTs a clone of this cut gets for itself, and the bytes of the source's."""
    each = {name: sum(sst.bytes for sst in at.ssts) for name, at in cut.tables.items()}
    return {name: size for name, size in each.items() if deep or name in masks.tables}


@dataclass(frozen=True, slots=True)
class Copies:
    """How a clone gets the SSTs of its first versions: shared, copied, or rewritten."""

    store: ObjectStore
    target: ObjectStore
    cache: SstCache | None
    cut: Cut
    app: str
    masks: Masks
    deep: bool
    on_progress: Callable[[int, int], None]

    def made(self, stages: Iterable[str]) -> dict[str, Manifest]:
        """The cut's version of each of these stages, with the SSTs that the clone's first versions name.

        All of them are there, then. Raises `Corruption` where one of the source's is missing or not what was written,
        and `Unavailable`.
        """
        wanted = {stage: self.cut.stages[stage] for stage in stages}
        own = [one for stage, manifest in wanted.items() for one in self._own(stage, manifest)]
        count, lock = iter(range(1, len(own) + 1)), Lock()

        def one(stage: str, table: Manifest, sst: Sst) -> Sst:
            made = self._hidden(stage, table, sst) if table.stage in self.masks.tables else self._copied(stage, sst)
            with lock:
                self.on_progress(next(count), len(own))
            return made

        with ThreadPoolExecutor(_WORKERS, "clone") as pool:
            made = dict(zip([_name(sst) for _, _, sst in own], pool.map(lambda each: one(*each), own), strict=True))
        return {
            stage: each_sst(manifest, lambda sst: made.get(_name(sst)) or self._shared(sst))
            for stage, manifest in wanted.items()
        }

    def _own(self, stage: str, manifest: Manifest) -> Iterator[tuple[str, Manifest, Sst]]:
        for name, table in tables_of(manifest).items():
            if self.deep or name in self.masks.tables:
                yield from ((stage, table, sst) for sst in table.ssts)

    def _shared(self, sst: Sst) -> Sst:
        """As a manifest under the clone's root names it."""
        held_by = sst.root or self.store.url
        return replace(sst, root="" if held_by == self.target.url else held_by)

    def _key(self, stage: str, sst: Sst) -> str:
        return keys.sst(self.app, stage, sst.object.rpartition("/")[2].removesuffix(".parquet"))

    def _copied(self, stage: str, sst: Sst) -> Sst:
        made = replace(sst, object=self._key(stage, sst), root="")
        if not _is_there(self.target, made):
            self.target.put(made.object, fetch(self.store, sst))
        return made

    def _hidden(self, stage: str, table: Manifest, sst: Sst) -> Sst:
        assert table.table is not None  # noqa: S101  it has SSTs
        assert self.cache is not None  # noqa: S101  whoever hides something gives one
        writer = rewritten(self.store, self.cache, sst, table.table, lambda rows: self.masks.over(table.stage, rows))
        made, data = writer.finish(app=self.app, stage=stage, partition=sst.partition, level=sst.level)
        made = replace(made, object=self._key(stage, sst))
        self.target.put(made.object, data)
        return made


def _name(sst: Sst) -> tuple[str, str]:
    return sst.root, sst.object


def _is_there(store: ObjectStore, sst: Sst) -> bool:
    """Whether an earlier call has put this very object."""
    listed = next(iter(store.list(sst.object)), None)
    if listed is None or listed.key != sst.object or listed.size_bytes != sst.bytes:
        return False
    return xxhash.xxh3_128_hexdigest(store.get(sst.object)) == sst.checksum
