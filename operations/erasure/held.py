"""Search of an app's objects for requested keys: referenced and unreferenced SSTs, records, edits, log entries."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from ...errors import Corruption, ObjectNotFound, SlackwaterError
from ...snapshot.cut.in_flight import in_flight
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.moments import newest_cut, stages_of
from ...snapshot.cut.stored import Snapshot, list_snapshots
from ...snapshot.gc import census
from ...snapshot.query.fields import Field, UnreadableJson, all_column_text, all_json_text, parse_json
from ...snapshot.take.audit_log import OPERATIONS, Operation
from ...snapshot.take.capture import read_captured_object
from ...snapshot.under_way.runners import EDITS
from ...store.archive import index
from ...store.archive.index import ArchiveIndex
from ...store.compaction.merge import RowSelector, read_blocks, select_keys
from ...store.objects.counting import ReadCounters
from ...store.objects.many import map_concurrently
from ...store.objects.protocol import ObjectStore
from ...store.read.decode import Block, read_groups, read_whole
from ...store.read.multi_get import multi_get
from ...store.read.parts import read_hashes
from ...store.sst.schema import HASH
from ...store.versions import history, keys
from ...store.versions.entries.ssts import Sst
from ...store.versions.manifest import Manifest, Table
from ...store.versions.side_tables import REJECTED, all_ssts, has_parts, table_name
from ..key_search.key_fields import NOTHING_DECLARED, DeclaredFields, KeyFields
from ..key_search.matching import (
    FieldComparison,
    KeyRows,
    Mask,
    Matches,
    MessageDecoder,
    Rule,
    match_records,
    message_rows,
)
from .family import HashedKeys, Member, RequestedKeys
from .texts import TextMasker

Progress = Callable[[str], None]
_NO_CLOCK = -(1 << 63)
"""Lower limit of the expiry clock. At this time no row has expired."""
_SSTS = "SST"
_REJECTED = "rejected records"
IN_FLIGHT = "records in flight"
UNREAD = "records not read yet"


@dataclass(frozen=True, slots=True)
class HeldObject:
    """Object that holds a requested key."""

    app: str
    root: str
    object: str
    what: str
    """Kind of object: `SST`, `rejected records`, `records in flight`, `input archive`, `edit` or `log of operations`.

    `records not read yet` means a topic, named in `object`. A search with `deep` also has the kinds `a value` and `a
    text`.
    """
    table: str
    """Table, channel or topic; empty if there is none."""
    bytes: int
    named: bool = True
    """True if a version, a snapshot or an index names the object."""
    fields: Mapping[str, int] = field(default_factory=dict)
    """Number of matching rows or records, by the field with the key; for an SST, by the names of its key columns."""


@dataclass(frozen=True, slots=True)
class UndecidedRecords:
    """Records that cannot be checked for requested keys, and the reason."""

    app: str
    object: str
    what: str
    table: str
    why: str
    records: int


@dataclass(frozen=True, slots=True)
class ReferencedSst:
    """SST that versions of a stage name."""

    sst: Sst
    stage: str
    side: str
    table: Table
    """Schema of the table in the oldest version that names the SST."""


@dataclass
class KeySearch:
    """Search of one app for requested keys. SSTs that were searched are not searched again."""

    member: Member
    requested: RequestedKeys
    keys: Mapping[str, KeyRows]
    declared: DeclaredFields = NOTHING_DECLARED
    formats: MessageDecoder | None = None
    unproved: dict[str, dict[str, UndecidedRecords]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    _referenced: dict[str, set[str]] = field(default_factory=dict)
    clean: set[str] = field(default_factory=set)
    damaged: dict[str, Corruption] = field(default_factory=dict)
    """Input archives whose contents are unknown, because their indexes cannot be read."""
    searched_count: int = 0
    _read_up_to: dict[str, int] = field(default_factory=dict)
    _keys: dict[tuple[str, Table], HashedKeys] = field(default_factory=dict)

    @cached_property
    def fields(self) -> KeyFields:
        return KeyFields(self.member.heads, self.tables, self.declared)

    @cached_property
    def texts(self) -> TextMasker:
        return TextMasker(self.keys)

    def check_declared(self) -> None:
        """Check the declared fields. Raises `NotFound` for an unknown topic, and `Usage` for a malformed field."""
        archives = [archive.topic for archive in self.archives()]
        if not self.damaged:
            self.declared.check(self.requested.tables, [*self.fields.declared_names, *archives])

    def check_fields_known(self) -> None:
        """Raise `Refused` if keys may come from unknown fields of stored records."""
        inputs = [
            name
            for archive in self.archives()
            if archive.objects
            for name in self.fields.declared_names_of(archive.topic)
        ]
        inputs += [channel.channel for snapshot in self.snapshots() for channel in snapshot.channels if channel.objects]
        for head in self.member.heads.values():
            if head.attached is None and REJECTED in head.side_tables and head.side_tables[REJECTED].ssts:
                inputs += head.inputs
        self.fields.check_fields_known(self.member.app, dict.fromkeys(inputs))

    def match_records(
        self, kind: str, place: str, key: str, rows: pa.Table, rules: Iterable[Rule] | None = None
    ) -> Matches:
        """Find the records of the topic or channel `place` that hold a requested key.

        `key` is the name of the object with the records. Records that cannot be checked are added to `unproved`, unless
        `key` is empty.
        """
        rules = self.fields.rules_for(place) if rules is None else rules
        matches = match_records(rows, [*rules], self.keys, self.formats)
        undecided = rows.num_rows - int(matches.mask.sum())
        for column in self.fields.unclear_columns(place) if undecided else ():
            matches.unproved[f"only the program knows which field becomes {column} (--field)"] = undecided
        for why, records in matches.unproved.items() if key else ():
            self.add_unproved(key, kind, place, why, records)
        return matches

    def add_unproved(self, key: str, kind: str, place: str, why: str, records: int) -> None:
        noted = self.unproved.setdefault(key, {})
        more = noted[why].records if why in noted else 0
        noted[why] = UndecidedRecords(self.member.app, key, kind, place, why, records + more)

    def match_rejected(self, key: str, rows: pa.Table) -> Matches:
        """Find the rejected records that hold a requested key, by the fields of each record's input."""
        matches = Matches(np.zeros(rows.num_rows, np.bool_))
        inputs = rows["input"].to_pylist()
        for name in dict.fromkeys(inputs):
            at = np.array([place for place, input_name in enumerate(inputs) if input_name == name])
            some = rows.take(pa.array(at))
            matches_of_input = (
                self._rejected_of_channel(name, key, some)
                if name in self.fields.channels
                else self._rejected_of_topic(name, key, some)
            )
            matches.mask[at] = matches_of_input.mask
            matches.fields.update(matches_of_input.fields)
        return matches

    def _rejected_of_topic(self, name: str, key: str, rows: pa.Table) -> Matches:
        named = {"time": "timestamp"}
        rows = rows.rename_columns([named.get(column, column) for column in rows.column_names])
        if key and name in self.fields.sinks and not self.fields.rules_for(name):
            why = f"records of a sink (--field 'TABLE={name}:FIELD')"
            self.add_unproved(key, _REJECTED, name, why, rows.num_rows)
        return self.match_records(_REJECTED, name, key, rows)

    def _rejected_of_channel(self, name: str, key: str, rows: pa.Table) -> Matches:
        matches = Matches(np.zeros(rows.num_rows, np.bool_))
        for place, value in enumerate(rows["value"].to_pylist()):
            if (sent := message_rows(value or b"")) is None:
                if key:
                    self.add_unproved(key, _REJECTED, name, "not a message between stages", 1)
                continue
            row_matches = self.match_records(_REJECTED, name, key, sent)
            matches.mask[place] = row_matches.mask.any()
            matches.fields.update(row_matches.fields.keys())
        return matches

    def archives(self) -> Iterator[ArchiveIndex]:
        return index.iter_archives(self.member.store, self.member.app, self.damaged)

    @property
    def tables(self) -> dict[str, str]:
        return self.member.requested_tables(self.requested)

    def referenced_ssts(self, stage: str, after: int = 0) -> Iterator[ReferencedSst]:
        """Yield SSTs that versions above `after` name and that were not yielded before; SSTs of old versions first."""
        is_requested = stage in self.tables
        if not is_requested and not self.member.heads[stage].side_tables:
            return
        for manifest in self._versions(stage, after):
            for side, table, ssts in _tables(manifest):
                for sst in ssts if table is not None and (side or is_requested) else ():
                    if sst.object not in self.seen:
                        self.seen.add(sst.object)
                        assert table is not None  # noqa: S101  said above
                        yield ReferencedSst(sst, stage, side, table)

    def _versions(self, stage: str, after: int) -> Iterator[Manifest]:
        store, app, names = self.member.store, self.member.app, self._referenced.setdefault(stage, set())
        versions = [version for version in history.list_versions(store, app, stage) if version > after]
        for manifest in map_concurrently(partial(history.find, store, app, stage), versions):
            if manifest is not None:  # None: it was collected meanwhile
                names.update(sst.object for sst in all_ssts(manifest))
                self._read_up_to[stage] = max(manifest.version, self._read_up_to.get(stage, 0))
                yield manifest

    def is_attached(self, stage: str) -> bool:
        """Return True for a stage that follows a Spark query. Its side tables have keyed rows."""
        return self.member.heads[stage].attached is not None

    def has_records(self, stage: str, side: str) -> bool:
        """Return True if `side` is a table of rejected records. These are searched by their fields, not by a key."""
        return side == REJECTED and not self.is_attached(stage)

    def keys_of(self, stage: str, table: Table, side: str = "") -> HashedKeys | None:
        """Return the requested keys of a table, parsed by its schema; None if no key was requested."""
        if side and self.is_attached(stage):
            name = self.member.requested_side_tables(self.requested).get((stage, side))
        else:
            name = self.tables.get(stage)
        if name is None:
            return None
        if has_parts(table):
            table = replace(table, key=table.key[:-1])
        place = (name, table)
        if place not in self._keys:
            self._keys[place] = HashedKeys.for_table(name, table, self.requested)
        return self._keys[place]

    def select_rows(self, item: ReferencedSst) -> tuple[RowSelector, dict[str, int]] | None:
        """Return a function that selects the rows to remove from an SST, and the number of these rows by field.

        The result is a pair, or None if the SST has no requested key. Raises `Corruption` and `Unavailable`.
        """
        self.searched_count += 1
        if self.has_records(item.stage, item.side):
            fields = Counter[str]()
            self.unproved.pop(item.sst.object, None)
            for block in read_blocks(self.member.store, item.sst, item.table):
                fields.update(self.match_rejected(item.sst.object, pa.Table.from_batches([block.stored])).fields)
            return (partial(_rejected_block, self), fields) if fields else None
        keys_of_table = self.keys_of(item.stage, item.table, item.side)
        if keys_of_table is None:
            return None
        low, high = (
            np.searchsorted(keys_of_table.hashes, item.sst.hash_min),
            np.searchsorted(keys_of_table.hashes, item.sst.hash_max, "right"),
        )
        some, rows = keys_of_table.hashes[low:high], keys_of_table.rows.slice(low, high - low)
        if not some.size:
            return None
        if has_parts(item.table):
            chosen, columns = select_keys(some, rows), [HASH, *rows.column_names]
            blocks = read_hashes(
                self.member.store, None, item.table, item.sst, np.unique(some), columns, ReadCounters()
            )
            count = sum(int(chosen(block).sum()) for block in blocks)
            return (chosen, {", ".join(keys_of_table.names): count}) if count else None
        seqs = np.zeros(some.size, np.int64)
        multi_get(self.member.store, None, [item.sst], item.table, some, rows, clock_ms=_NO_CLOCK, seqs=seqs)
        is_present = seqs > 0
        if not is_present.any():
            return None
        return select_keys(some[is_present], rows.filter(pa.array(is_present))), {
            ", ".join(keys_of_table.names): int(is_present.sum())
        }

    def find_held(self, item: ReferencedSst) -> HeldObject | None:
        selection = self.select_rows(item)
        return self.as_held(item, selection[1]) if selection is not None else None

    def as_held(self, item: ReferencedSst, fields: Mapping[str, int]) -> HeldObject:
        table = table_name(item.stage, item.side) if item.side else item.stage
        root = self.member.store.at(item.sst.root).url
        owner = item.sst.object.partition("/")[0]
        kind = _REJECTED if self.has_records(item.stage, item.side) else _SSTS
        return HeldObject(owner, root, item.sst.object, kind, table, item.sst.bytes, fields=fields)

    def snapshots(self) -> tuple[Snapshot, ...]:
        return list_snapshots(self.member.store, self.member.app)

    def captured_with_keys(self) -> Iterator[tuple[str, str, pa.Table, Matches]]:
        """Yield each snapshot object whose in-flight records hold a requested key.

        The tuples have the object's name, the channel, the rows and the matches.
        """
        seen: set[str] = set()
        for snapshot in self.snapshots():
            for channel in snapshot.channels:
                for item in channel.objects:
                    if item.key not in seen:
                        seen.add(item.key)
                        self.searched_count += 1
                        rows = read_captured_object(self.member.store, item)
                        self.unproved.pop(item.key, None)
                        matches = self.match_records(IN_FLIGHT, channel.channel, item.key, rows)
                        if matches.mask.any():
                            yield item.key, channel.channel, rows, matches

    def edit_objects_with_keys(self) -> Iterator[str]:
        """Yield names of objects with requested keys: edit requests, and objects with rows of edit requests."""
        store, app = self.member.store, self.member.app
        for request in EDITS.all(store, app):
            if self.texts.contain_key(request.sql, request.edit.what, request.edit.message):
                yield EDITS.key(request, app)
            if request.rows:
                try:
                    with pa.ipc.open_stream(store.get(keys.edit_rows(app, request.id))) as stream:
                        rows = stream.read_all()
                except ObjectNotFound:
                    continue  # the edit was done meanwhile
                if self._has_key_row(request.stage, rows):
                    yield keys.edit_rows(app, request.id)

    def _has_key_row(self, stage: str, rows: pa.Table) -> bool:
        requested = self.keys.get(self.tables.get(stage, ""))
        if requested is None or not {*requested.rows.column_names} <= {*rows.column_names}:
            return False
        columns = tuple((FieldComparison(Field(name), name),) for name in requested.rows.column_names)
        return bool(match_records(rows, [Rule(self.tables[stage], columns)], self.keys).mask.any())

    def log_entries_with_keys(self) -> Iterator[Operation]:
        """Yield entries of the log of operations whose text contains a requested key."""
        entries = OPERATIONS.all(self.member.store, self.member.app)
        return (entry for entry in entries if self.texts.contain_key(entry.detail, entry.message))

    def edited_versions_with_keys(self) -> Iterator[Manifest]:
        """Yield versions of kind `edit` with a requested key in the statement or the message."""
        store, app = self.member.store, self.member.app
        for stage, head in self.member.heads.items():
            if head.table is None:
                continue
            for manifest in map_concurrently(
                partial(_stored, store, app, stage), history.list_versions(store, app, stage)
            ):
                edit = manifest.edited if manifest is not None else None
                if manifest is not None and edit is not None and self.texts.contain_key(edit.what, edit.message):
                    yield manifest

    def unreferenced_ssts(self, replaced: Container[str] = ()) -> Iterator[tuple[HeldObject, int]]:
        """Yield SSTs that no version names and that hold a requested key, with the time at which each was written.

        SSTs in `replaced` are skipped. Only hashes of keys are compared: a false match does no harm, because no version
        needs the SST.
        """
        store, app = self.member.store, self.member.app
        for stage, head in self.member.heads.items():
            tables = [
                (side, table)
                for side, table, _ in _tables(head)
                if table is not None and not self.has_records(stage, side)
            ]
            hashes_by_table = [
                keys_of_table.hashes
                for side, table in tables
                if (keys_of_table := self.keys_of(stage, table, side)) is not None
            ]
            hashes = np.concatenate(hashes_by_table) if hashes_by_table else None
            with_records = any(self.has_records(stage, side) for side in head.side_tables)
            if hashes is None and not with_records:
                continue
            listed = tuple(store.list(keys.ssts(app, stage)))
            # After the listing, so that a version already names SSTs that were committed in between.
            for _ in self._versions(stage, self._read_up_to.get(stage, 0)):
                pass
            for info in listed:
                if info.key in self._referenced[stage] or info.key in replaced:
                    continue
                if self._unnamed_holds(info.key, hashes, with_records):
                    yield (
                        HeldObject(app, store.url, info.key, _SSTS, stage, info.size_bytes, named=False),
                        info.modified_ms,
                    )

    def _unnamed_holds(self, key: str, hashes: np.ndarray | None, with_records: bool) -> bool:
        try:
            data = self.member.store.get(key)
            file = pq.ParquetFile(pa.BufferReader(data))
            rows = read_groups(file, range(file.num_row_groups), None if with_records else (HASH,))
        except ObjectNotFound:
            return False
        except (pa.ArrowException, OSError) as error:
            raise Corruption(f"cannot read {key} as Parquet: {error}", object_key=key) from error
        if hashes is not None and np.isin(rows[HASH].to_numpy(), hashes).any():
            return True
        return "input" in rows.column_names and bool(self.match_rejected(key, rows).mask.any())


def find_unread_records(search: KeySearch, channels: KafkaTopics | None) -> Iterator[HeldObject]:
    """Yield channels with unread records that hold a requested key. A stage that reads them would store the key again.

    The records are read from Kafka. If that fails, they are added to `KeySearch.unproved`.
    """
    store, app = search.member.store, search.member.app
    cut = newest_cut(store, app, stages_of(store, app))
    for state in in_flight(store, cut):
        if not (state.receiver and state.rows) or not (
            search.fields.rules_for(state.channel) or search.fields.unclear_columns(state.channel)
        ):
            continue
        fields = Counter[str]()
        search.unproved.pop(state.topic, None)
        try:
            for rows in channels.read(state) if channels is not None else ():
                fields.update(search.match_records(UNREAD, state.channel, state.topic, rows).fields)
            why = "" if channels is not None else "no Kafka configured"
        except SlackwaterError as error:
            why = error.sentence
        if why:
            note = UndecidedRecords(app, state.topic, UNREAD, state.channel, why, state.rows)
            search.unproved[state.topic] = {why: note}
        if fields:
            yield HeldObject(app, store.url, state.topic, UNREAD, state.channel, 0, fields=fields)


def decode_in_full(search: KeySearch, on_progress: Progress) -> Iterator[tuple[HeldObject | None, int]]:
    """Decode all objects in an app's folder, and search every value for requested keys that are text.

    Yields two values: the object if it has such a value, else None; and the number of objects decoded since the
    previous pair. Raises `Corruption` if an object cannot be decoded, and `Unavailable`.
    """
    member, store = search.member, search.member.store
    texts = frozenset(text for rows in search.keys.values() for column in rows.columns for text in column.texts)
    for info in store.list(f"{member.app}/"):
        on_progress(info.key)
        try:
            data = store.get(info.key)
        except ObjectNotFound:
            continue
        try:
            if info.key.endswith(".parquet"):
                is_match = _is_value(read_whole(data), texts)
            elif info.key.endswith(".arrow"):
                with pa.ipc.open_stream(data) as stream:
                    is_match = _is_value(stream.read_all(), texts)
            else:
                is_match = any(
                    leaf in texts or search.texts.contain_key(leaf) for leaf in all_json_text(parse_json(data)[0])
                )
        except (pa.ArrowException, OSError, UnreadableJson) as error:
            raise Corruption(f"{info.key} cannot be decoded: {error}", object_key=info.key) from error
        kind = "a value" if info.key.endswith(".parquet") else "a text"
        table = info.key.split("/")[2] if census.object_kind_of(info.key) is census.SST else ""
        yield (HeldObject(member.app, store.url, info.key, kind, table, info.size_bytes) if is_match else None), 1


def _is_value(rows: pa.Table, texts: frozenset[str]) -> bool:
    encoded = pa.array([word.encode(errors="surrogateescape") for word in texts], pa.binary())
    for column in rows.columns:
        for values in all_column_text(column):
            data = values.cast(pa.binary())
            if pc.any(pc.is_in(data, encoded)).as_py():
                return True
            for value in pc.unique(data.filter(pc.match_substring_regex(data, r"^\s*[{\[]"))).to_pylist():
                with suppress(UnreadableJson):
                    if not texts.isdisjoint(all_json_text(parse_json(value)[0])):
                        return True
    return False


def _tables(manifest: Manifest) -> Iterator[tuple[str, Table | None, Sequence[Sst]]]:
    yield "", manifest.table, manifest.ssts
    for name, side in manifest.side_tables.items():
        yield name, side.table, side.ssts


def _stored(store: ObjectStore, app: str, stage: str, version: int) -> Manifest | None:
    try:
        return history.read_stored(store, app, stage, version)
    except ObjectNotFound:
        return None


def _rejected_block(search: KeySearch, block: Block) -> Mask:
    return search.match_rejected("", pa.Table.from_batches([block.stored])).mask
