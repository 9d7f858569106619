"""A stage whose versions tests write: batches, merges of any adjacent runs, and rewinds."""

from collections.abc import Iterable
from itertools import count

from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.picker import pick_for_manifest
from slackwater.store.compaction.plan import Compaction, apply_results
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.sorted_runs import sorted_runs
from slackwater.store.versions import apps, commit
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.kinds import VersionKind
from slackwater.store.versions.manifest import AppInfo, Column, EventTime, Manifest, Rewind, Table

from tests.support.state_rows import Key, Values, write_version

TABLE = Table((Column("k", "int64"),), (Column("v", "int64"), Column("w", "string")), 1)


class Stage:
    """The stage `app/stage` with one state partition, in its own store. Its watermark is its clock."""

    def __init__(self, table: Table = TABLE) -> None:
        self.store, self._numbers = MemoryStore(), count(1)
        self.table = table
        self.versions: list[Manifest] = []
        self.has_watermark = True
        apps.create_app(self.store, AppInfo("app", 1))

    @property
    def clock_ms(self) -> int:
        """The clock of the newest version."""
        return self.versions[-1].clock_ms if self.versions else 0

    def put(self, changes: dict[Key, Values | None], clock_ms: int = 0) -> Manifest:
        """Commit a batch of rows by key; `None` deletes a key."""
        version = next(self._numbers)
        ssts: tuple[Sst, ...] = ()
        if changes:
            ssts = write_version(self.store, None, self.table, changes, version, clock_ms=clock_ms, base=self._ssts)
        return self._commit(version, "batch", (*ssts, *self._ssts), clock_ms)

    def compact(self, cache: SstCache, *, full: bool = True) -> Manifest:
        """Merge all runs; without `full`, those that the policy picks."""
        return self._merge(cache, pick_for_manifest(self.versions[-1], full=full))

    def merge(self, cache: SstCache, start: int, end: int) -> Manifest:
        """Merge the sorted runs `start` to `end`, counted from the newest, as far as they exist."""
        runs = sorted_runs(self._ssts)
        some = tuple(sst for run in runs[start:end] for sst in run)
        last = end >= len(runs)
        one = Compaction(0, 1, some, drops_tombstones=last, clock_ms=self.clock_ms)
        return self._merge(cache, (one,) if some else ())

    def _merge(self, cache: SstCache, picked: tuple[Compaction, ...]) -> Manifest:
        head = self.versions[-1]
        done = [run_compaction(self.store, cache, "app", "stage", self.table, one) for one in picked]
        if not done:
            return head
        return self._commit(next(self._numbers), "compaction", apply_results(head.ssts, done), head.clock_ms)

    def rewind(self, to: int) -> Manifest:
        """Restore the content of a version."""
        target = self.versions[to - 1]
        version = next(self._numbers)
        return self._commit(version, "rewind", target.ssts, target.clock_ms, (Rewind(version, to),))

    @property
    def _ssts(self) -> tuple[Sst, ...]:
        return self.versions[-1].ssts if self.versions else ()

    def _commit(
        self, version: int, kind: VersionKind, ssts: Iterable[Sst], clock_ms: int, rewinds: tuple[Rewind, ...] = ()
    ) -> Manifest:
        rewinds = (*(self.versions[-1].rewinds if self.versions else ()), *rewinds)
        times, runs = EventTime(clock_ms) if self.has_watermark else None, tuple(ssts)
        manifest = Manifest(
            "app", "stage", version, 1, "w", version, kind,
            table=self.table, ssts=runs, clock_ms=clock_ms, event_time=times, rewinds=rewinds,
        )  # fmt: skip
        commit.commit(self.store, manifest)
        self.versions.append(manifest)
        return manifest
