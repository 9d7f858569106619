"""Having the indexes of all apps, and each stage's newest version, say what became of the objects that held a key."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec.structs import replace

from ...store.compaction.merge import merge_rows
from ...store.compaction.plan import newest_first
from ...store.compaction.rewrite import whole_blocks
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.amend import Amendment, amend
from ...store.versions.forgotten import index as forgotten
from ...store.versions.forgotten.index import ForgottenIndex, RecordsLeft
from ...store.versions.manifest import Manifest, Sst
from ...store.versions.side_tables import REJECTED, all_ssts, each_sst
from ..rejected.schema import REJECTED_RECORDS
from . import archive
from .asked import KeysAsked
from .held import Progress, Search
from .rewrite import Rewriting


@dataclass
class Work:
    """All that a call knows."""

    asked: KeysAsked
    searches: tuple[Search, ...]
    """One an app; those that others live from come first."""
    by: str
    now_ms: Callable[[], int]
    on_progress: Progress
    rewriting: Rewriting = field(default_factory=Rewriting)


def take_out(work: Work) -> bool:
    """Rewrite what holds a key in all apps, and have their indexes say so; whether there was anything."""
    for search in work.searches:
        work.rewriting.learn(search, forgotten.newest(search.member.store, search.member.app))
    found = False
    for search in work.searches:
        ssts: dict[str, Sst | None] = {}
        for stage in search.member.heads:
            work.on_progress(f"{search.member.app}/{stage}: looking through its versions")
            for one in search.named(stage):
                ssts |= work.rewriting.change(search, one)
        records = dict(work.rewriting.records(search))
        published = bool(ssts or records)
        _publish(work, search, ssts, records)
        archived = take_out_archived(work, search)
        if archived and not published:
            # So that the stages say it, and replays of what they read.
            _publish(work, search, {}, {}, anyhow=True)
        found = found or published or archived
    return found


def take_out_archived(work: Work, search: Search) -> bool:
    """Have an app's input archives hold none of the keys; whether any did."""
    work.on_progress(f"{search.member.app}: looking through its input archive")
    archived = tuple(archive.take_out(search, by=work.by, now_ms=work.now_ms))
    for each, rows, written_bytes in archived:
        work.rewriting.count(each.bytes, written_bytes, rows)
    return bool(archived)


def _publish(
    work: Work, search: Search, ssts: dict[str, Sst | None], records: dict[str, RecordsLeft], *, anyhow: bool = False
) -> None:
    """Have an app's index say what became of these objects, if there are any."""
    if not (ssts or records or anyhow):
        return
    store, app, now_ms = search.member.store, search.member.app, work.now_ms()
    edited = {
        snapshot.name: max(now_ms, snapshot.completed_ms)
        for snapshot in search.snapshots()
        if not records.keys().isdisjoint(snapshot.object_keys) or _names_any(store, app, snapshot.stages.items(), ssts)
    }

    def update(head: ForgottenIndex) -> ForgottenIndex:
        return head.with_changes(ssts, records, edited)

    forgotten.change(store, app, update, by=work.by, now_ms=now_ms)


def _names_any(store: ObjectStore, app: str, versions: Iterable[tuple[str, int]], ssts: dict[str, Sst | None]) -> bool:
    found = (history.find(store, app, stage, version) for stage, version in versions)
    return any(sst.object in ssts for manifest in found if manifest is not None for sst in all_ssts(manifest))


def commit(work: Work, search: Search) -> Iterator[tuple[str, str, int]]:
    """Give each stage that is concerned its version, behind which nothing of before comes: app, stage, version.

    Raises as `amend`, and as reading SSTs.
    """
    store, app = search.member.store, search.member.app
    index = forgotten.known(store, app)
    concerned = {*search.tables, *(name.split("/")[2] for name in index.ssts)}
    for stage, head in search.member.heads.items():
        if head.retired or concerned.isdisjoint((stage, *(each.stage for each in head.formerly))):
            continue
        version = _Version(work, search, stage, head.version)
        change = Amendment("forget", version.update, version.requires)
        done = amend(store, (app, stage), change, by=work.by, now_ms=work.now_ms)
        if done.changed:
            yield app, stage, done.manifest.version


@dataclass
class _Version:
    """The version of one stage, made of whatever is the newest."""

    work: Work
    search: Search
    stage: str
    after: int
    """Up to this version all was looked through."""
    index: ForgottenIndex = field(init=False)
    waiting: int = 0
    """Rejected records that wait."""

    def requires(self, head: Manifest) -> bool:
        """Look through what came since, and say whether the head does not know the index yet."""
        store, app = self.search.member.store, self.search.member.app
        ssts: dict[str, Sst | None] = {}
        for one in self.search.named(self.stage, self.after):
            ssts |= self.work.rewriting.change(self.search, one)
        self.after = max(self.after, head.version)
        _publish(self.work, self.search, ssts, {})
        self.index = forgotten.known(store, app)
        if head.forgotten >= self.index.number:
            return False
        self.waiting = _waiting(store, head, self.index)
        return True

    def update(self, draft: Manifest) -> Manifest:
        """The version: the draft with the SSTs of now."""
        made = replace(each_sst(draft, self.index.sst), forgotten=self.index.number)
        if REJECTED not in made.side_tables:
            return made
        side = replace(made.side_tables[REJECTED], waiting=self.waiting)
        return replace(made, side_tables=made.side_tables | {REJECTED: side})


def _waiting(store: ObjectStore, head: Manifest, index: ForgottenIndex) -> int:
    """How many rejected records of a stage wait to be retried, of those that are left."""
    side = head.side_tables.get(REJECTED)
    ssts = [now for sst in (side.ssts if side is not None else ()) if (now := index.sst(sst)) is not None]
    blocks = (block for sst in newest_first(ssts) for block in whole_blocks(store, sst, REJECTED_RECORDS))
    parts = [pa.Table.from_batches([block.stored]) for block in blocks]
    return merge_rows(parts, REJECTED_RECORDS, drop_tombstones=True)["retried"].null_count if parts else 0
