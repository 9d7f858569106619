"""`slackwater archive APP --from REF`: what the app has read since a moment, as far as Kafka still has it.

Version by version, so that each object says when its records were read, and nothing is archived that no committed
version read. Killed anywhere, the same command goes on: the index says what is there already.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ...common import instants
from ...common.durations import DAY_MS
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.moments import heads_of, stages_of
from ...snapshot.take.audit_log import record
from ...snapshot.under_way.exclusion import Intent, check_exclusion
from ...state.records import are_two, is_known, ranges
from ...store.archive import index, merge
from ...store.archive.extents import Extent, Extents, common, count, minus, union
from ...store.archive.index import ArchiveIndex
from ...store.archive.merge import TARGET_BYTES, append
from ...store.archive.objects import ArchiveWriter
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest

_AT_ONCE = 200_000
"""Offsets read for one object, at least, where there are so many."""


@dataclass(frozen=True, slots=True)
class TopicFilled:
    """What was added to the archive of a topic, or would be."""

    topic: str
    offsets: int
    """That were added; in a dry run, that Kafka has and the archive has not."""
    records: int
    """Of these offsets; 0 in a dry run, which reads none."""
    gone: tuple[str, ...]
    """What was read since the moment and neither has any more, each as `[0]@10..20`."""


@dataclass(slots=True)
class _Wanted:
    """What was read of a topic since a moment."""

    read: list[tuple[int, Extents]] = field(default_factory=list)
    """When it was committed, and what it was."""


_ByTopic = dict[tuple[str, str], _Wanted]
"""By topic, and its id where that is known."""


def fill(
    store: ObjectStore,
    app: str,
    kafka: Topics,
    since: Cut | None,
    *,
    by: str,
    dry_run: bool = False,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> tuple[TopicFilled, ...]:
    """Add to the archives of an app what it has read since a moment, None for the beginning of its history.

    Of topics of which there is no archive, one is begun. Raises as `StoredApp.archive`, and `Corruption`.
    """
    check_exclusion(store, app, Intent.ARCHIVE, dry_run=dry_run)
    heads = heads_of(store, app, stages_of(store, app))
    wanted: _ByTopic = {}
    for stage, head in sorted(heads.items()):
        _since(store, head, since.stages.get(stage) if since is not None else None, wanted)
    found = []
    for (topic, topic_id), each in sorted(wanted.items()):
        found.append(_fill(store, app, kafka, (topic, topic_id), sorted(each.read), by, on_progress, dry_run=dry_run))
    added = sum(each.records for each in found)
    if added and not dry_run:
        what = f"from {since.ref}" if since is not None else "from the beginning"
        record(store, app, "archive", f"{what}: {added:,} records of {', '.join(each.topic for each in found)}", by)
    return tuple(found)


def _since(store: ObjectStore, head: Manifest, start: Manifest | None, wanted: _ByTopic) -> None:
    """Note what a stage read in each of its versions after one, as far back as its history is there."""
    after = head
    for before in history.backwards(store, head):
        if before.version < after.version and after.traits.reads_records:
            for name, at in after.inputs.items():
                was = before.inputs.get(name)
                if was is not None and was.topic == at.topic:
                    read = (Extent(one.partition, one.first, one.last) for one in ranges(was.offsets, at.offsets))
                    which = (at.topic, at.topic_id if is_known(at.topic_id) else "")
                    wanted.setdefault(which, _Wanted()).read.append((after.time_ms, union(read)))
        after = before
        if start is not None and before.version <= start.version:
            return


def _fill(
    store: ObjectStore,
    app: str,
    kafka: Topics,
    which: tuple[str, str],
    read: list[tuple[int, Extents]],
    by: str,
    on_progress: Callable[[str], None],
    *,
    dry_run: bool,
) -> TopicFilled:
    topic, read_id = which
    earliest, topic_id = kafka.starts(topic), kafka.topic_id(topic)
    is_former = are_two(read_id, topic_id)
    head = _archive_of(store, app, topic, read_id if is_former else topic_id)
    every = minus(union(*(extents for _, extents in read)), head.covered)
    gone: Extents = every
    if earliest is not None and not is_former:
        gone = common(every, (Extent(number, 0, first) for number, first in enumerate(earliest) if first))
    done, added, left = 0, 0, minus(every, gone)
    lost = tuple(map(str, gone))
    if dry_run or not left:
        return TopicFilled(topic, count(left), 0, lost)
    total = count(left)
    for read_ms, extents in _grouped(read, left):
        wanted = minus(common(extents, left), head.covered)
        if not wanted:
            continue
        on_progress(f"{topic}: {done:,} of {total:,} offsets")
        before = head.rows
        head = _append(store, kafka, head, wanted, read_ms, by)
        done, added = done + count(wanted), added + head.rows - before
    return TopicFilled(topic, done, added, lost)


def _archive_of(store: ObjectStore, app: str, topic: str, topic_id: str) -> ArchiveIndex:
    """The archive of the topic of this id, or an empty one."""
    last = index.topics(store, app).get(topic, 0)
    for life in range(last, 0, -1):
        head = index.newest(store, app, topic, life)
        if head is not None and not are_two(head.topic_id, topic_id):
            return head
    return index.empty(app, topic, last + 1, topic_id)


def _grouped(read: list[tuple[int, Extents]], left: Extents) -> Iterator[tuple[int, Extents]]:
    """What versions read, by day and by so many offsets: what an object holds goes at one time."""
    group: Extents = ()
    last_ms = 0
    for read_ms, extents in read:
        if group and (count(group) >= _AT_ONCE or read_ms // DAY_MS != last_ms // DAY_MS):
            yield last_ms, group
            group = ()
        group, last_ms = union(group, common(extents, left)), read_ms
    if group:
        yield last_ms, group


def _append(
    store: ObjectStore, kafka: Topics, head: ArchiveIndex, wanted: Extents, read_ms: int, by: str
) -> ArchiveIndex:
    """Append these offsets, as objects of no more bytes than they shall have."""
    writer, done = ArchiveWriter(), list[Extent]()
    for each in wanted:
        for first in range(each.first, each.end, _AT_ONCE):
            part = Extent(each.partition, first, min(first + _AT_ONCE, each.end))
            for records in kafka.records(head.topic, part.partition, part.first, part.end):
                writer.append(records)
            done.append(part)
            if writer.num_bytes >= TARGET_BYTES // 2:
                head = append(store, head, writer, union(done), read_ms, by=by, now_ms=instants.now_ms())
                writer, done = ArchiveWriter(), []
    return append(store, head, writer, union(done), read_ms, by=by, now_ms=instants.now_ms()) if done else head


@dataclass(frozen=True, slots=True)
class ArchiveMerged:
    """What was merged of the archive of a topic, or would be."""

    topic: str
    before: int
    """Objects that it had."""
    after: int
    """That it has then; in a dry run as many, less those of the first merge."""
    bytes: int
    """Of what was read for it."""


def merge_archives(
    store: ObjectStore, app: str, *, full: bool, by: str, dry_run: bool = False
) -> tuple[ArchiveMerged, ...]:
    """Merge what is due of the archives of an app; with `full`, all objects of one day that are not large yet.

    An archive of which nothing is merged is left out. Raises `Unavailable`: what was merged by then stays merged.
    """
    found = []
    for head in index.all_of(store, app):
        before, read, inputs = len(head.objects), 0, merge.pick(head, DAY_MS, whole=full)
        if dry_run and inputs:
            found.append(ArchiveMerged(head.topic, before, before - len(inputs) + 1, sum(one.bytes for one in inputs)))
            continue
        newest = head
        while inputs:
            read += sum(one.bytes for one in inputs)
            newest = merge.merge(store, newest, inputs, by=by, now_ms=instants.now_ms())
            inputs = merge.pick(newest, DAY_MS, whole=full)
        if read:
            found.append(ArchiveMerged(head.topic, before, len(newest.objects), read))
    return tuple(found)
