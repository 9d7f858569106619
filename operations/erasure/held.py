"""Objects of an app that hold a key: SSTs of all versions, SSTs that nothing names, and records of all kinds."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import Corruption, ObjectNotFound, SlackwaterError
from ...snapshot.cut.in_flight import in_flight
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.moments import newest_cut, stages_of
from ...snapshot.cut.stored import Snapshot, list_snapshots
from ...snapshot.gc import census
from ...snapshot.query.fields import Field, Unreadable, all_columns, all_leaves, parsed
from ...snapshot.take.audit_log import OPERATIONS
from ...snapshot.take.capture import read_object
from ...snapshot.under_way.runners import EDITS
from ...store.archive import index
from ...store.archive.index import ArchiveIndex
from ...store.compaction.rewrite import Chosen, of_keys, whole_blocks
from ...store.objects.many import many
from ...store.objects.protocol import ObjectStore
from ...store.read.decode import Block, read_groups, read_whole
from ...store.read.multi_get import multi_get
from ...store.sst.types import HASH
from ...store.versions import history, keys
from ...store.versions.manifest import Manifest, Sst, Table
from ...store.versions.side_tables import all_ssts, table_name
from .family import Keys, KeysAsked, Member
from .key_fields import NOTHING_DECLARED, DeclaredFields, KeyFields
from .matching import FieldComparison, Formats, KeyRows, Mask, Matches, Rule, match, message_rows
from .texts import Texts

Progress = Callable[[str], None]
_NO_CLOCK = -(1 << 63)
"""Before all times: then nothing has expired."""
_SSTS = "SST"
_REJECTED = "rejected records"
IN_FLIGHT = "records in flight"
UNREAD = "records not read yet"


@dataclass(frozen=True, slots=True)
class Held:
    """An object that holds a key."""

    app: str
    root: str
    object: str
    what: str
    """`SST`, `rejected records`, `records in flight`, `input archive`, `edit`, `log of operations`, `records not read
    yet`, of which `object` is the topic; or, where somebody looked into everything, `a value` or `a text`."""
    table: str
    """The table, channel or topic; empty for none."""
    bytes: int
    """Of the object."""
    named: bool = True
    """Whether a version, a snapshot or an index names it."""
    fields: Mapping[str, int] = field(default_factory=dict)
    """By the field that equals a key, the rows or records; of an SST by the key's columns."""


@dataclass(frozen=True, slots=True)
class Unproved:
    """Records of which nobody can tell whether they hold a key."""

    app: str
    object: str
    what: str
    """As `Held.what`."""
    table: str
    """As `Held.table`."""
    why: str
    records: int


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
    keys: Mapping[str, KeyRows]
    """All keys by table, for records."""
    declared: DeclaredFields = NOTHING_DECLARED
    formats: Formats | None = None
    unproved: dict[str, dict[str, Unproved]] = field(default_factory=dict)
    """By object and reason."""
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

    @cached_property
    def fields(self) -> KeyFields:
        """The fields that lead to the keys."""
        return KeyFields(self.member.heads, self.tables, self.declared)

    @cached_property
    def texts(self) -> Texts:
        """The keys, as people write them."""
        return Texts(self.keys)

    def check_declared(self) -> None:
        """Raise `NotFound` where somebody declared fields of a topic that the app has not, `Usage` for no field."""
        archives = [each.topic for each in self.archives()]
        if not self.damaged:
            self.declared.check(self.asked.tables, [*self.fields.places, *archives])

    def check_clear(self) -> None:
        """Raise `Refused` where records are stored of a place of which nobody knows which fields lead to a key."""
        places = [name for each in self.archives() if each.objects for name in self.fields.places_of(each.topic)]
        places += [each.channel for one in self.snapshots() for each in one.channels if each.objects]
        for head in self.member.heads.values():
            if head.attached is None and any(side.ssts for side in head.side_tables.values()):
                places += head.inputs
        self.fields.check_clear(self.member.app, dict.fromkeys(places))

    def matches(self, what: str, place: str, key: str, rows: pa.Table, rules: Iterable[Rule] | None = None) -> Matches:
        """The records of a place that hold a key; those of which nobody can tell are noted as `unproved`.

        Nothing is noted where `key`, the object, is empty.
        """
        rules = self.fields.rules(place) if rules is None else rules
        found = match(rows, [*rules], self.keys, self.formats)
        left = rows.num_rows - int(found.mask.sum())
        for column in self.fields.unclear(place) if left else ():
            found.unproved[f"which field leads to {column}, only the program knows (--field)"] = left
        for why, records in found.unproved.items() if key else ():
            self.note(key, what, place, why, records)
        return found

    def note(self, key: str, what: str, place: str, why: str, records: int) -> None:
        """Note records of an object of which nobody can tell."""
        noted = self.unproved.setdefault(key, {})
        more = noted[why].records if why in noted else 0
        noted[why] = Unproved(self.member.app, key, what, place, why, records + more)

    def rejected(self, key: str, rows: pa.Table) -> Matches:
        """The rejected records that hold a key, by the fields of the input that each was read from."""
        found = Matches(np.zeros(rows.num_rows, np.bool_))
        inputs = rows["input"].to_pylist()
        for name in dict.fromkeys(inputs):
            at = np.array([place for place, each in enumerate(inputs) if each == name])
            some = rows.take(pa.array(at))
            mine = (
                self._rejected_rows(name, key, some)
                if name in self.fields.channels
                else self._rejected(name, key, some)
            )
            found.mask[at] = mine.mask
            for text, count in mine.fields.items():
                found.fields[text] = found.fields.get(text, 0) + count
        return found

    def _rejected(self, name: str, key: str, rows: pa.Table) -> Matches:
        """Of a topic's records; those that a sink's topic did not take are known by what is declared alone."""
        named = {"time": "timestamp"}
        rows = rows.rename_columns([named.get(each, each) for each in rows.column_names])
        if key and name in self.fields.sinks and not self.fields.rules(name):
            why = f"records of a sink (--field 'TABLE={name}:FIELD')"
            self.note(key, _REJECTED, name, why, rows.num_rows)
        return self.matches(_REJECTED, name, key, rows)

    def _rejected_rows(self, name: str, key: str, rows: pa.Table) -> Matches:
        """Of a channel's rows, each of which is a message."""
        found = Matches(np.zeros(rows.num_rows, np.bool_))
        for place, value in enumerate(rows["value"].to_pylist()):
            if (sent := message_rows(value or b"")) is None:
                if key:
                    self.note(key, _REJECTED, name, "no message between stages", 1)
                continue
            mine = self.matches(_REJECTED, name, key, sent)
            found.mask[place] = mine.mask.any()
            for text in mine.fields:
                found.fields[text] = found.fields.get(text, 0) + 1
        return found

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

    def chosen(self, one: NamedSst) -> tuple[Chosen, dict[str, int]] | None:
        """The rows of an SST that go, and how many by field; None where it holds none of the keys.

        Raises `Corruption` and `Unavailable`.
        """
        self.looked_into += 1
        if one.side and not self.is_copy(one.stage):
            fields: dict[str, int] = {}
            self.unproved.pop(one.sst.object, None)
            for block in whole_blocks(self.member.store, one.sst, one.table):
                for text, count in self.rejected(one.sst.object, pa.Table.from_batches([block.stored])).fields.items():
                    fields[text] = fields.get(text, 0) + count
            return (partial(_rejected_block, self), fields) if fields else None
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
        if not there.any():
            return None
        return of_keys(some[there], rows.filter(pa.array(there))), {", ".join(found.names): int(there.sum())}

    def held_by(self, one: NamedSst) -> Held | None:
        """The SST, if it holds a key."""
        found = self.chosen(one)
        return self.as_held(one, found[1]) if found is not None else None

    def as_held(self, one: NamedSst, fields: Mapping[str, int]) -> Held:
        """An SST that holds a key: by these fields, so many rows."""
        table = table_name(one.stage, one.side) if one.side else one.stage
        root = self.member.store.at(one.sst.root).url
        owner = one.sst.object.partition("/")[0]
        what = _REJECTED if one.side and not self.is_copy(one.stage) else _SSTS
        return Held(owner, root, one.sst.object, what, table, one.sst.bytes, fields=fields)

    def snapshots(self) -> tuple[Snapshot, ...]:
        """The app's snapshots."""
        return list_snapshots(self.member.store, self.member.app)

    def captured(self) -> Iterator[tuple[str, str, pa.Table, Matches]]:
        """Objects with records in flight that hold a key: the object, its channel, its rows, and which of them do."""
        seen: set[str] = set()
        for snapshot in self.snapshots():
            for channel in snapshot.channels:
                for each in channel.objects:
                    if each.key not in seen:
                        seen.add(each.key)
                        self.looked_into += 1
                        rows = read_object(self.member.store, each)
                        self.unproved.pop(each.key, None)
                        mine = self.matches(IN_FLIGHT, channel.channel, each.key, rows)
                        if mine.mask.any():
                            yield each.key, channel.channel, rows, mine

    def edits(self) -> Iterator[str]:
        """Requests for edits, and rows of such, that hold a key."""
        store, app = self.member.store, self.member.app
        for request in EDITS.all(store, app):
            if self.texts.stand_in(request.sql, request.edit.what, request.edit.message):
                yield EDITS.key(request, app)
            if request.rows:
                try:
                    with pa.ipc.open_stream(store.get(keys.edit_rows(app, request.id))) as stream:
                        rows = stream.read_all()
                except ObjectNotFound:
                    continue  # done meanwhile
                if self._has_key_row(request.stage, rows):
                    yield keys.edit_rows(app, request.id)

    def _has_key_row(self, stage: str, rows: pa.Table) -> bool:
        """Whether a key of a stage's table is among some rows of it."""
        wanted = self.keys.get(self.tables.get(stage, ""))
        if wanted is None or not {*wanted.rows.column_names} <= {*rows.column_names}:
            return False
        columns = tuple((FieldComparison(Field(name), name),) for name in wanted.rows.column_names)
        return bool(match(rows, [Rule(self.tables[stage], columns)], self.keys).mask.any())

    def operations(self) -> Iterator[str]:
        """Entries of the log of operations that hold a key in what they tell."""
        store, app = self.member.store, self.member.app
        for done in OPERATIONS.all(store, app):
            if self.texts.stand_in(done.detail, done.message):
                yield OPERATIONS.key(done, app)

    def edited(self) -> Iterator[Manifest]:
        """Versions, as they are stored, whose edit holds a key in its statement or its message."""
        store, app = self.member.store, self.member.app
        for stage, head in self.member.heads.items():
            if head.table is None:
                continue
            for manifest in many(partial(_stored, store, app, stage), history.versions(store, app, stage)):
                edit = manifest.edited if manifest is not None else None
                if manifest is not None and edit is not None and self.texts.stand_in(edit.what, edit.message):
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
                if self._unnamed_holds(info.key, hashes, with_records):
                    yield Held(app, store.url, info.key, _SSTS, stage, info.size_bytes, named=False), info.modified_ms

    def _unnamed_holds(self, key: str, hashes: np.ndarray | None, with_records: bool) -> bool:
        try:
            data = self.member.store.get(key)
            file = pq.ParquetFile(pa.BufferReader(data))
            rows = read_groups(file, range(file.num_row_groups), None if with_records else (HASH,))
        except ObjectNotFound:
            return False
        except (pa.ArrowException, OSError) as error:
            raise Corruption(f"{key} is no Parquet that can be read: {error}", object_key=key) from error
        if hashes is not None and np.isin(rows[HASH].to_numpy(), hashes).any():
            return True
        return "input" in rows.column_names and bool(self.rejected(key, rows).mask.any())


def unread(search: Search, channels: Topics | None) -> Iterator[Held]:
    """Records between stages that hold a key and were not read yet: whoever reads them brings the key back.

    They are read from Kafka; where they cannot be, they are noted as `unproved`.
    """
    store, app = search.member.store, search.member.app
    cut = newest_cut(store, app, stages_of(store, app))
    for state in in_flight(store, cut):
        if not (state.receiver and state.rows) or not (
            search.fields.rules(state.channel) or search.fields.unclear(state.channel)
        ):
            continue
        fields: dict[str, int] = {}
        search.unproved.pop(state.topic, None)
        try:
            for rows in channels.read(state) if channels is not None else ():
                for text, count in search.matches(UNREAD, state.channel, state.topic, rows).fields.items():
                    fields[text] = fields.get(text, 0) + count
            why = "" if channels is not None else "nothing says where Kafka is"
        except SlackwaterError as error:
            why = error.sentence
        if why:
            note = Unproved(app, state.topic, UNREAD, state.channel, why, state.rows)
            search.unproved[state.topic] = {why: note}
        if fields:
            yield Held(app, store.url, state.topic, UNREAD, state.channel, 0, fields=fields)


def in_full(search: Search, on_progress: Progress) -> Iterator[tuple[Held | None, int]]:
    """Each object in an app's folder, decoded: what it is if a key that is text is a value of any field of it.

    And how many were decoded. Raises `Corruption` where one cannot be, and `Unavailable`.
    """
    member, store = search.member, search.member.store
    words = frozenset(text for rows in search.keys.values() for column in rows.columns for text in column.texts)
    for info in store.list(f"{member.app}/"):
        on_progress(info.key)
        try:
            data = store.get(info.key)
        except ObjectNotFound:
            continue
        try:
            if info.key.endswith(".parquet"):
                found = _is_value(read_whole(data), words)
            elif info.key.endswith(".arrow"):
                with pa.ipc.open_stream(data) as stream:
                    found = _is_value(stream.read_all(), words)
            else:
                found = any(each in words or search.texts.stand_in(each) for each in all_leaves(parsed(data)[0]))
        except (pa.ArrowException, OSError, Unreadable) as error:
            raise Corruption(f"{info.key} cannot be decoded: {error}", object_key=info.key) from error
        what = "a value" if info.key.endswith(".parquet") else "a text"
        table = info.key.split("/")[2] if census.kind_of(info.key) is census.SST else ""
        yield (Held(member.app, store.url, info.key, what, table, info.size_bytes) if found else None), 1


def _is_value(rows: pa.Table, words: frozenset[str]) -> bool:
    """Whether one of some texts is a value anywhere in some rows, also in JSON."""
    known = pa.array([word.encode(errors="surrogateescape") for word in words], pa.binary())
    for column in rows.columns:
        for found in all_columns(column):
            data = found.cast(pa.binary())
            if pc.any(pc.is_in(data, known)).as_py():
                return True
            for value in pc.unique(data.filter(pc.match_substring_regex(data, r"^\s*[{\[]"))).to_pylist():
                with suppress(Unreadable):
                    if not words.isdisjoint(all_leaves(parsed(value)[0])):
                        return True
    return False


def _tables(manifest: Manifest) -> Iterator[tuple[str, Table | None, tuple[Sst, ...]]]:
    yield "", manifest.table, manifest.ssts
    for name, side in manifest.side_tables.items():
        yield name, side.table, side.ssts


def _stored(store: ObjectStore, app: str, stage: str, version: int) -> Manifest | None:
    try:
        return history.read_stored(store, app, stage, version)
    except ObjectNotFound:
        return None


def _rejected_block(search: Search, block: Block) -> Mask:
    return search.rejected("", pa.Table.from_batches([block.stored])).mask
