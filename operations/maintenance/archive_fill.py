"""Filling of input archives: adds records that an app has read since a moment, if Kafka still has them.

Records are added version by version, so that each object states when its records were read. Only records that a
committed version has read are archived. An interrupted call is resumed by the same command: the index lists the
archived records.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...common import instants
from ...common.durations import DAY_MS
from ...errors import Gone
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.moments import heads_of, stages_of
from ...snapshot.take.audit_log import record_operation
from ...snapshot.under_way.exclusion import Intent, check_exclusion
from ...state.records import is_kafka_id, is_other_topic
from ...store.archive import index, merge
from ...store.archive.extents import Extent, Extents, count_offsets, extents_between, intersect, split, subtract, union
from ...store.archive.index import ArchiveIndex
from ...store.archive.merge import TARGET_BYTES, append
from ...store.archive.objects import ArchiveWriter
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest

_GROUP_OFFSETS = 200_000
"""Number of offsets after which a new archive object is started."""


@dataclass(frozen=True, slots=True)
class TopicFilled:
    """Records of one topic that a call added to the archive; in a dry run, the records to be added."""

    topic: str
    offsets: int
    """Number of added offsets. In a dry run, number of offsets that Kafka has and the archive lacks."""
    records: int
    """Number of records at these offsets; 0 in a dry run, which reads no records."""
    gone: tuple[str, ...]
    """Offsets that the app has read and that neither Kafka nor the archive has, as ranges such as `[0]@10..20`."""


_ReadsByTopic = dict[tuple[str, str], list[tuple[int, Extents]]]
"""Offsets that versions have read, with the versions' commit times, by topic and topic id (empty if unknown)."""


def fill(
    store: ObjectStore,
    app: str,
    kafka: KafkaTopics,
    since: Cut | None,
    *,
    by: str,
    dry_run: bool = False,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> tuple[TopicFilled, ...]:
    """Add the records that an app has read since a moment to its archives.

    With `since` None, all records since the beginning of the app's history are added. Creates the archive of a topic
    that has none. Raises the errors of `StoredApp.archive`, and `Corruption`.
    """
    check_exclusion(store, app, Intent.ARCHIVE, dry_run=dry_run)
    heads = heads_of(store, app, stages_of(store, app))
    reads: _ReadsByTopic = {}
    for stage, head in sorted(heads.items()):
        _add_reads_since(store, head, since.stages.get(stage) if since is not None else None, reads)
    filled = tuple(
        _fill_topic(store, app, kafka, topic_and_id, sorted(read), by, on_progress, dry_run=dry_run)
        for topic_and_id, read in sorted(reads.items())
    )
    added = sum(topic.records for topic in filled)
    if added and not dry_run:
        start = f"from {since.ref}" if since is not None else "from the beginning"
        topics = ", ".join(topic.topic for topic in filled)
        record_operation(store, app, "archive", f"{start}: {added:,} records of {topics}", by)
    return filled


def _add_reads_since(store: ObjectStore, head: Manifest, start: Manifest | None, reads: _ReadsByTopic) -> None:
    later = head
    for earlier in history.iter_backwards(store, head):
        if earlier.version < later.version and later.traits.reads_records:
            for name, at in later.inputs.items():
                earlier_input = earlier.inputs.get(name)
                if earlier_input is not None and earlier_input.topic == at.topic:
                    read = extents_between(earlier_input.offsets, at.offsets)
                    topic = (at.topic, at.topic_id if is_kafka_id(at.topic_id) else "")
                    reads.setdefault(topic, []).append((later.time_ms, read))
        later = earlier
        if start is not None and earlier.version <= start.version:
            return


def _fill_topic(
    store: ObjectStore,
    app: str,
    kafka: KafkaTopics,
    topic_and_id: tuple[str, str],
    read: list[tuple[int, Extents]],
    by: str,
    on_progress: Callable[[str], None],
    *,
    dry_run: bool,
) -> TopicFilled:
    topic, read_id = topic_and_id
    earliest, topic_id = kafka.starts(topic), kafka.topic_id(topic)
    is_former = is_other_topic(read_id, topic_id)
    head = _find_archive(store, app, topic, read_id if is_former else topic_id)
    every = subtract(union(*(extents for _, extents in read)), head.covered)
    gone: Extents = every
    if earliest is not None and not is_former:
        gone = intersect(every, (Extent(number, 0, first) for number, first in enumerate(earliest) if first))
    done, added, remaining = 0, 0, subtract(every, gone)
    if dry_run or not remaining:
        return TopicFilled(topic, count_offsets(remaining), 0, tuple(map(str, gone)))
    total = count_offsets(remaining)
    for read_ms, extents in _group_extents(read, remaining):
        extents_to_read = subtract(intersect(extents, remaining), head.covered)
        if not extents_to_read:
            continue
        on_progress(f"{topic}: {done:,} of {total:,} offsets")
        rows_so_far = head.rows
        head = _append(store, kafka, head, extents_to_read, read_ms, by)
        lost = subtract(extents_to_read, head.covered)
        gone = union(gone, lost)
        done, added = done + count_offsets(extents_to_read) - count_offsets(lost), added + head.rows - rows_so_far
    return TopicFilled(topic, done, added, tuple(map(str, gone)))


def _find_archive(store: ObjectStore, app: str, topic: str, topic_id: str) -> ArchiveIndex:
    last = index.newest_incarnations(store, app).get(topic, 0)
    for number in range(last, 0, -1):
        head = index.newest(store, app, topic, number)
        if head is not None and not is_other_topic(head.topic_id, topic_id):
            return head
    return index.empty_index(app, topic, last + 1, topic_id)


def _group_extents(read: list[tuple[int, Extents]], remaining: Extents) -> Iterator[tuple[int, Extents]]:
    group: Extents = ()
    last_ms = 0
    for read_ms, extents in read:
        if group and (count_offsets(group) >= _GROUP_OFFSETS or read_ms // DAY_MS != last_ms // DAY_MS):
            yield last_ms, group
            group = ()
        group, last_ms = union(group, intersect(extents, remaining)), read_ms
    if group:
        yield last_ms, group


def _append(
    store: ObjectStore, kafka: KafkaTopics, head: ArchiveIndex, extents: Extents, read_ms: int, by: str
) -> ArchiveIndex:
    writer, done = ArchiveWriter(), list[Extent]()
    parts = deque(split(extents, _GROUP_OFFSETS))
    while parts:
        part = parts.popleft()
        try:
            for records in kafka.records(head.topic, part.partition, part.first, part.end):
                writer.append(records)
            done.append(part)
        except Gone as error:
            if error.resume_at <= part.first:
                raise
            # A file is gone, and there may be files after it.
            done += intersect((part,), (Extent(part.partition, 0, error.lost_from),))
            parts.extendleft(subtract((part,), (Extent(part.partition, 0, error.resume_at),)))
        if writer.num_bytes >= TARGET_BYTES // 2:
            head = append(store, head, writer, union(done), read_ms, by=by, now_ms=instants.now_ms())
            writer, done = ArchiveWriter(), []
    return append(store, head, writer, union(done), read_ms, by=by, now_ms=instants.now_ms()) if done else head


@dataclass(frozen=True, slots=True)
class ArchiveMerged:
    """Result of merging the objects in the archive of one topic, or of the dry run."""

    topic: str
    before: int
    after: int
    """Number of objects after the merge. If several merges follow each other, a dry run counts only the first."""
    bytes: int


def merge_archives(
    store: ObjectStore, app: str, *, full: bool, by: str, dry_run: bool = False
) -> tuple[ArchiveMerged, ...]:
    """Merge small objects of an app's archives, where a merge is due.

    With `full`, all objects of the same day that are below the target size are merged. Returns only archives with a
    merge. Raises `Unavailable`; merges that were committed before the error are kept.
    """
    merged = []
    for head in index.iter_archives(store, app):
        num_objects, read, inputs = len(head.objects), 0, merge.pick_inputs(head, DAY_MS, all_sizes=full)
        if dry_run and inputs:
            size = sum(item.bytes for item in inputs)
            merged.append(ArchiveMerged(head.topic, num_objects, num_objects - len(inputs) + 1, size))
            continue
        newest = head
        while inputs:
            read += sum(item.bytes for item in inputs)
            newest = merge.merge(store, newest, inputs, by=by, now_ms=instants.now_ms())
            inputs = merge.pick_inputs(newest, DAY_MS, all_sizes=full)
        if read:
            merged.append(ArchiveMerged(head.topic, num_objects, len(newest.objects), read))
    return tuple(merged)
