"""A topic as a source for `attach`. A batch is a range of offsets between two polls of the topic's end.

Compaction keeps the newest record of each key. So the records from an offset to the end give the rows of all keys that
changed since this offset. Only a tombstone may be missing, because Kafka deletes tombstones `delete.retention.ms` after
compaction. So in three cases the next batch is read as a whole state and compared with the stored rows: after a longer
break, after unread records were deleted, and if the topic was re-created.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from ...common import instants
from ...errors import AnotherTopic, Gone, NotFound, Unavailable
from ...pipeline.kafka.protocol import Kafka, whole_setting
from ...state.records import Range, TopicState, explain_recreated_topic, ranges, restart_input
from ...store.sst.schema import arrow_schema
from ...store.versions.manifest import Input, Manifest
from ..attach.protocol import ClaimNeeded, ReadableBatch, ReadableTable
from .formats import Format, NewFields
from .records import RecordReader, last_of_each_key, merge_rows

_log = logging.getLogger("slackwater")
_SAMPLES, _MIN_SAMPLES = 10_000, 100
"""Numbers of sample records from which columns are inferred: in total, and the minimum for each end of a partition."""
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class TopicTable:
    """The only table of a topic."""

    key: pa.Schema
    values: pa.Schema
    name: str = ""
    kind: str = "topic"


@dataclass(frozen=True, slots=True)
class _Batch:
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    topic_id: str
    time_ms: int
    since_ms: int
    """Time at which no records followed `starts`.

    Kafka keeps later tombstones for `delete.retention.ms` from then on.
    """
    read_ms: int
    """Time at which no records followed `ends`, if known."""
    reason: str = ""
    """Reason why the batch needs the whole state; empty if the changes suffice."""


@dataclass(slots=True)
class FollowedTopic:
    """Implements `FollowedCheckpoint` for a topic. Batches are planned when their numbers are requested.

    `stored` has the stored columns of key and value; None before the first version. Raises `NotFound` if the topic does
    not exist. Raises `Refused` if its records cannot be decoded, or if there are no records from which columns can be
    inferred.
    """

    kafka: Kafka
    topic: str
    formats: Mapping[str, str]
    key: Format
    value: Format
    stored: tuple[pa.Schema, pa.Schema] | None = None
    now_ms: Callable[[], int] = instants.now_ms
    max_records: int = 100_000
    """Maximum number of offsets in one batch."""
    _records: RecordReader = field(init=False)
    _batches: dict[int, _Batch] = field(default_factory=dict, init=False)
    _current: TopicState = field(init=False)
    _pending: str = field(default="", init=False)
    """Reason why the next batch needs the whole state; empty if changes suffice."""
    _read_ms: int = field(default=0, init=False)
    _config: Mapping[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._records = RecordReader(self.kafka, self.topic, self.key, self.value)
        self._config = self.kafka.topic_config(self.topic)
        current = self._current = self.kafka.topic_state(self.topic)
        count = max(_MIN_SAMPLES, _SAMPLES // len(current.ends))
        bounds = [*enumerate(zip(current.earliest, current.ends, strict=True))]
        first = [Range(partition, at, min(end, at + count)) for partition, (at, end) in bounds]
        last = [Range(partition, max(at + count, end - count), end) for partition, (at, end) in bounds]
        self._records.learn(self._records.samples(first, last), self.stored)

    @property
    def location(self) -> str:
        return f"kafka:{self.topic}"

    @property
    def query(self) -> str:
        return self.topic

    @property
    def tables(self) -> tuple[ReadableTable, ...]:
        return (TopicTable(self._records.key_schema, self._records.value_schema),)

    @property
    def is_compacted(self) -> bool:
        return "compact" in self._config.get("cleanup.policy", "compact")

    def notes(self) -> tuple[str, ...]:
        """Return sentences about data that the topic may have lost."""
        current = self.kafka.topic_state(self.topic)
        if self.is_compacted or not any(current.earliest):
            return ()
        return (
            f"note: {self.topic} is not compacted (cleanup.policy={self._config['cleanup.policy']}), and its first "
            f"{sum(current.earliest):,} records are gone: keys whose last record is among them are missing",
        )

    def resume(self, head: Manifest | None, /) -> None:
        self._batches, self._read_ms, self._pending = {}, self.now_ms(), ""
        source = head.inputs.get(self.topic) if head is not None else None
        if head is None or head.attached is None or source is None:
            return
        self._current, at = self._state(), source.offsets
        if reason := self._recreated(source.topic_id, at):
            at, self._pending = self._current.earliest, reason
        elif source.resets and source.resets[-1].ends == at:
            self._pending = f"topic {self.topic!r} was deleted and created again"
        self._read_ms = head.attached.read_ms
        self._batches[head.attached.next_batch - 1] = _Batch(
            at, at, self._current.id, head.time_ms, self._read_ms, self._read_ms
        )

    def claimed_inputs(self, draft: Manifest, /) -> Mapping[str, Input]:
        source = draft.inputs.get(self.topic)
        if source is None or not self._recreated(source.topic_id, source.offsets):
            return draft.inputs
        return draft.inputs | {self.topic: restart_input(source, self._current, draft.version)}

    def committed_batches(self) -> range:
        self._poll()
        return self._planned()

    def readable_batches(self, up_to: int | None = None, /) -> range:
        if not self._batches:
            self._poll()
        # A topic has only its newest state, of which any batch up to `up_to` is a part.
        return self._planned()[-1:]

    def newest_batch(self) -> int:
        return max(tuple(self._batches), default=-1)

    def read_batch(self, batch: int, /) -> ReadableBatch:
        planned = self._batches.get(batch)
        if planned is None:
            raise Gone(f"the plan of batch {batch} of {self.topic} was discarded")
        ids = {self.topic: planned.topic_id}
        return ReadableBatch(
            batch, {self.topic: planned.ends}, None, None, planned.time_ms, topic_ids=ids, read_ms=planned.read_ms
        )

    def read_changes(
        self, table: ReadableTable, after: int, up_to: int, /, *, at_once: int = 1, appended: bool = False
    ) -> Iterator[pa.Table]:
        for number in [number for number in self._batches if number < after]:
            del self._batches[number]
        key = table.key.names
        for first in range(after + 1, up_to + 1, at_once):
            batches = [self._batches[number] for number in range(first, min(first + at_once, up_to + 1))]
            # A batch may be read long after the poll, for instance because the store did not answer.
            late = self._reason_for_late(batches[0].since_ms)
            if reason := next((batch.reason for batch in batches if batch.reason), late):
                _log.warning("%s: the whole topic is read again and compared with the stored rows", reason)
                raise Gone(reason)
            spans = tuple(ranges(batches[0].starts, batches[-1].ends))
            yield merge_rows(self._rows(spans, batches[-1].topic_id), key, self._records.log_schema)

    def read_rows(self, table: ReadableTable, batch: int, /) -> Iterator[pa.RecordBatch]:
        planned = self._batches[batch]
        current = self._current = self._state()
        if self._recreated(planned.topic_id, planned.ends):
            raise ClaimNeeded
        for rows in self._rows(tuple(ranges(current.earliest, planned.ends)), planned.topic_id):
            yield from last_of_each_key([rows], table.key.names).to_batches()

    def _rows(self, spans: tuple[Range, ...], topic_id: str) -> Iterator[pa.Table]:
        try:
            yield from self._records.rows(spans, topic_id)
        except (NewFields, AnotherTopic):
            raise ClaimNeeded from None

    def _planned(self) -> range:
        numbers = tuple(self._batches)
        return range(numbers[0], numbers[-1] + 1) if numbers else range(0)

    def _state(self) -> TopicState:
        try:
            return self.kafka.topic_state(self.topic)
        except NotFound as error:
            raise Unavailable(
                f"topic {self.topic!r} does not exist any more", hint="create it again: attach then continues"
            ) from error

    def _poll(self) -> None:
        now_ms, last = self.now_ms(), next(reversed(self._batches.values()), None)
        current = self._current = self._state()
        if last is not None and self._recreated(last.topic_id, last.ends):
            raise ClaimNeeded
        at = current.earliest if last is None else last.ends
        if current.ends != at:
            reason = "the first version has all rows" if last is None else self._reason_for_whole(last)
            if reason:
                self._plan(_Batch(at, current.ends, current.id, now_ms, self._read_ms, now_ms, reason))
            else:
                self._plan_changes(at, current, now_ms)
            self._pending = ""
        self._read_ms = now_ms

    def _plan_changes(self, at: tuple[int, ...], current: TopicState, now_ms: int) -> None:
        added, total = len(current.ends) - len(at), sum(current.ends) - sum(at)
        at = (*at, *(0,) * added)
        # Records of a key in an old and in a new partition are compared by their times within one batch only.
        count, starts = min(total, 1) if added else -(-total // self.max_records), at
        for number in range(1, count + 1):
            ends = tuple(first + (end - first) * number // count for first, end in zip(at, current.ends, strict=True))
            read_ms = now_ms if number == count else self._read_ms
            self._plan(_Batch(starts, ends, current.id, now_ms, self._read_ms, read_ms))
            starts = ends

    def _plan(self, batch: _Batch) -> None:
        self._batches[self.newest_batch() + 1] = batch

    def _recreated(self, topic_id: str, offsets: tuple[int, ...]) -> str:
        return explain_recreated_topic(self.topic, topic_id, offsets, self._current)

    def _reason_for_whole(self, last: _Batch) -> str:
        if self._pending:
            return self._pending
        gone = [
            f"{self.topic}[{partition}] {at}..{first}"
            for partition, (at, first) in enumerate(zip(last.ends, self._current.earliest, strict=False))
            if at < first
        ]
        if gone:
            return f"records that attach has not read are gone from Kafka ({', '.join(gone)})"
        return ""

    def _reason_for_late(self, since_ms: int) -> str:
        setting = whole_setting(self._config, "delete.retention.ms")
        kept_ms = setting if setting is not None else _DAY_MS
        late_ms = self.now_ms() - since_ms
        if self.is_compacted and late_ms > 0.9 * kept_ms:
            hours, kept = (span_ms / 3_600_000 for span_ms in (late_ms, kept_ms))
            return (
                f"tombstones may be gone: {self.topic} was last read {hours:,.1f} h ago, and keeps them for "
                f"{kept:,.1f} h (delete.retention.ms)"
            )
        return ""


def stored_columns(head: Manifest | None) -> tuple[pa.Schema, pa.Schema] | None:
    """Return the stored columns of key and values of a version's table; None without a table."""
    if head is None or head.table is None:
        return None
    return arrow_schema(head.table.key), arrow_schema(head.table.values)
