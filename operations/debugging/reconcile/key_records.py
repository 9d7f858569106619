"""Records of users' topics that hold keys of a table, found by the table's lineage, in the archive and in Kafka."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....errors import NotFound, Unavailable
from ....snapshot.bisect.verdict import RecordLocation
from ....snapshot.cut.graph import upstream_stages
from ....snapshot.cut.kafka_topics import KafkaTopics
from ....snapshot.query.clauses import parse_statement
from ....snapshot.query.sql import Bounds, run_query, sandboxed_database
from ....state.records import is_kafka_id, is_other_topic
from ....store.archive.extents import Extent, Extents, intersect, subtract, union
from ....store.archive.reading import Archives, TopicArchives
from ....store.objects.protocol import ObjectStore
from ....store.versions.manifest import Input, Manifest
from ...key_search.key_fields import NOTHING_DECLARED, DeclaredFields, KeyFields
from ...key_search.matching import KeyRows, MessageDecoder, Rule, filter_candidates, match_records, message_rows

MAX_RECORDS = 1_000
"""Maximum number of records per key that are followed.

If there are more, the records with the largest offsets are followed.
"""
_MAX_LISTED = 3


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """User's topic from which records reach a stage, with the offsets that can still be read."""

    name: str
    source: Input
    archives: TopicArchives
    in_kafka: Extents
    ends: tuple[int, ...] | None
    """End offsets in Kafka; None if Kafka is not configured, does not answer, or has no such topic."""
    silent: str = ""
    """Error if Kafka does not answer; empty if Kafka answers or is not configured."""

    def readable(self) -> Extents:
        archived = (extent for archive in self.archives.archives for extent in archive.index.covered)
        return union(archived, self.in_kafka)

    def erased(self) -> Extents:
        """Return the offsets of archived records in which keys were forgotten."""
        return union(extent for archive in self.archives.archives for extent in archive.index.forgotten)

    @property
    def end_offsets(self) -> tuple[int, ...]:
        """End offset of each partition: the larger of Kafka's end and the app's position."""
        known = self.ends or ()
        return tuple(
            max(offset, known[partition] if partition < len(known) else 0)
            for partition, offset in enumerate((*self.source.offsets, *([0] * (len(known) - len(self.source.offsets)))))
        )


@dataclass
class KeyRecords:
    """Records that hold some keys, and the records that could not be searched."""

    records: dict[int, list[RecordLocation]] = field(default_factory=dict)
    """Records by number of the key."""
    unreadable: dict[str, Extents] = field(default_factory=dict)
    """Offsets of the records that neither Kafka nor the archive has, by topic."""
    erased: list[str] = field(default_factory=list)
    """Topics with forgotten keys in the archive, whose records Kafka no longer has."""
    other_gaps: list[str] = field(default_factory=list)
    """Sentences on records that could not be searched for other reasons."""
    is_cut_off: bool = False
    """True if `records` has only the newest records of a key."""

    @property
    def gaps(self) -> tuple[str, ...]:
        """Sentences about records that could not be searched; empty if the search covered all records of the stage."""
        return (*self.other_gaps, *self._lost_records(), *self._cut_off())

    def _lost_records(self) -> Iterator[str]:
        for topic, extents in self.unreadable.items():
            more = f" and {len(extents) - _MAX_LISTED} more ranges" if len(extents) > _MAX_LISTED else ""
            listed = ", ".join(f"{topic}{extent}" for extent in extents[:_MAX_LISTED])
            yield f"neither Kafka nor the archive has {listed}{more}"
        for topic in self.erased:
            yield f"keys were forgotten from the archive of {topic}, and Kafka has the records no more"

    def _cut_off(self) -> Iterator[str]:
        if self.is_cut_off:
            yield f"a key has more than {MAX_RECORDS:,} records: only its newest {MAX_RECORDS:,} were followed"

    def add(self, number: int, record: RecordLocation) -> None:
        own = self.records.setdefault(number, [])
        own.append(record)
        if len(own) > MAX_RECORDS:
            del own[0]
            self.is_cut_off = True


def source_topics(
    store: ObjectStore, heads: Mapping[str, Manifest], stage: str, topics: KafkaTopics | None
) -> tuple[SourceTopic, ...]:
    """Return the users' topics that a stage reads, directly or through channels."""
    sources: dict[str, Input] = {}
    for at in (stage, *upstream_stages(heads, stage)):
        for name, source in heads[at].inputs.items():
            if not source.upstream:
                sources.setdefault(name, source)
    app = heads[stage].app
    archives = Archives(lambda: store, app)
    return tuple(_open_topic(archives, name, source, topics) for name, source in sources.items())


def _open_topic(archives: Archives, name: str, source: Input, topics: KafkaTopics | None) -> SourceTopic:
    topic_id = source.topic_id if is_kafka_id(source.topic_id) else ""
    archived = archives.for_topic(source.topic, topic_id)
    try:
        state = topics.state(source.topic) if topics is not None else None
    except Unavailable as error:
        return SourceTopic(name, source, archived, (), None, error.sentence)
    if state is None or is_other_topic(source.topic_id, state.id):
        return SourceTopic(name, source, archived, (), None)
    bounds = enumerate(zip(state.earliest, state.ends, strict=True))
    in_kafka = union(Extent(partition, first, end) for partition, (first, end) in bounds)
    return SourceTopic(name, source, archived, in_kafka, state.ends)


def read_records(topic: SourceTopic, topics: KafkaTopics | None, extents: Extents) -> Iterator[pa.Table]:
    """Yield the records at these offsets that the archive or Kafka still has.

    Offsets with forgotten keys are read from Kafka instead of the archive, if Kafka still has them.
    """
    erased = intersect(topic.erased(), topic.in_kafka)
    for extent in extents:
        archived = subtract(intersect((extent,), topic.archives.covered(extent.partition)), erased)
        for part in archived:
            yield from topic.archives.rows(*_offsets(part))
        if topics is not None:
            for part in subtract((extent,), archived):
                yield from topics.records(topic.source.topic, *_offsets(part))


def _offsets(extent: Extent) -> tuple[int, int, int]:
    return extent.partition, extent.first, extent.end


@dataclass(frozen=True, slots=True)
class KeyFinder:
    """Search for the records that hold keys of a stage's table."""

    heads: Mapping[str, Manifest]
    stage: str
    keys: pa.Table
    sources: tuple[SourceTopic, ...]
    topics: KafkaTopics | None
    declared: DeclaredFields = NOTHING_DECLARED
    formats: MessageDecoder | None = None

    @property
    def fields(self) -> KeyFields:
        return KeyFields(self.heads, {self.stage: self.stage}, self.declared)

    @property
    def _key_rows(self) -> dict[str, KeyRows]:
        return {self.stage: KeyRows(self.keys)}

    def find(self, within: Mapping[str, Extents] | None = None) -> KeyRecords:
        """Search all readable records, or only the offsets in `within`, by topic.

        Raises `Unavailable` and `Corruption`.
        """
        result, fields = KeyRecords(), self.fields
        for topic in self.sources:
            place = topic.source.topic
            result.other_gaps += [topic.silent] if topic.silent else []
            rules = fields.rules_for(topic.name)
            result.other_gaps += [
                f"only the program knows which field of {place} becomes {column} ([forget] in slackwater.toml names it)"
                for column in fields.unclear_columns(topic.name)
            ]
            if not rules:
                continue
            readable = topic.readable()
            asked = tuple(Extent(partition, 0, end) for partition, end in enumerate(topic.end_offsets) if end)
            if within is not None:
                asked = within.get(place, ())
                readable = intersect(readable, asked)
            if missing := subtract(asked, readable):
                result.unreadable[place] = missing
            if subtract(topic.erased(), topic.in_kafka):
                result.erased.append(place)
            self._search(topic, rules, readable, result)
        return result

    def _search(self, topic: SourceTopic, rules: Sequence[Rule], extents: Extents, result: KeyRecords) -> None:
        keys, undecided = self._key_rows, Counter[str]()
        for rows in read_records(topic, self.topics, extents):
            candidates = filter_candidates(rows, rules, keys)
            matches = match_records(candidates, rules, keys, self.formats)
            undecided.update(matches.unproved)
            places = {row: candidates.slice(row, 1).to_pylist()[0] for row in matches.keys}
            for row, tables in sorted(matches.keys.items()):
                place = places[row]
                record = RecordLocation(topic.source.topic, place["partition"], place["offset"])
                for number in tables.get(self.stage, ()):
                    result.add(number, record)
        result.other_gaps += [
            f"{count:,} records of {topic.source.topic} could not be searched: {why}"
            for why, count in undecided.items()
        ]

    def holding(self, place: str, values: Sequence[bytes | None], rows: pa.Table) -> dict[int, set[int]]:
        """Return the numbers of the keys that rejected records of an input hold, by row index.

        `place` is the topic or channel. `rows` has the records in the format of an archive; for a channel, `values` has
        the messages.
        """
        rules, keys, found = self.fields.rules_for(place), self._key_rows, dict[int, set[int]]()
        if place in self.fields.channels:
            for row, value in enumerate(values):
                sent = message_rows(value or b"")
                matches = match_records(sent, rules, keys, self.formats) if sent is not None else None
                for tables in matches.keys.values() if matches is not None else ():
                    found.setdefault(row, set()).update(tables.get(self.stage, ()))
            return found
        matches = match_records(rows, rules, keys, self.formats)
        return {row: tables.get(self.stage, set()) for row, tables in matches.keys.items()}


def find_topic(sources: Sequence[SourceTopic], topic: str) -> SourceTopic:
    """Return the source with this Kafka topic or declared name. Raises `NotFound`."""
    for source in sources:
        if topic in (source.source.topic, source.name):
            return source
    raise NotFound("topic that the table's stage reads", topic, (source.source.topic for source in sources))


def matching_records(
    topic: SourceTopic, topics: KafkaTopics | None, condition: str, extents: Extents, bounds: Bounds | None
) -> Iterator[RecordLocation]:
    """Yield the records for which a condition over the columns of an archive is true.

    `bounds` limits the condition of an untrusted user. Raises `Usage` (the condition is wrong), `NotFound` (no such
    column) and `TooMuch` (a bound was exceeded).
    """
    query = f'SELECT partition, "offset" FROM input WHERE ({condition}) ORDER BY 1, 2'
    if bounds is not None:
        bounds.check_statement(parse_statement(query))
    for rows in read_records(topic, topics, extents):
        with closing(sandboxed_database({"input": rows}, bounds)) as con:
            found = run_query(con, query, bounds=bounds)
        for partition, offset in zip(*(column.to_pylist() for column in found.columns), strict=True):
            yield RecordLocation(topic.source.topic, partition, offset)


def take_record(topic: SourceTopic, topics: KafkaTopics | None, record: RecordLocation) -> pa.Table | None:
    """Return a record in the format of an archive.

    The table is empty if its offset has no record. Returns None if the offset cannot be read.
    """
    extent = Extent(record.partition, record.offset, record.offset + 1)
    if subtract((extent,), topic.readable()):
        return None
    parts = [rows.filter(pc.equal(rows["offset"], record.offset)) for rows in read_records(topic, topics, (extent,))]
    return pa.concat_tables(parts) if parts else pa.table({"offset": pa.array(np.empty(0, np.int64))})
