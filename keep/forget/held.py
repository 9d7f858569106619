"""Which objects of an app hold a key: SSTs of all versions, SSTs that nothing names, and records of all kinds."""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corruption, ObjectNotFound
from ...moments.cut.stored import Snapshot, list_snapshots
from ...moments.take.audit_log import OPERATIONS
from ...moments.take.capture import read_object
from ...store.archive import index
from ...store.archive.index import ArchiveIndex
from ...store.compaction.rewrite import Chosen, of_keys, whole_blocks
from ...store.objects.protocol import ObjectStore
from ...store.read.decode import Block, read_groups, read_whole
from ...store.read.multi_get import multi_get
from ...store.sst.types import HASH
from ...store.versions import history, keys
from ...store.versions.manifest import Manifest, Sst, Table
from ...store.versions.side_tables import all_ssts, table_name
from ..edit.request import EDITS, rows_key
from ..gc.inventory import many
from .family import Keys, KeysAsked, Member
from .words import Mask, Words, holding, holding_any

Progress = Callable[[str], None]
_NO_CLOCK = -(1 << 63)
"""Before all times: then nothing has expired."""
_SSTS = "SST"
_REJECTED = "rejected records"


@dataclass(frozen=True, slots=True)
class Held:
    """An object that holds a key."""

    app: str
    root: str
    object: str
    what: str
    """`SST`, `rejected records`, `records in flight`, `input archive`, `edit`, `log of operations`; or, where somebody
    looked into everything, `a value` or `a text`."""
    table: str
    """The table, channel or topic; empty for none."""
    bytes: int
    """Of the object."""
    named: bool = True
    """Whether a version, a snapshot or an index names it."""


@dataclass(frozen=True, slots=True)
class NamedSst:
    """An SST that versions of a stage name."""

    sst: Sst
    stage: str
    side: str
    """What the table is called behind the stage's name; empty for the stage's own."""
    table: Table
    """As the oldest of these versions has it: later ones know how to read from that."""

    @property
    def place(self) -> tuple[str, str]:
        """Root, as its app's manifests have it, and object."""
        return self.sst.root, self.sst.object


@dataclass
class Search:
    """Looks for keys in one app, and remembers which SSTs it has seen."""

    member: Member
    asked: KeysAsked
    words: tuple[Words, ...]
    """Of all keys, for records."""
    seen: set[str] = field(default_factory=set)
    _known: dict[str, set[str]] = field(default_factory=dict)
    """By stage, all SSTs that its versions were found to name."""
    clean: set[str] = field(default_factory=set)
    """Objects of input archives that hold none of the keys."""
    damaged: dict[str, Corruption] = field(default_factory=dict)
    """Of input archives whose indexes cannot be read: what they hold, nobody can tell."""
    looked_into: int = 0
    """Objects."""
    _read_up_to: dict[str, int] = field(default_factory=dict)
    _keys: dict[tuple[str, Table], Keys] = field(default_factory=dict)

    def archives(self) -> Iterator[ArchiveIndex]:
        """The app's input archives, but for those that are `damaged`."""
        return index.all_of(self.member.store, self.member.app, self.damaged)

    @property
    def tables(self) -> dict[str, str]:
        """As `Member.tables`."""
        return self.member.tables(self.asked)

    def named(self, stage: str, after: int = 0) -> Iterator[NamedSst]:
        """The SSTs that the versions of a stage above `after` name and that were not seen, oldest version first."""
        wanted = stage in self.tables
        if not wanted and not self.member.heads[stage].side_tables:
            return
        for manifest in self._versions(stage, after):
            for side, table, ssts in _tables(manifest):
                for sst in ssts if table is not None and (side or wanted) else ():
                    if sst.object not in self.seen:
                        self.seen.add(sst.object)
                        assert table is not None  # noqa: S101  said above
                        yield NamedSst(sst, stage, side, table)

    def _versions(self, stage: str, after: int) -> Iterator[Manifest]:
        store, app, known = self.member.store, self.member.app, self._known.setdefault(stage, set())
        versions = [each for each in history.versions(store, app, stage) if each > after]
        for manifest in many(partial(history.find, store, app, stage), versions):
            if manifest is not None:  # else it was collected meanwhile
                known.update(sst.object for sst in all_ssts(manifest))
                self._read_up_to[stage] = max(manifest.version, self._read_up_to.get(stage, 0))
                yield manifest

    def is_copy(self, stage: str) -> bool:
        """Whether all tables of a stage are a query's, whose rows have keys: else those beside its own have records."""
        return self.member.heads[stage].attached is not None

    def keys_of(self, stage: str, table: Table, side: str = "") -> Keys | None:
        """The keys of a table, as it has them; None where none are asked for."""
        name = self.member.sides(self.asked).get((stage, side)) if side else self.tables.get(stage)
        if name is None:
            return None
        place = (name, table)
        if place not in self._keys:
            self._keys[place] = Keys.of(name, table, self.asked)
        return self._keys[place]

    def chosen(self, one: NamedSst) -> Chosen | None:
        """Which rows of an SST go; None where it holds none of the keys. Raises `Corruption` and `Unavailable`."""
        self.looked_into += 1
        if one.side and not self.is_copy(one.stage):
            chosen = partial(_holding_block, self.words)
            blocks = whole_blocks(self.member.store, one.sst, one.table)
            return chosen if any(chosen(block).any() for block in blocks) else None
        found = self.keys_of(one.stage, one.table, one.side)
        if found is None:
            return None
        low, high = (
            np.searchsorted(found.hashes, one.sst.hash_min),
            np.searchsorted(found.hashes, one.sst.hash_max, "right"),
        )
        some, rows = found.hashes[low:high], found.rows.slice(low, high - low)
        if not some.size:
            return None
        seqs = np.zeros(some.size, np.int64)
        multi_get(self.member.store, None, [one.sst], one.table, some, rows, clock_ms=_NO_CLOCK, seqs=seqs)
        there = seqs > 0
        return of_keys(some[there], rows.filter(pa.array(there))) if there.any() else None

    def held_by(self, one: NamedSst) -> Held | None:
        """The SST, if it holds a key."""
        if self.chosen(one) is None:
            return None
        table = table_name(one.stage, one.side) if one.side else one.stage
        root = self.member.store.at(one.sst.root).url
        owner = one.sst.object.partition("/")[0]
        what = _REJECTED if one.side and not self.is_copy(one.stage) else _SSTS
        return Held(owner, root, one.sst.object, what, table, one.sst.bytes)

    def snapshots(self) -> tuple[Snapshot, ...]:
        """The app's snapshots."""
        return list_snapshots(self.member.store, self.member.app)

    def captured(self) -> Iterator[tuple[str, str, pa.Table, Mask]]:
        """Objects with records in flight that hold a key: the object, its channel, its rows, and which of them do."""
        seen: set[str] = set()
        for snapshot in self.snapshots():
            for channel in snapshot.channels:
                for each in channel.objects:
                    if each.key not in seen:
                        seen.add(each.key)
                        self.looked_into += 1
                        rows = read_object(self.member.store, each)
                        if (mine := holding(rows, self.words)).any():
                            yield each.key, channel.channel, rows, mine

    def edits(self) -> Iterator[str]:
        """Requests for edits, and rows of such, that hold a key."""
        store, app = self.member.store, self.member.app
        for request in EDITS.all(store, app):
            if self.in_text(request.sql, request.edit.what, request.edit.message):
                yield EDITS.key(request, app)
            if request.rows:
                try:
                    with pa.ipc.open_stream(store.get(rows_key(app, request))) as stream:
                        rows = stream.read_all()
                except ObjectNotFound:
                    continue  # done meanwhile
                if holding(rows, self.words).any():
                    yield rows_key(app, request)

    def in_text(self, *texts: str) -> bool:
        """Whether a key that is text stands in one of these."""
        rows = pa.table({"text": pa.array([*texts], pa.string())})
        return bool(holding(rows, [each for each in self.words if each.texts]).any())

    def operations(self) -> Iterator[str]:
        """Entries of the log of operations that hold a key in what they tell."""
        store, app = self.member.store, self.member.app
        for done in OPERATIONS.all(store, app):
            if self.in_text(done.detail, done.message):
                yield OPERATIONS.key(done, app)

    def edited(self) -> Iterator[Manifest]:
        """Versions, as they are stored, whose edit holds a key in its statement or its message."""
        store, app = self.member.store, self.member.app
        for stage, head in self.member.heads.items():
            if head.table is None:
                continue
            for manifest in many(partial(_stored, store, app, stage), history.versions(store, app, stage)):
                edit = manifest.edited if manifest is not None else None
                if manifest is not None and edit is not None and self.in_text(edit.what, edit.message):
                    yield manifest

    def unnamed(self, replaced: Container[str] = ()) -> Iterator[tuple[Held, int]]:
        """SSTs in the app's folder that no version names, and that hold a key; when they were written.

        Those that were `replaced` are passed over. A hash counts as the key: what nothing names is nobody's row.
        """
        store, app = self.member.store, self.member.app
        for stage, head in self.member.heads.items():
            tables = [(side, table) for side, table, _ in _tables(head) if table is not None]
            if not self.is_copy(stage):
                tables = [each for each in tables if not each[0]]
            asked = [found.hashes for side, table in tables if (found := self.keys_of(stage, table, side)) is not None]
            hashes = np.concatenate(asked) if asked else None
            with_records = bool(head.side_tables) and not self.is_copy(stage)
            if hashes is None and not with_records:
                continue
            listed = tuple(store.list(keys.ssts(app, stage)))
            # After the listing: what was committed in between is named.
            for _ in self._versions(stage, self._read_up_to.get(stage, 0)):
                pass
            for info in listed:
                if info.key in self._known[stage] or info.key in replaced:
                    continue
                if _holds(store, info.key, hashes, self.words, with_records):
                    yield Held(app, store.url, info.key, _SSTS, stage, info.size_bytes, named=False), info.modified_ms


def in_full(member: Member, words: tuple[Words, ...], on_progress: Progress) -> Iterator[tuple[Held | None, int]]:
    """Each object in an app's folder, decoded: what it is if a key stands anywhere in it, and how many were decoded.

    Raises `Corruption` where one cannot be, and `Unavailable`.
    """
    store = member.store
    texts = tuple(each for each in words if each.texts)
    for info in store.list(f"{member.app}/"):
        on_progress(info.key)
        try:
            data = store.get(info.key)
        except ObjectNotFound:
            continue
        try:
            if info.key.endswith(".parquet"):
                found = holding_any(read_whole(data), words)
            elif info.key.endswith(".arrow"):
                with pa.ipc.open_stream(data) as stream:
                    found = bool(holding(stream.read_all(), words).any())
            else:
                found = bool(holding(pa.table({"text": pa.array([data], pa.binary())}), texts).any())
        except (pa.ArrowException, OSError) as error:
            raise Corruption(f"{info.key} cannot be decoded: {error}", object_key=info.key) from error
        what = "a value" if info.key.endswith(".parquet") else "a text"
        table = info.key.split("/")[2] if "/sst/" in info.key else ""
        yield (Held(member.app, store.url, info.key, what, table, info.size_bytes) if found else None), 1


def _tables(manifest: Manifest) -> Iterator[tuple[str, Table | None, tuple[Sst, ...]]]:
    yield "", manifest.table, manifest.ssts
    for name, side in manifest.side_tables.items():
        yield name, side.table, side.ssts


def _stored(store: ObjectStore, app: str, stage: str, version: int) -> Manifest | None:
    try:
        return history.read_stored(store, app, stage, version)
    except ObjectNotFound:
        return None


def _holding_block(words: tuple[Words, ...], block: Block) -> Mask:
    return holding(pa.Table.from_batches([block.stored]), words)


def _holds(
    store: ObjectStore, key: str, hashes: np.ndarray | None, words: tuple[Words, ...], with_records: bool
) -> bool:
    try:
        data = store.get(key)
        file = pq.ParquetFile(pa.BufferReader(data))
        rows = read_groups(file, range(file.num_row_groups), None if with_records else (HASH,))
    except ObjectNotFound:
        return False
    except (pa.ArrowException, OSError) as error:
        raise Corruption(f"{key} is no Parquet that can be read: {error}", object_key=key) from error
    if hashes is not None and np.isin(rows[HASH].to_numpy(), hashes).any():
        return True
    return with_records and bool(holding(rows, words).any())
