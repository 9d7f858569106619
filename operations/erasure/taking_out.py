"""Having the indexes of all apps, and each stage's newest version, say what became of the objects that held a key."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from ...snapshot.take.audit_log import OPERATIONS
from ...snapshot.take.capture import count_by_partition, put_object
from ...store.compaction.merge import merge_rows, whole_blocks, without
from ...store.compaction.plan import newest_first
from ...store.objects.many import do_all
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import codec, forgotten, history, keys
from ...store.versions.amend import Amendment, amend
from ...store.versions.forgotten import ForgottenIndex, RecordsLeft, Taken
from ...store.versions.kinds import FORGET
from ...store.versions.manifest import Manifest, Sst
from ...store.versions.side_tables import REJECTED, REJECTED_RECORDS, all_ssts, each_sst
from . import archive
from .family import KeysAsked
from .held import IN_FLIGHT, Held, NamedSst, Progress, Search


@dataclass
class Rewriting:
    """What became of objects so far, for all apps that have them."""

    made: dict[str, Sst | None] = field(default_factory=dict)
    """By the object of an SST, the one that has the rest of it, with the URL of its root; None for none."""
    taken: dict[str, Taken] = field(default_factory=dict)
    """By object, what went."""

    def learn(self, search: Search, index: ForgottenIndex) -> None:
        """Take from an app's index what was made for it: others that have the same SSTs get the same ones."""
        for name, sst in index.ssts.items():
            self.made[name] = None if sst is None else replace(sst, root=search.member.store.at(sst.root).url)

    def change(self, search: Search, one: NamedSst) -> Iterator[tuple[str, Sst | None]]:
        """What an app is to call its SST from now on, if that is another than now; puts what has to be made for it."""
        store = search.member.store
        root = store.at(one.sst.root).url
        now = self.made.get(one.sst.object, one.sst)
        if now is not None:
            here = replace(now, root="" if root == store.url else root)
            now = self._without(search, NamedSst(here, one.stage, one.side, one.table))
        if now is None or now.object != one.sst.object:
            self.made[one.sst.object] = None if now is None else replace(now, root=root)
            yield one.sst.object, None if now is None else replace(now, root=one.sst.root)

    def _without(self, search: Search, one: NamedSst) -> Sst | None:
        sst, store = one.sst, search.member.store.at(one.sst.root)
        if (found := search.chosen(one)) is None:
            return sst
        chosen, fields = found
        held = search.as_held(one, fields)
        writer = without(search.member.store, sst, one.table, chosen)
        if not writer.num_rows:
            self.taken[sst.object] = Taken(held.what, held.table, fields, sst.bytes, 0)
            return None
        # In the folder of the app that has it: it is collected there.
        app, _, stage, *_ = sst.object.split("/")
        made = writer.put(store, app=app, stage=stage, partition=sst.partition, level=sst.level)
        self.taken[sst.object] = Taken(held.what, held.table, fields, sst.bytes, made.bytes)
        return made

    def records(self, search: Search) -> Iterator[tuple[str, RecordsLeft]]:
        """What becomes of the app's records in flight that hold a key; puts what has the rest of them."""
        for key, channel, rows, found in search.captured():
            kept = rows.filter(pa.array(~found.mask))
            places = rows["_partition"].to_numpy()
            gone = count_by_partition(rows.filter(pa.array(found.mask)), int(places.max()) + 1)
            made = self._records(search, key, kept, tuple(gone.tolist()))
            read_bytes = len(search.member.store.get(key))
            self.taken[key] = Taken(IN_FLIGHT, channel, found.fields, read_bytes, made.bytes)
            yield key, made

    def _records(self, search: Search, key: str, kept: pa.Table, gone: tuple[int, ...]) -> RecordsLeft:
        if not kept.num_rows:
            return RecordsLeft(None, gone=gone)
        made = put_object(search.member.store, search.member.app, key.split("/")[2], kept)
        return RecordsLeft(made.key, made.rows, made.bytes, made.checksum, gone)


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

    def note_taken(self) -> None:
        """Note what goes before it does: whoever finishes this tells of the whole."""
        me = self.searches[0].member
        forgotten.note_taken(me.store, me.app, self.rewriting.taken)


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

    def before(gone: Sequence[archive.GoneObject]) -> None:
        for topic, one, fields, written_bytes in gone:
            work.rewriting.taken[one.object] = Taken(archive.WHAT, topic, fields, one.bytes, written_bytes)
        work.note_taken()

    return archive.take_out(search, by=work.by, now_ms=work.now_ms, before=before)


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

    work.note_taken()
    forgotten.change(store, app, update, by=work.by, now_ms=now_ms)


def _names_any(store: ObjectStore, app: str, versions: Iterable[tuple[str, int]], ssts: dict[str, Sst | None]) -> bool:
    found = (history.find(store, app, stage, version) for stage, version in versions)
    return any(sst.object in ssts for manifest in found if manifest is not None for sst in all_ssts(manifest))


def commit(work: Work, search: Search) -> Iterator[tuple[str, str, int]]:
    """Give each stage that is concerned its version, behind which nothing of before comes: app, stage, version.

    Raises as `amend`, and as reading SSTs.
    """
    store, app = search.member.store, search.member.app
    note = forgotten.under_way(store, app)
    since_ms = note.time_ms if note is not None else sys.maxsize
    index = forgotten.cached(store, app)
    asked = (*search.tables, *(stage for stage, _ in search.member.sides(work.asked)))
    concerned = {*asked, *(name.split("/")[2] for name in index.ssts)}
    for stage, head in search.member.heads.items():
        if head.retired or concerned.isdisjoint((stage, *(each.stage for each in head.formerly))):
            continue
        version = _Version(work, search, stage, head.version)
        change = Amendment("forget", version.update, version.requires)
        done = amend(store, (app, stage), change, by=work.by, now_ms=work.now_ms)
        if done.changed:
            yield app, stage, done.manifest.version
        elif (made := _forgets(store, app, stage)) is not None and made.time_ms >= since_ms:
            yield app, stage, made.version  # a call that broke off had come so far


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
        self.index = forgotten.cached(store, app)
        if head.forgotten >= self.index.number:
            return False
        if not self.search.is_copy(self.stage):
            self.waiting = _waiting(store, head, self.index)
        return True

    def update(self, draft: Manifest) -> Manifest:
        """The version: the draft with the SSTs of now."""
        made = replace(each_sst(draft, self.index.sst), forgotten=self.index.number)
        if self.search.is_copy(self.stage) or REJECTED not in made.side_tables:
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


def sweep(work: Work, cache: SstCache) -> tuple[int, tuple[Held, ...]]:
    """Delete what was replaced, here and in this machine's cache, and what nothing names and holds a key."""
    deleted, left = 0, list[Held]()
    for search in work.searches:
        store, app = search.member.store, search.member.app
        index = forgotten.cached(store, app)
        cache.drop(index.ssts)
        there = {info.key for stage in search.member.heads for info in store.list(keys.ssts(app, stage))}
        there |= {info.key for info in store.list(keys.snapshots(app))}
        old = [name for name in index.replaced if name in there]
        for found, was_named in archive.unnamed(search):
            if was_named:
                old.append(found.object)
            else:
                left.append(found)
        do_all(store.delete, old)
        deleted += len(old)
        for found, written_ms in search.unnamed(index.ssts):
            # A batch that was computed before the stage's newest version of this kind is not committed any more.
            if written_ms < _since_ms(store, app, found.table):
                store.delete(found.object)
                deleted += 1
            else:
                left.append(found)
    return deleted, tuple(left)


def _since_ms(store: ObjectStore, app: str, stage: str) -> int:
    """When, by storage's clock, a stage got its newest version of kind `forget`; 0 for never."""
    head = history.head(store, app, stage)
    if head is not None and head.retired:
        return sys.maxsize  # nobody is to name anything
    if (made := _forgets(store, app, stage)) is None:
        return 0
    key = keys.manifest(app, stage, made.version)
    return next((info.modified_ms for info in store.list(key) if info.key == key), 0)


def _forgets(store: ObjectStore, app: str, stage: str) -> Manifest | None:
    """The newest version of kind `forget` of a stage."""
    head = history.head(store, app, stage)
    while head is not None and head.traits is not FORGET:
        head = history.before(store, head)
    return head


def blot(work: Work) -> None:
    """Mask the keys in what people wrote of edits; an app's next index tells its replicas of versions with such."""
    for search in work.searches:
        store, app = search.member.store, search.member.app
        for done in OPERATIONS.all(store, app):
            detail, message = (search.texts.masked(text) for text in (done.detail, done.message))
            if (detail, message) != (done.detail, done.message):
                told = replace(done, detail=detail, message=message)
                if _alike(done, told):
                    told = replace(told, detail=f"{detail}.")
                OPERATIONS.put(store, told, app)
        versions = tuple(search.edited())
        for manifest in versions:
            edit = manifest.edited
            assert edit is not None  # noqa: S101  what `edited` gives
            what, message = (search.texts.masked(text) for text in (edit.what, edit.message))
            made = replace(manifest, edited=replace(edit, what=what, message=message))
            if _alike(manifest, made):
                made = replace(made, edited=replace(edit, what=f"{what}.", message=message))
            store.put(keys.manifest(app, manifest.stage, manifest.version), codec.encode(made))
        history.forget(store, app)
        if versions:
            forgotten.change(store, app, lambda head: head, by=work.by, now_ms=work.now_ms())


def _alike(had: Struct, made: Struct) -> bool:
    """Whether both are of one length, by which a replica would take them for the same object."""
    return len(codec.encode(had)) == len(codec.encode(made))
