"""Search for the fate of one record, from its topic through the stages to a table, by manifests and stored rows.

At each stage, either a version read the record, or the manifests show why no version did. At the table's stage, the
version that read the record either wrote the record's key or did not. Facts that require a replay of the program are
reported as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ....common.instants import format_iso
from ....snapshot.bisect.verdict import RecordLocation
from ....snapshot.cut.lineage import records_of
from ....snapshot.diff.reading import (
    VersionLine,
    has_lost,
    offset_of,
    position_consuming,
    positions_reading,
    skips,
    undone_lines,
)
from ....snapshot.diff.stored_rows import KeyReader, TableSide
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.sst.hashing import hash_keys, normalise_keys
from ....store.sst.sorted_runs import overlapping
from ....store.versions import forgotten, history
from ....store.versions.entries.ssts import Sst
from ....store.versions.manifest import Input, Manifest
from ....store.versions.side_tables import REJECTED, REJECTED_RECORDS, as_main_table, table_name
from .joins import explain_unmatched, join_of
from .key_records import KeyFinder, SourceTopic, find_topic, take_record
from .reasons import MissingReason


@dataclass(frozen=True, slots=True)
class Reached:
    """Versions of a stage that processed a record, ascending."""

    stage: str
    versions: tuple[Manifest, ...]
    path: tuple[tuple[str, Manifest], ...] = ()
    """Upstream stages on the record's path, each with the version that read the record."""


_SHOWN = ("error", "message", "version", "retried")
_Place = tuple[str, int, int]
"""Topic, partition and offset."""


@dataclass
class RecordFates:
    """Fates of records on their way from topics to the table of a stage."""

    store: ObjectStore
    cache: SstCache
    heads: Mapping[str, Manifest]
    finder: KeyFinder
    _lines: dict[str, VersionLine] = field(default_factory=dict)
    _rejected: dict[str, pa.Table] = field(default_factory=dict)
    _rejected_places: dict[str, dict[_Place, dict[str, Any]]] = field(default_factory=dict)
    _held: dict[str, list[tuple[dict[str, object], set[int]]]] = field(default_factory=dict)
    _replaced: dict[tuple[str, int], tuple[Sst, ...]] = field(default_factory=dict)

    @property
    def stage(self) -> str:
        return self.finder.stage

    @cached_property
    def keys(self) -> pa.Table:
        return normalise_keys(self.finder.keys, self.finder.keys.column_names)

    @cached_property
    def readers(self) -> list[KeyReader]:
        hashes = hash_keys(self.keys, self.keys.column_names).tolist()
        return [
            KeyReader(self.store, self.cache, self.keys.slice(number, 1), hashed)
            for number, hashed in enumerate(hashes)
        ]

    def of_record(self, record: RecordLocation, number: int, *, exists: bool = False) -> MissingReason:
        """Return the reason why a record is not in the row of a key; `counted` if the record's batch wrote the row.

        `number` is the number of the key. `exists` is True if the caller has just read the record from its topic or
        archive.
        """
        missing = None if exists else self._missing(find_topic(self.finder.sources, record.topic), record)
        reached = missing or self._reach(self.stage, record)
        reason = reached if isinstance(reached, MissingReason) else self._at_table(reached, record, number)
        return reason.of_record(record)

    def line(self, stage: str) -> VersionLine:
        """Return the versions of a stage whose input is still in effect: no rewind or reset has undone it."""
        if stage not in self._lines:
            self._lines[stage] = VersionLine.up_to(self.store, self.heads[stage])
        return self._lines[stage]

    def _reach(self, stage: str, record: RecordLocation) -> Reached | MissingReason:
        """Return the versions of a stage that processed the record, or the reason why there are none."""
        reasons: list[MissingReason] = []
        for name, source in self.heads[stage].inputs.items():
            if source.upstream in self.heads:
                sent = self._reach(source.upstream, record)
                outcome = sent if isinstance(sent, MissingReason) else self._over_channel(stage, name, sent)
            elif source.topic == record.topic:
                outcome = self._from_topic(stage, name, record)
            else:
                continue
            if isinstance(outcome, Reached):
                return outcome
            reasons.append(outcome)
        no_path = MissingReason(
            "absent", f"{stage} does not read {record.topic}, neither directly nor through other stages"
        )
        known = [reason for reason in reasons if reason.kind != "absent"]
        return (known or reasons or [no_path])[0]

    def _from_topic(self, stage: str, name: str, record: RecordLocation) -> Reached | MissingReason:
        line, head = self.line(stage), self.heads[stage]
        positions = positions_reading(line, name, record.partition, record.offset)
        if not positions:
            return self._unread(stage, name, head.inputs[name], record)
        read = [line[position] for position in positions]
        if lost := [version for version in read if skips(version, record.topic, record.partition, record.offset)]:
            return MissingReason(
                "lost",
                f"Kafka had deleted it before {stage} read it: {_name(lost[-1])} skipped it, "
                f"at {format_iso(lost[-1].time_ms)}",
            )
        if (rejected := self._rejected_at(stage, record)) is not None:
            if rejected["retried"] is None:
                return _rejection(stage, rejected)
            retried = history.find(self.store, head.app, head.stage, rejected["retried"])
            read = [retried] if retried is not None else read
        elif all(line.has_gap_before(position) for position in positions):
            return _collected(stage, read[-1])
        return Reached(stage, tuple(read))

    def _missing(self, topic: SourceTopic, record: RecordLocation) -> MissingReason | None:
        place = f"{record.topic}[{record.partition}]"
        if topic.ends is not None:
            ends = topic.end_offsets
            if record.partition >= len(ends):
                return MissingReason("absent", f"{record.topic} has {len(ends)} partitions")
            if record.offset >= ends[record.partition]:
                return MissingReason("absent", f"{place} ends at offset {ends[record.partition]}")
        stored = take_record(topic, self.finder.topics, record)
        if stored is None or stored.num_rows:
            return None
        if topic.archives.has_forgotten_keys(record.partition, record.offset, record.offset + 1):
            return MissingReason(
                "forgotten",
                f"keys were forgotten from the archive of {place}, and no record is left at offset {record.offset}",
            )
        return MissingReason(
            "absent", f"{place} has no record at offset {record.offset}: a marker, or a compacted record"
        )

    def _unread(self, stage: str, name: str, source: Input, record: RecordLocation) -> MissingReason:
        place, partition, offset = f"{record.topic}[{record.partition}]", record.partition, record.offset
        read_to = offset_of(source, partition)
        line, head = self.line(stage), self.heads[stage]
        for undone in undone_lines(line.versions, head):
            if positions := positions_reading(undone, name, partition, offset):
                version, rewind = undone[positions[-1]], _rewind_after(head, undone[positions[-1]].version)
                again = "has not read it again" if offset >= read_to else "does not read it again"
                return MissingReason(
                    "rewound", f"{_name(version)} counted it, {rewind} undid that, and {stage} {again}"
                )
        if offset >= read_to:
            was_asked = find_topic(self.finder.sources, record.topic).ends is not None
            unsure = "" if was_asked else "; without Kafka, it is unknown if the record exists"
            return MissingReason("unread", f"{stage} has read {place} up to offset {read_to}{unsure}", proved=was_asked)
        for reset in source.resets:
            starts, ends = (span[partition] if partition < len(span) else 0 for span in (reset.starts, reset.ends))
            if starts <= offset < ends:
                return MissingReason(
                    "skipped", f"the reset {stage}@v{reset.version} skipped {place} from {starts} to {ends}"
                )
        first = line[0]
        if first.version == 1:
            begins = offset_of(first.inputs.get(name), partition)
            return MissingReason("skipped", f"{stage} began to read {place} at offset {begins}")
        where = "before the clone was made" if first.starts_history else "before the oldest version that is kept"
        return MissingReason("unknown", f"{stage} read it {where} ({_name(first)})", proved=False)

    def _over_channel(self, stage: str, name: str, sent: Reached) -> Reached | MissingReason:
        line, head, read = self.line(stage), self.heads[stage], list[Manifest]()
        source = head.inputs[name]
        for sender in sent.versions:
            version = sender.version
            position = position_consuming(line, name, version)
            if position is None:
                return MissingReason(
                    "unread",
                    f"in flight: {_name(sender)} read it, and {stage} has read {source.upstream} up to "
                    f"v{source.version}",
                )
            manifest = line[position]
            if has_lost(manifest, name, version):
                return MissingReason(
                    "lost", f"Kafka had deleted what {_name(sender)} sent: {_name(manifest)} skipped it"
                )
            if line.has_gap_before(position):
                return _collected(stage, manifest)
            read.append(manifest)
        path = (*sent.path, *((sent.stage, version) for version in sent.versions[-1:]))
        return Reached(stage, tuple({manifest.version: manifest for manifest in read}.values()), path)

    def _at_table(self, reached: Reached, record: RecordLocation, number: int) -> MissingReason:
        head, rows_of = self.heads[self.stage], self.heads[self.stage].base_versions(of_rows=True)
        read = reached.versions
        in_effect = [version for version in read if any(version.version in part for part in rows_of)]
        if not in_effect:
            undone = _rewind_after(head, read[-1].version)
            return MissingReason(
                "rewound", f"{_name(read[-1])} counted it, and {undone} undid that without re-reading it"
            )
        if wrote := [version for version in in_effect if self._wrote(version, number)]:
            by = _name(wrote[-1])
            return MissingReason("counted", f"{by} read it and wrote the row of the key", by=by)
        reasons = (
            partial(self._rejected_on_way, reached, number),
            partial(self._forgotten, in_effect, number),
            partial(self._unmatched, reached, record),
            partial(self._written_later, reached, in_effect[0], number),
            partial(self._late, reached, number),
        )
        first = next((reason for find in reasons if (reason := find()) is not None), None)
        return first or self._filtered(reached, in_effect[-1])

    def _filtered(self, reached: Reached, read: Manifest) -> MissingReason:
        way = " and ".join(_name(version) for _, version in (*reached.path, (self.stage, read)))
        why = f"{way} read it, and the program gave no row of the key for it"
        if joins := [stage for stage, version in reached.path if join_of(version) is not None]:
            return MissingReason("filtered", f"{why}, or {joins[0]} joined it with nothing", proved=False)
        if waits := [stage for stage, version in reached.path if _keeps_until_due(version)]:
            return MissingReason("filtered", f"{why}, or its row is not due yet in {waits[0]}", proved=False)
        return MissingReason("filtered", why)

    def _written_later(self, reached: Reached, read: Manifest, number: int) -> MissingReason | None:
        """Return `counted`, unproved, if the key was written later and an upstream stage keeps rows; else None."""
        if all(version.table is None for _, version in reached.path):
            return None
        row = self.readers[number].read_newest(self.heads[self.stage])
        if row is None or row.seq < read.row_seq:
            return None
        sent = f"{_name(reached.path[-1][1])} read it, and may have sent its rows later"
        return MissingReason("counted", f"{sent}: the key's row was written since then", proved=False)

    def _wrote(self, version: Manifest, number: int) -> bool:
        table = version.table
        return table is not None and self.readers[number].find_seq(version, version.row_seq, table) is not None

    def _rejected_at(self, stage: str, record: RecordLocation) -> Mapping[str, Any] | None:
        if stage not in self._rejected_places:
            rows = self.rejected_rows(stage).select(["topic", "partition", "offset", *_SHOWN]).to_pylist()
            self._rejected_places[stage] = {(row["topic"], row["partition"], row["offset"]): row for row in rows}
        return self._rejected_places[stage].get((record.topic, record.partition, record.offset))

    def rejected_rows(self, stage: str) -> pa.Table:
        """Return the rows of a stage's table of rejected records."""
        if stage not in self._rejected:
            table = as_main_table(self.heads[stage], table_name(self.heads[stage].stage, REJECTED))
            side = TableSide(self.store, self.cache, REJECTED_RECORDS, table)
            self._rejected[stage] = side.read_newest(side.ssts, 0, values=True)
        return self._rejected[stage]

    def _rejected_on_way(self, reached: Reached, number: int) -> MissingReason | None:
        """Return the rejection, at a downstream stage, of a row that was made from the record; else None."""
        versions = {**{stage: (version,) for stage, version in reached.path}, self.stage: reached.versions}
        for stage, read in versions.items():
            for row, numbers in self.rejected_with_keys(stage):
                if number in numbers and row["version"] in {version.row_seq for version in read}:
                    return _rejection(stage, row)
        return None

    def rejected_with_keys(self, stage: str) -> Sequence[tuple[dict[str, object], set[int]]]:
        """Return a stage's rejected records that wait for a retry, each with the numbers of its keys."""
        if stage not in self._held:
            has_any = REJECTED in self.heads[stage].side_tables
            self._held[stage] = [*self._find_rejected_with_keys(stage)] if has_any else []
        return self._held[stage]

    def _find_rejected_with_keys(self, stage: str) -> Iterator[tuple[dict[str, object], set[int]]]:
        rows = self.rejected_rows(stage)
        rows = rows.filter(pc.is_null(rows["retried"]))
        rows = rows.rename_columns(["timestamp" if name == "time" else name for name in rows.column_names])
        for name in pc.unique(rows["input"]).to_pylist():
            own = rows.filter(pc.equal(rows["input"], name))
            for place, numbers in self.finder.holding(name, own["value"].to_pylist(), own).items():
                yield own.slice(place, 1).to_pylist()[0], numbers

    def _forgotten(self, read: Sequence[Manifest], number: int) -> MissingReason | None:
        hashed = int(hash_keys(self.keys, self.keys.column_names)[number])
        for version in read:
            if overlapping(self._replaced_ssts(version), hashed, hashed):
                index = forgotten.newest(self.store, version.app)
                return MissingReason(
                    "forgotten",
                    f"keys were forgotten from rows that {_name(version)} wrote, last at {format_iso(index.time_ms)}; "
                    "or the program returned no row for the key",
                    proved=False,
                )
        return None

    def _replaced_ssts(self, version: Manifest) -> tuple[Sst, ...]:
        """Return the SSTs with rows of this version from which keys were forgotten later."""
        index = forgotten.cached_index(self.store, version.app, at_least=None)
        place = (version.stage, version.version)
        if index.number and place not in self._replaced:
            stored = history.read_stored(self.store, version.app, *place)
            own = (sst for sst in stored.ssts if sst.seq_min <= version.row_seq <= sst.seq_max)
            self._replaced[place] = tuple(sst for sst in own if sst.object in index.ssts)
        return self._replaced.get(place, ())

    def _unmatched(self, reached: Reached, record: RecordLocation) -> MissingReason | None:
        for stage, version in reached.path:
            if join_of(version) is not None:
                topic = find_topic(self.finder.sources, record.topic)
                rows = take_record(topic, self.finder.topics, record)
                if rows is None or not rows.num_rows:
                    return None
                return explain_unmatched(self.store, self.cache, self.heads, stage, version, topic.name, rows)
        return None

    def _late(self, reached: Reached, number: int) -> MissingReason | None:
        stages = (*reached.path, *((self.stage, version) for version in reached.versions))
        for stage, version in stages:
            if version.event_time is None or not version.event_time.late:
                continue
            late, read = version.event_time.late, records_of(version)
            before = history.find(self.store, version.app, version.stage, version.version - 1)
            watermark = before.watermark_ms if before is not None else None
            end_ms = window_end_ms(self.keys.slice(number, 1)) if stage == self.stage else None
            if end_ms is not None and watermark is not None and end_ms > watermark:
                continue
            at = f" (watermark {format_iso(watermark)})" if watermark is not None else ""
            fact = f"{late:,} of {read:,} rows that {_name(version)} read were late{at}"
            if end_ms is not None and watermark is not None:
                ended = f"the window of the key had ended at {format_iso(end_ms)}"
                return MissingReason("late", f"{fact}, and {ended}", proved=late >= read)
            other = "" if late >= read else "; or the program returned no row for the key"
            return MissingReason("late", fact + other, proved=late >= read)
        return None


def _keeps_until_due(version: Manifest) -> bool:
    return version.table is not None and version.event_time is not None and version.event_time.next_due_ms is not None


def window_end_ms(key: pa.Table) -> int | None:
    """Return the end of the time window in a key of one row; None if the key has no window."""
    for column in key.columns:
        if pa.types.is_struct(column.type) and column.type.get_field_index("end") >= 0:
            end = column.combine_chunks().field("end")
            if pa.types.is_timestamp(end.type):
                value = end.cast(pa.timestamp("ms", end.type.tz), safe=False).cast(pa.int64())[0].as_py()
                return int(value) if value is not None else None
    return None


def _collected(stage: str, after: Manifest) -> MissingReason:
    sentence = f"{stage} read it in a version before {_name(after)} that gc has collected"
    return MissingReason("unknown", sentence, proved=False)


def _rejection(stage: str, row: Mapping[str, object]) -> MissingReason:
    message = str(row["message"]).partition("\n")[0]
    return MissingReason("rejected", f"{stage}@v{row['version']} rejected it: {row['error']}: {message}")


def _rewind_after(head: Manifest, version: int) -> str:
    rewind = next((rewind for rewind in head.rewinds if rewind.to < version < rewind.version), None)
    return f"the rewind {head.stage}@v{rewind.version} to v{rewind.to}" if rewind is not None else "a rewind"


def _name(manifest: Manifest) -> str:
    return f"{manifest.stage}@v{manifest.version}"
