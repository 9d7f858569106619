"""Rewriting of objects that hold requested keys, and registration of the new objects in indexes and versions."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from ...snapshot.take.audit_log import OPERATIONS
from ...snapshot.take.capture import count_by_partition, put_object
from ...store.compaction.merge import encode_blocks, merge_rows, read_blocks
from ...store.compaction.plan import newest_first
from ...store.objects.many import for_each_concurrently
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import codec, forgotten, history, keys
from ...store.versions.amend import Amendment, amend
from ...store.versions.entries.ssts import Sst
from ...store.versions.forgotten import ForgottenIndex, RemainingRecords, RewrittenObject
from ...store.versions.kinds import FORGET
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import REJECTED, REJECTED_RECORDS, all_ssts, map_ssts
from . import archive
from .family import RequestedKeys
from .held import IN_FLIGHT, HeldObject, KeySearch, Progress, ReferencedSst


@dataclass
class Rewriter:
    """Rewrites objects without the requested keys. Apps that share an SST share the new SST."""

    replacements: dict[str, Sst | None] = field(default_factory=dict)
    """New SST by name of the replaced SST, with the URL of its root; None if no row remains."""
    removed: dict[str, RewrittenObject] = field(default_factory=dict)

    def adopt_replacements(self, search: KeySearch, index: ForgottenIndex) -> None:
        """Add the replacements from an app's index, so that other apps that share the replaced SSTs use them, too."""
        for name, sst in index.ssts.items():
            self.replacements[name] = None if sst is None else replace(sst, root=search.member.store.at(sst.root).url)

    def replace_sst(self, search: KeySearch, item: ReferencedSst) -> Iterator[tuple[str, Sst | None]]:
        store = search.member.store
        root = store.at(item.sst.root).url
        now = self.replacements.get(item.sst.object, item.sst)
        if now is not None:
            local = replace(now, root="" if root == store.url else root)
            now = self._rewrite_sst(search, ReferencedSst(local, item.stage, item.side, item.table))
        if now is None or now.object != item.sst.object:
            self.replacements[item.sst.object] = None if now is None else replace(now, root=root)
            yield item.sst.object, None if now is None else replace(now, root=item.sst.root)

    def _rewrite_sst(self, search: KeySearch, item: ReferencedSst) -> Sst | None:
        sst, store = item.sst, search.member.store.at(item.sst.root)
        if (selection := search.select_rows(item)) is None:
            return sst
        chosen, fields = selection
        holding = search.as_held(item, fields)
        # The new SST is encoded for the table at the oldest version that names the SST, so that all later versions can
        # read it.
        writer = encode_blocks(item.table, read_blocks(search.member.store, sst, item.table), removed=chosen)
        if not writer.num_rows:
            self.removed[sst.object] = RewrittenObject(holding.what, holding.table, fields, sst.bytes, 0)
            return None
        # The new SST is put into the folder of the app that owns the old SST, where it is garbage-collected.
        app, _, stage, *_ = sst.object.split("/")
        rewritten = writer.put(store, app=app, stage=stage, partition=sst.partition, level=sst.level)
        self.removed[sst.object] = RewrittenObject(holding.what, holding.table, fields, sst.bytes, rewritten.bytes)
        return rewritten

    def replace_records(self, search: KeySearch) -> Iterator[tuple[str, RemainingRecords]]:
        """Rewrite objects with in-flight records of a requested key. Yields the names and replacements."""
        for key, channel, rows, matches in search.captured_with_keys():
            remaining = rows.filter(pa.array(~matches.mask))
            partitions = rows["_partition"].to_numpy()
            gone = count_by_partition(rows.filter(pa.array(matches.mask)), int(partitions.max()) + 1)
            rewritten = self._put_remaining(search, key, remaining, tuple(gone.tolist()))
            read_bytes = len(search.member.store.get(key))
            self.removed[key] = RewrittenObject(IN_FLIGHT, channel, matches.fields, read_bytes, rewritten.bytes)
            yield key, rewritten

    def _put_remaining(
        self, search: KeySearch, key: str, remaining: pa.Table, gone: tuple[int, ...]
    ) -> RemainingRecords:
        if not remaining.num_rows:
            return RemainingRecords(None, gone=gone)
        rewritten = put_object(search.member.store, search.member.app, key.split("/")[2], remaining)
        return RemainingRecords(rewritten.key, rewritten.rows, rewritten.bytes, rewritten.checksum, gone)


@dataclass
class Erasure:
    """State of one call of `forget`."""

    requested: RequestedKeys
    searches: tuple[KeySearch, ...]
    """One search for each app. An app precedes its clones."""
    by: str
    now_ms: Callable[[], int]
    on_progress: Progress
    rewriter: Rewriter = field(default_factory=Rewriter)
    journals: set[str] = field(default_factory=set)
    """Ids of the journals of this erasure, including journals of an earlier interrupted call."""

    def update_journal(self) -> None:
        """Add the rewritten objects to the erasure's journal, so that a resumed call can report them."""
        me = self.searches[0].member
        forgotten.record_rewritten(me.store, me.app, self.rewriter.removed)


def remove_keys(work: Erasure) -> bool:
    """In all apps, rewrite objects that hold a requested key, and record the new objects.

    Returns True if an object was rewritten.
    """
    for search in work.searches:
        work.rewriter.adopt_replacements(search, forgotten.newest(search.member.store, search.member.app))
    any_removed = False
    for search in work.searches:
        ssts: dict[str, Sst | None] = {}
        for stage in search.member.heads:
            work.on_progress(f"{search.member.app}/{stage}: searching its versions")
            for item in search.referenced_ssts(stage):
                ssts |= work.rewriter.replace_sst(search, item)
        records = dict(work.rewriter.replace_records(search))
        published = bool(ssts or records)
        _record_replacements(work, search, ssts, records)
        archived = remove_archived_keys(work, search)
        if archived and not published:
            # Each stage gets a version that records the erasure, so that replays know of it.
            _record_replacements(work, search, {}, {}, even_if_empty=True)
        any_removed = any_removed or published or archived
    return any_removed


def remove_archived_keys(work: Erasure, search: KeySearch) -> bool:
    """Remove the requested keys from an app's input archives. Returns True if an archive had any."""
    work.on_progress(f"{search.member.app}: searching its input archive")

    def on_gone(gone: Sequence[archive.ReplacedObject]) -> None:
        for topic, item, fields, written_bytes in gone:
            work.rewriter.removed[item.object] = RewrittenObject(
                archive.ARCHIVE_KIND, topic, fields, item.bytes, written_bytes
            )
        work.update_journal()

    return archive.remove_keys(search, by=work.by, now_ms=work.now_ms, on_replace=on_gone)


def _record_replacements(
    work: Erasure,
    search: KeySearch,
    ssts: dict[str, Sst | None],
    records: dict[str, RemainingRecords],
    *,
    even_if_empty: bool = False,
) -> None:
    if not (ssts or records or even_if_empty):
        return
    store, app, now_ms = search.member.store, search.member.app, work.now_ms()
    edited = {
        snapshot.name: max(now_ms, snapshot.completed_ms)
        for snapshot in search.snapshots()
        if not records.keys().isdisjoint(snapshot.object_keys) or _names_any(store, app, snapshot.stages.items(), ssts)
    }

    def update(head: ForgottenIndex) -> ForgottenIndex:
        return head.with_changes(ssts, records, edited)

    work.update_journal()
    forgotten.change(store, app, update, by=work.by, now_ms=now_ms)


def _names_any(store: ObjectStore, app: str, versions: Iterable[tuple[str, int]], ssts: dict[str, Sst | None]) -> bool:
    manifests = (history.find(store, app, stage, version) for stage, version in versions)
    return any(sst.object in ssts for manifest in manifests if manifest is not None for sst in all_ssts(manifest))


def commit_versions(work: Erasure, search: KeySearch) -> Iterator[tuple[str, str, int]]:
    """Commit a version of kind `forget` for each affected stage. Yields app, stage and version.

    From then on, a batch that was computed from older rows cannot be committed. Raises the errors of `amend`, and of
    reading SSTs.
    """
    store, app = search.member.store, search.member.app
    note = forgotten.find_journal(store, app)
    since_ms = note.time_ms if note is not None else sys.maxsize
    index = forgotten.cached_index(store, app)
    requested = (*search.tables, *(stage for stage, _ in search.member.requested_side_tables(work.requested)))
    concerned = {*requested, *(name.split("/")[2] for name in index.ssts)}
    for stage, head in search.member.heads.items():
        if head.retired or concerned.isdisjoint((stage, *(former.stage for former in head.formerly))):
            continue
        version = _VersionBuilder(work, search, stage, head.version)
        change = Amendment("forget", version.update, version.requires)
        done = amend(store, (app, stage), change, by=work.by, now_ms=work.now_ms)
        if done.changed:
            yield app, stage, done.manifest.version
        elif (earlier := _newest_forget(store, app, stage)) is not None and earlier.time_ms >= since_ms:
            yield app, stage, earlier.version  # committed by an interrupted call


@dataclass
class _VersionBuilder:
    """Builder of one stage's version of kind `forget`, on top of its newest version."""

    work: Erasure
    search: KeySearch
    stage: str
    after: int
    index: ForgottenIndex = field(init=False)
    waiting: int = 0

    def requires(self, head: Manifest) -> bool:
        store, app = self.search.member.store, self.search.member.app
        ssts: dict[str, Sst | None] = {}
        for item in self.search.referenced_ssts(self.stage, self.after):
            ssts |= self.work.rewriter.replace_sst(self.search, item)
        self.after = max(self.after, head.version)
        _record_replacements(self.work, self.search, ssts, {})
        self.index = forgotten.cached_index(store, app)
        if head.forgotten >= self.index.number:
            return False
        if not self.search.is_attached(self.stage):
            self.waiting = _count_waiting(store, head, self.index)
        return True

    def update(self, draft: Manifest) -> Manifest:
        updated = replace(map_ssts(draft, self.index.current_sst), forgotten=self.index.number)
        if self.search.is_attached(self.stage) or REJECTED not in updated.side_tables:
            return updated
        side = replace(updated.side_tables[REJECTED], waiting=self.waiting)
        return replace(updated, side_tables=updated.side_tables | {REJECTED: side})


def _count_waiting(store: ObjectStore, head: Manifest, index: ForgottenIndex) -> int:
    side = head.side_tables.get(REJECTED)
    ssts = [now for sst in (side.ssts if side is not None else ()) if (now := index.current_sst(sst)) is not None]
    blocks = (block for sst in newest_first(ssts) for block in read_blocks(store, sst, REJECTED_RECORDS))
    parts = [pa.Table.from_batches([block.stored]) for block in blocks]
    return merge_rows(parts, REJECTED_RECORDS, drop_tombstones=True)["retried"].null_count if parts else 0


def delete_replaced(work: Erasure, cache: SstCache) -> tuple[int, tuple[HeldObject, ...]]:
    """Delete replaced objects, also from this machine's cache, and unreferenced objects with a requested key.

    Returns two values: the number of deleted objects, and the objects that were not deleted because a running batch may
    still commit them.
    """
    deleted, remaining = 0, list[HeldObject]()
    for search in work.searches:
        store, app = search.member.store, search.member.app
        index = forgotten.cached_index(store, app)
        cache.drop(index.ssts)
        existing = {info.key for stage in search.member.heads for info in store.list(keys.ssts(app, stage))}
        existing |= {info.key for info in store.list(keys.snapshots(app))}
        old = [name for name in index.replaced_keys if name in existing]
        for holding, was_named in archive.find_unreferenced(search):
            if was_named:
                old.append(holding.object)
            else:
                remaining.append(holding)
        for_each_concurrently(store.delete, old)
        deleted += len(old)
        for holding, written_ms in search.unreferenced_ssts(index.ssts):
            # A batch that was computed before the newest version of kind `forget` can no longer be committed.
            if written_ms < _erased_ms(store, app, holding.table):
                store.delete(holding.object)
                deleted += 1
            else:
                remaining.append(holding)
    return deleted, tuple(remaining)


def _erased_ms(store: ObjectStore, app: str, stage: str) -> int:
    head = history.head(store, app, stage)
    if head is not None and head.retired:
        return sys.maxsize  # no new version can name an SST
    if (manifest := _newest_forget(store, app, stage)) is None:
        return 0
    key = keys.manifest(app, stage, manifest.version)
    return next((info.modified_ms for info in store.list(key) if info.key == key), 0)


def _newest_forget(store: ObjectStore, app: str, stage: str) -> Manifest | None:
    head = history.head(store, app, stage)
    versions = history.iter_backwards(store, head) if head is not None else ()
    return next((version for version in versions if version.traits is FORGET), None)


def mask_texts(work: Erasure) -> None:
    for search in work.searches:
        store, app = search.member.store, search.member.app
        for done in search.log_entries_with_keys():
            detail, message = (search.texts.mask_keys(text) for text in (done.detail, done.message))
            entry = replace(done, detail=detail, message=message)
            if _same_length(done, entry):
                entry = replace(entry, detail=f"{detail}.")
            OPERATIONS.put(store, entry, app)
        versions = tuple(search.edited_versions_with_keys())
        for manifest in versions:
            edit = manifest.edited
            assert edit is not None  # noqa: S101  what `edited` gives
            statement, message = (search.texts.mask_keys(text) for text in (edit.what, edit.message))
            masked = replace(manifest, edited=replace(edit, what=statement, message=message))
            if _same_length(manifest, masked):
                masked = replace(masked, edited=replace(edit, what=f"{statement}.", message=message))
            store.put(keys.manifest(app, manifest.stage, manifest.version), codec.encode(masked))
        history.drop_cached(store, app)
        if versions:
            # A new index makes replicas copy changed versions.
            forgotten.change(store, app, lambda head: head, by=work.by, now_ms=work.now_ms())


def _same_length(before: Struct, after: Struct) -> bool:
    return len(codec.encode(before)) == len(codec.encode(after))
