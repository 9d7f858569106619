"""Background thread that appends the records read by committed batches to the app's input archive.

Readers write records to a spool on this machine. Records that are missing in the spool, after a crash or if tasks run
on other machines, are read from Kafka again. Batches do not wait. Manifests have the read offsets, and the archive's
index has the archived offsets. The next run archives the difference, if Kafka still has these records.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from ...common import instants, runtime
from ...common.durations import DAY_MS
from ...errors import CommitConflict, Gone, SlackwaterError, Unavailable
from ...state.records import is_kafka_id, read_spans
from ...store.archive import index, merge
from ...store.archive.extents import Extent, Extents, count_offsets, extents_between, intersect, split, subtract, union
from ...store.archive.index import INDEXES, ArchiveIndex
from ...store.archive.merge import append
from ...store.archive.objects import ArchiveWriter
from ...store.objects.protocol import ObjectStore
from ...store.versions.apps import read_app
from ...store.versions.manifest import Input, Manifest
from ..kafka.columns import MessageColumns
from ..kafka.protocol import Kafka
from ..listener import ArchiveState, Listener
from ..source.spool import InputSpool, SpooledFile

_log = logging.getLogger("slackwater")

_EVERY_S = 5.0
_CHUNK_OFFSETS = 200_000
"""Number of pending offsets at which records are archived at once, without waiting for the interval."""
_RETRY_S = 30.0
_TOPIC_CHECK_S = 60.0
"""Seconds between checks that a topic in Kafka has not been created again."""
_SWEEP_EVERY = 200
"""Number of new indexes after which replaced indexes are deleted."""
_MERGES_WITHIN = 16
"""Divisor of the retention: a merged object covers at most this fraction, because objects expire as a whole."""


@dataclass(slots=True)
class _TopicArchive:
    """State of one topic's archive. Other threads write only `pending`, under the lock."""

    name: str
    keep_ms: int
    first_inputs: dict[str, Input] = field(default_factory=dict)
    pending: Extents = ()
    """Ranges that batches have read and that may not be archived."""
    read_ms: int = 0
    head: ArchiveIndex | None = None
    checked_s: float = float("-inf")
    retry_s: float = 0.0
    error: str = ""
    swept: int = 0


class Archiver(Listener):
    """Archives the input of one runner's stages. `on_version` is thread-safe; call other methods from one thread.

    Args:
        keep_ms: Returns the retention of a topic's archive; None for topics that are not archived.
        spool: Spool in which readers leave records; None if the readers run on other machines.
    """

    def __init__(
        self,
        store: ObjectStore,
        app: str,
        kafka: Kafka,
        keep_ms: Callable[[str], int | None],
        *,
        spool: InputSpool | None,
        by: str,
        patience_s: float,
        report: Callable[[tuple[ArchiveState, ...]], None] = lambda _states: None,
    ) -> None:
        self._store, self._app, self._kafka, self._keep_ms = store, app, kafka, keep_ms
        self._spool, self._by, self._patience_s, self._report = spool, by, patience_s, report
        self._heads: dict[str, Manifest] = {}
        self._topics: dict[str, _TopicArchive] = {}
        self._lock = runtime.lock()
        self._wake = runtime.event()

    def on_version(self, head: Manifest, _tip: Manifest | None = None) -> None:
        """Add the records that were read since the stage's previous version to the ranges to archive."""
        with self._lock:
            previous = self._heads.get(head.stage)
            self._heads[head.stage] = head
            for name, source in head.inputs.items():
                keep_ms = self._keep_ms(source.topic)
                if keep_ms is None:
                    continue
                topic = self._topics.setdefault(source.topic, _TopicArchive(source.topic, keep_ms))
                last_input = previous.inputs.get(name) if previous is not None else None
                if last_input is None or last_input.topic != source.topic:
                    topic.first_inputs[head.stage] = source
                elif head.traits.reads_records:
                    topic.pending = union(topic.pending, extents_between(last_input.offsets, source.offsets))
                    topic.read_ms = max(topic.read_ms, head.time_ms)
                    if count_offsets(topic.pending) >= _CHUNK_OFFSETS:
                        self._wake.set()

    @contextmanager
    def running(self, drain_s: Callable[[], float]) -> Iterator[None]:
        """Run the archiver in a thread during the block, then wait up to `drain_s()` seconds for pending records."""
        over = runtime.event()
        thread = runtime.thread(self._work, over, name="archiver")
        thread.start()
        try:
            yield
        finally:
            over.set()
            self._wake.set()
            thread.join(drain_s())

    def _work(self, over: runtime.Event) -> None:
        runtime.lower_priority()
        while not over.is_set():
            self.archive_pending(over)
            self._report(self.states)
            self._wake.wait(_EVERY_S)
            self._wake.clear()
        for topic in self._topics.values():
            topic.retry_s = 0.0
        self.archive_pending(over, merging=False)

    @property
    def states(self) -> tuple[ArchiveState, ...]:
        with self._lock:
            return tuple(
                ArchiveState(
                    self._app,
                    topic.name,
                    count_offsets(topic.pending),
                    len(topic.head.objects) if topic.head is not None else 0,
                    topic.head.bytes if topic.head is not None else 0,
                    topic.error,
                )
                for topic in self._topics.values()
            )

    def archive_pending(self, over: runtime.Event | None = None, *, merging: bool = True) -> None:
        """Archive pending records and, with `merging`, merge objects. Failures are retried later."""
        with self._lock:
            topics = tuple(self._topics.values())
        for topic in topics:
            if runtime.monotonic() < topic.retry_s:
                continue
            try:
                self._archive(topic)
                if merging:
                    self._merge(topic, over or runtime.event())
                topic.error = ""
            except SlackwaterError as error:
                self._record_failure(topic, error.message, expected=isinstance(error, Unavailable | CommitConflict))
            except Exception as error:
                _log.debug("archiving %s of %s", topic.name, self._app, exc_info=True)
                self._record_failure(topic, f"{type(error).__name__}: {error}", expected=False)

    def _record_failure(self, topic: _TopicArchive, why: str, *, expected: bool) -> None:
        topic.retry_s, topic.checked_s = runtime.monotonic() + _RETRY_S, float("-inf")
        if topic.error != why:
            log = _log.info if expected else _log.warning
            log(
                "the input archive of %s is delayed: %s offsets of %s to archive: %s",
                self._app,
                count_offsets(topic.pending),
                topic.name,
                why,
            )
        topic.error = why

    def _archive(self, topic: _TopicArchive) -> None:
        now_s = runtime.monotonic()
        if now_s - topic.checked_s > _TOPIC_CHECK_S:
            self._open_archive(topic)
            topic.checked_s = now_s
        assert topic.head is not None  # noqa: S101  it was opened
        while pending := self._unarchived(topic):
            topic.head = self._append(topic, topic.head, pending)
            if self._unarchived(topic) == pending:
                break

    def _open_archive(self, topic: _TopicArchive) -> None:
        with self._lock:
            inputs = list(topic.first_inputs.values())
        read_app(self._store, self._app)  # raises for a removed app, which must not be recreated
        # The topic id is the one that the stages read, because Kafka may have a different topic of that name by now.
        read = (source.topic_id for source in inputs if is_kafka_id(source.topic_id))
        topic_id, previous = next(read, "") or self._kafka.topic_id(topic.name), topic.head
        incarnation = (
            previous.life
            if previous is not None
            else index.newest_incarnations(self._store, self._app).get(topic.name, 1)
        )
        head = index.newest(self._store, self._app, topic.name, incarnation, previous=previous)
        if head is not None and topic_id and head.topic_id not in ("", topic_id):
            _log.warning(
                "topic %s was deleted and created again: its records go to a new input archive of %s; the old archive "
                "is kept",
                topic.name,
                self._app,
            )
            incarnation, head = incarnation + 1, None
        begins = tuple(map(min, zip(*(source.offsets for source in inputs), strict=False))) if inputs else ()
        empty = index.empty_index(self._app, topic.name, incarnation, topic_id)
        initial = index.begin_update(begins)
        topic.head = head or index.change(self._store, empty, initial, by=self._by, now_ms=instants.now_ms())
        # Ranges that earlier runs read and did not archive.
        missing = topic.head.unarchived(
            read for source in inputs for read in read_spans(None, source, with_former_topics=False)
        )
        with self._lock:
            topic.pending = union(topic.pending, missing)
            topic.first_inputs.clear()

    def _unarchived(self, topic: _TopicArchive) -> Extents:
        assert topic.head is not None  # noqa: S101  it was opened
        with self._lock:
            topic.pending = subtract(topic.pending, topic.head.covered)
            return topic.pending

    def _append(self, topic: _TopicArchive, head: ArchiveIndex, pending: Extents) -> ArchiveIndex:
        spooled = self._spool.list_files(topic.name) if self._spool is not None else []
        writer, read, gone = ArchiveWriter(), list[Extent](), list[Extent]()
        for part, source in _parts_with_files(pending, spooled):
            lost: list[Gone] = []
            for records in self._records(head, part, source, lost):
                writer.append(records)
            available = subtract((part,), self._lost_range(topic.name, part, lost)) if lost else (part,)
            gone += subtract((part,), available)
            read += available
            if writer.num_bytes >= merge.TARGET_BYTES // 2:
                break
        index_after, now_ms = head, instants.now_ms()
        if read:
            read_ms = topic.read_ms or now_ms
            index_after = append(self._store, head, writer, union(read), read_ms, by=self._by, now_ms=now_ms)
        for extent in gone:
            _log.info("%s%s of %s is gone from Kafka, and not in its input archive", topic.name, extent, self._app)
        with self._lock:
            topic.pending = subtract(topic.pending, gone)
        for file in spooled:
            if not subtract((file.extent,), index_after.covered):
                file.path.unlink(missing_ok=True)
        return index_after

    def _records(
        self, head: ArchiveIndex, part: Extent, source: SpooledFile | None, lost: list[Gone]
    ) -> Iterator[pa.Table]:
        if source is not None:
            try:
                yield from source.read_records(part)
            except OSError:
                source.path.unlink(missing_ok=True)  # so that the retry reads from Kafka
                raise
            return
        where, topic_id = (head.topic, part.partition, part.first, part.end), head.topic_id
        for chunk in self._kafka.read(*where, patience_s=self._patience_s, deletion_errors=lost, topic_id=topic_id):
            yield pa.Table.from_batches([MessageColumns(chunk).to_archive_batch()])

    def _lost_range(self, topic: str, part: Extent, errors: Sequence[Gone]) -> Extents:
        first = self._kafka.offset_bounds(topic)[0][part.partition]
        spans = [(0, first), *((error.lost_from, error.resume_at) for error in errors)]
        return intersect((part,), union(*((Extent(part.partition, *span),) for span in spans if span[1])))

    def _merge(self, topic: _TopicArchive, over: runtime.Event) -> None:
        assert topic.head is not None  # noqa: S101  it was opened
        span_ms = max(1, min(DAY_MS, topic.keep_ms // _MERGES_WITHIN))
        while not over.is_set() and (inputs := merge.pick_inputs(topic.head, span_ms)):
            topic.head = merge.merge(self._store, topic.head, inputs, by=self._by, now_ms=instants.now_ms())
        if topic.head.number - topic.swept >= _SWEEP_EVERY:
            topic.swept = topic.head.number
            for info in index.replaced_indexes(INDEXES.listed(self._store, topic.head.prefix)):
                self._store.delete(info.key)


def _parts_with_files(pending: Extents, spooled: Sequence[SpooledFile]) -> Iterator[tuple[Extent, SpooledFile | None]]:
    parts: list[tuple[Extent, SpooledFile | None]] = []
    for file in spooled:
        in_file = intersect(pending, (file.extent,))
        parts += [(part, file) for part in in_file]
        pending = subtract(pending, in_file)
    parts += [(part, None) for part in split(pending, _CHUNK_OFFSETS)]
    return iter(sorted(parts, key=lambda pair: pair[0]))
