"""Comparison of a table with external rows, with a reason for each differing key. `why_not` examines a single key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal

import pyarrow as pa

from ....common.instants import format_iso
from ....errors import NotFound
from ....snapshot.bisect.verdict import RecordLocation
from ....snapshot.cut.graph import Cut, upstream_stages
from ....snapshot.cut.kafka_topics import KafkaTopics
from ....snapshot.diff.key_changes import KeyChange
from ....snapshot.diff.key_history import RowChange
from ....snapshot.query.columns import parse_key
from ....snapshot.query.sql import Bounds
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.sst.arrow_types import python_rows
from ....store.versions import history
from ....store.versions.side_tables import stage_of
from ...key_search.key_fields import NOTHING_DECLARED, DeclaredFields
from ...key_search.matching import MessageDecoder
from .compare import Matching, TableComparison, compare
from .fate import RecordFates
from .key_records import KeyFinder, KeyRecords, find_topic, matching_records, source_topics
from .parting import Parting, find_partings, open_histories
from .reasons import LABELS, MissingReason
from .shared import count_records, doubt_counted
from .theirs import Theirs

DifferenceKind = Literal["differs", "here only", "there only"]
_KINDS: Mapping[str, DifferenceKind] = {"changed": "differs", "added": "here only", "removed": "there only"}
_MAX_CHECKED = 20
"""Maximum number of unreadable offset ranges that are examined for a key without a record."""
_MAX_SEARCHED = 20
"""Maximum number of versions whose records are searched again for more records of a key."""
_ORDER = {kind: number for number, kind in enumerate(LABELS)}


@dataclass(frozen=True, slots=True)
class Place:
    """Table at a cut, with the sources for explanations."""

    store: ObjectStore
    cache: SstCache
    cut: Cut
    table: str
    now_ms: int
    topics: KafkaTopics | None = None
    """Kafka; None if it is not configured. Without Kafka, only the archive is searched for records."""
    declared: DeclaredFields = NOTHING_DECLARED
    formats: MessageDecoder | None = None
    settle: Callable[[MissingReason, pa.Table], MissingReason] = lambda fate, _key: fate
    """Function that completes a record's fate for a key by replays. By default, fates are not completed."""

    @property
    def stage(self) -> str:
        if self.table not in self.cut.tables:
            raise NotFound(f"table at {self.cut.ref}", self.table, self.cut.tables)
        return stage_of(self.cut.tables[self.table])


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """Key that differs, and the reasons."""

    key: Mapping[str, object]
    kind: DifferenceKind
    ours: Mapping[str, object] | None
    theirs: Mapping[str, object] | None
    parting: Parting
    reasons: tuple[MissingReason, ...]
    """Reasons why records of the key, or its row, are missing in the table; empty if none is known to be missing."""
    counted: int
    """Number of readable records of the key that were counted."""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Comparison of a table with external rows, and its explanation."""

    app: str
    ref: str
    comparison: TableComparison
    keys: tuple[KeyDifference, ...]
    """Explained keys, in order of the key."""
    gaps: tuple[str, ...]
    """Sentences about records that could not be searched."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Reasons why records are not in a table."""

    app: str
    table: str
    key: Mapping[str, object]
    row: Mapping[str, object] | None
    """The key's row; None if there is none."""
    reasons: tuple[MissingReason, ...]
    """Reasons why records are not in the row, followed by the reason why the row does not exist."""
    counted: tuple[MissingReason, ...]
    gaps: tuple[str, ...]


def reconcile(place: Place, theirs: Theirs, matching: Matching, *, max_keys: int | None = 50) -> Reconciliation:
    """Compare a table with external rows, and explain the first `max_keys` differing keys (None for all).

    Raises the errors of `compare`.
    """
    store, cache, cut = place.store, place.cache, place.cut
    compared = compare(store, cache, cut, place.table, theirs, matching, max_keys=max_keys)
    partings = find_partings(store, cache, cut, compared, now_ms=place.now_ms)
    search = _Explanation.of(place, compared.changes.keys)
    changes = enumerate(zip(compared.changes, partings, strict=True))
    keys = tuple(search.difference(number, change, parting) for number, (change, parting) in changes)
    return Reconciliation(cut.app, cut.ref, compared, keys, search.found.gaps)


def why_not(
    place: Place,
    key_values: Sequence[object],
    *,
    record: RecordLocation | None = None,
    where: str = "",
    bounds: Bounds | None = None,
) -> Absence:
    """Explain why one record, several records, or all records of a key are not in the row of the key.

    Args:
        place: the table.
        key_values: the values of the key columns, in their order.
        record: the record to look for.
        where: a condition over the columns of an archive that selects the records. Without `record` and `where`, the
            table's lineage selects them.
        bounds: limits of the condition, if the user is not trusted.

    Raises `NotFound` (no such table, topic or column) and `Usage` (a value or the condition is malformed).
    """
    declared = place.cut.tables[place.table].table if place.table in place.cut.tables else None
    if declared is None:
        raise NotFound(f"table at {place.cut.ref}", place.table, place.cut.tables)
    key = parse_key(place.table, declared, key_values)
    given = tuple(_given_records(place, record, where, bounds)) if record or where else None
    search = _Explanation.of(place, key, given)
    (changes,) = open_histories(place.store, place.cache, place.cut, place.table, key, now_ms=place.now_ms)
    newest = next(changes, None)
    row = newest.after if newest is not None else None
    parting = Parting(newest, had_theirs=newest is not None, changes=() if newest is None else (newest,))
    reasons = search.reasons(0, parting, is_missing=row is None)
    (named,) = python_rows(key)
    return Absence(place.cut.app, place.table, named, row, reasons, search.fates_of(0)[1], search.found.gaps)


def _given_records(
    place: Place, record: RecordLocation | None, where: str, bounds: Bounds | None
) -> Iterable[RecordLocation]:
    topics = source_topics(place.store, place.cut.stages, place.stage, place.topics)
    if record is not None:
        yield replace(record, topic=find_topic(topics, record.topic).source.topic)
        return
    for topic in topics:
        yield from matching_records(topic, place.topics, where, topic.readable(), bounds)


@dataclass
class _Explanation:
    """Records of some keys, and their fates."""

    place: Place
    keys: pa.Table
    fates: RecordFates
    found: KeyRecords
    was_given: bool
    _fates: dict[int, tuple[tuple[MissingReason, ...], tuple[MissingReason, ...]]] = field(default_factory=dict)
    """Fates of the records of requested keys, by the key's number; see `fates_of`."""
    _num_searched: int = 0

    @classmethod
    def of(cls, place: Place, keys: pa.Table, records: Sequence[RecordLocation] | None = None) -> _Explanation:
        heads, stage = place.cut.stages, place.stage
        sources = source_topics(place.store, heads, stage, place.topics)
        finder = KeyFinder(heads, stage, keys, sources, place.topics, place.declared, place.formats)
        if records is not None:
            found = KeyRecords({0: list(records)})
        elif place.table != stage:
            found = KeyRecords(other_gaps=[f"{place.table} is a side table: its records are not searched for"])
        else:
            found = finder.find() if keys.num_rows else KeyRecords()
        return cls(place, keys, RecordFates(place.store, place.cache, heads, finder), found, records is not None)

    def fates_of(self, number: int) -> tuple[tuple[MissingReason, ...], tuple[MissingReason, ...]]:
        """Return two tuples: fates of a key's records that are not counted, and of records that are, or may be."""
        if number not in self._fates:
            key = self.keys.slice(number, 1)
            fates = doubt_counted(self._stored_fates(number), partial(self._count_records, number))
            settled = [self.place.settle(fate, key) for fate in fates]
            missing = tuple(fate for fate in settled if fate.kind != "counted")
            self._fates[number] = missing, tuple(fate for fate in settled if fate.kind == "counted")
        return self._fates[number]

    def _count_records(self, number: int, version: str, listed: int) -> int:
        """Return the number of a key's records that a version read; 0 if unknown. `listed` of them are known."""
        if not self.found.gaps and not self.was_given:
            return listed
        if self._num_searched == _MAX_SEARCHED:
            return 0
        self._num_searched += 1
        return count_records(self.place.store, self.place.cut.app, self.fates.finder, number, version)

    def _stored_fates(self, number: int) -> list[MissingReason]:
        exists, place = not self.was_given, self.place
        fates = [self.fates.of_record(record, number, exists=exists) for record in self.found.records.get(number, ())]
        known = {fate.record for fate in fates}
        stages = (place.stage, *upstream_stages(place.cut.stages, place.stage))
        for stage in () if self.was_given or place.table != place.stage else stages:
            for row, numbers in self.fates.rejected_with_keys(stage):
                record = RecordLocation(str(row["topic"]), _int(row["partition"]), _int(row["offset"]))
                if number in numbers and record not in known and row["input"] not in self._channels:
                    fates.append(self.fates.of_record(record, number, exists=True))
        return fates

    @cached_property
    def _channels(self) -> frozenset[str]:
        return frozenset(name for head in self.place.cut.stages.values() for name in head.outputs)

    def difference(self, number: int, change: KeyChange, parting: Parting) -> KeyDifference:
        return KeyDifference(
            key=change.key,
            kind=_KINDS[change.kind],
            ours=change.after,
            theirs=change.before,
            parting=parting,
            reasons=self.reasons(number, parting, is_missing=change.after is None),
            counted=len(self.fates_of(number)[1]),
        )

    def reasons(self, number: int, parting: Parting, *, is_missing: bool) -> tuple[MissingReason, ...]:
        missing, counted = self.fates_of(number)
        newest = parting.changes[0] if parting.changes else None
        change = newest if is_missing else parting.change if parting.had_theirs else None
        gone = self._why_gone(change) if change is not None else None
        reasons = sorted((*missing, *([gone] if gone is not None else [])), key=lambda reason: _ORDER[reason.kind])
        if reasons or counted or not is_missing:
            return tuple(reasons)
        return (self._never(),)

    def _never(self) -> MissingReason:
        """Return the reason why no record of a key is known."""
        topics = self.fates.finder.sources
        where = ", ".join(
            f"{topic.source.topic}[{partition}] up to {end}"
            for topic in topics
            for partition, end in enumerate(topic.end_offsets)
        )
        if not topics:
            return MissingReason("unknown", f"{self.place.stage} reads no topic", proved=False)
        if self.found.gaps:
            return self._not_searched()
        if all(topic.ends is None for topic in topics):
            return MissingReason(
                "absent", f"no record of the key was read; Kafka was not asked for later ones ({where})"
            )
        return MissingReason("absent", f"no record of the key is in {where}")

    def _not_searched(self) -> MissingReason:
        """Return `lost`, `skipped` or `forgotten` if it explains all unreadable records of a key, else `unknown`."""
        found, fates = self.found, list[MissingReason]()
        unknown = MissingReason("unknown", f"no record found, but not all were searched: {found.gaps[0]}", proved=False)
        unreadable = [(topic, extent) for topic, extents in found.unreadable.items() for extent in extents]
        if found.other_gaps or len(unreadable) > _MAX_CHECKED:
            return unknown
        for topic, extent in unreadable:
            ends = {extent.first, extent.end - 1}
            fates += (self.fates.of_record(RecordLocation(topic, extent.partition, at), 0) for at in sorted(ends))
        kinds = {fate.kind for fate in fates} | ({"forgotten"} if found.erased else set())
        if kinds == {"forgotten"} and found.erased:
            return MissingReason("forgotten", f"no record of the key remains: {found.gaps[0]}", proved=False)
        if kinds in ({"lost"}, {"skipped"}):
            return replace(
                fates[0], sentence=f"no record of the key remains: {fates[0].sentence}", record=None, proved=False
            )
        return unknown

    def _why_gone(self, change: RowChange) -> MissingReason | None:
        """Return the reason why a version changed or removed a row; None if a record is the reason."""
        version, at = f"{change.stage}@v{change.version}", format_iso(change.time_ms)
        if change.expired:
            return MissingReason("expired", f"the row expired at {at} ({version})")
        if change.inherited:
            return None
        manifest = history.find(self.place.store, self.place.cut.app, change.stage, change.version)
        if manifest is None:
            return None
        if (rewind := manifest.rewind) is not None:
            return MissingReason("rewound", f"the rewind {version} to v{rewind.to}, at {at}, undid the row")
        if manifest.edited is not None:
            return MissingReason("edited", f"{version} edited the row, by {manifest.edited.by}, at {at}")
        if change.after is None:
            return MissingReason("removed", f"{version} removed the row, at {at}", proved=not change.gap)
        return None


def _int(value: object) -> int:
    assert isinstance(value, int)  # noqa: S101  columns of the table of rejected records
    return value
