"""Lineage of versions: the ranges of offsets (windows) that versions read, from their inputs and users' topics."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

from ...state.records import is_other_topic, ranges, read_spans
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Input, Manifest
from .graph import Cut

Offsets = dict[str, tuple[int, ...]]


def offsets_read_by_all(store: ObjectStore, cut: Cut, stages: Collection[str]) -> Offsets:
    """Return the offsets of users' topics up to which all of these stages have read, directly or through channels.

    If a stage depends on a topic over several paths of channels, the lowest offset counts. Topics are left out if a
    sender's version on the path was collected. Reads a manifest for each channel, usually a cached one.
    """
    return _minimum(_offsets_of(store, cut, cut.stages[stage]) for stage in stages)


def _offsets_of(store: ObjectStore, cut: Cut, reader: Manifest) -> Offsets:
    return _minimum(_offsets_of_input(store, cut, reader, name) for name in reader.inputs)


def _offsets_of_input(store: ObjectStore, cut: Cut, reader: Manifest, name: str) -> Offsets:
    source = reader.inputs[name]
    if not source.upstream:
        return {source.topic: source.offsets}
    if sent := sender_version_read(store, reader, name, history.find):
        return _offsets_of(store, cut, sent)
    if not source.version and (sender := cut.stages.get(source.upstream)):
        # The reader has read nothing from this sender.
        return {topic: (0,) * len(offsets) for topic, offsets in _offsets_of(store, cut, sender).items()}
    return {}


def _minimum(offsets_by_path: Iterable[Mapping[str, tuple[int, ...]]]) -> Offsets:
    least: Offsets = {}
    for path_offsets in offsets_by_path:
        for topic, offsets in path_offsets.items():
            previous = least.get(topic)
            pairs = zip_longest(previous or offsets, offsets, fillvalue=0)
            least[topic] = tuple(min(left_offset, right_offset) for left_offset, right_offset in pairs)
    return least


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """Half-open range of offsets of one Kafka partition, from `start` to `end`."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.start}..{self.end}"


VersionReader = Callable[[ObjectStore, str, str, int], Manifest | None]
"""Function that reads a version.

For a missing version, `history.read` raises `NotFound`; `history.find` returns None.
"""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Input that a stage read to produce consecutive versions. Windows are never empty."""

    stage: str
    direct: tuple[Window, ...]
    sources: tuple[Window, ...]
    lost: tuple[Window, ...] = ()
    """Windows of the topics in `direct` and `sources` that claims skipped because the records were lost.

    No window of `direct` contains them; windows of `sources` may contain them.
    """
    records: int | None = None
    """Number of records read from `direct`; None if unknown, or for several versions. Some offsets have no record."""


def trace(store: ObjectStore, low: Manifest | None, high: Manifest) -> Lineage:
    """Return the input windows of a stage after version `low` (None for its beginning), up to and including `high`.

    The initial state of a clone is not traced into the clone's source. If a rewind undid `low`, the newest version
    before the undone versions is used instead. Raises `NotFound` if a manifest between the two, or of an upstream
    stage, is gone.
    """
    start = _last_common(store, low or _first(store, high), high)
    skipped = _lost_between(store, start, high)
    own, users = (
        direct_windows(start, high, skipped),
        {source.topic for source in high.inputs.values() if not source.upstream},
    )
    sources, lost = [window for window in own if window.topic in users], set(skipped)
    for name, source in high.inputs.items():
        earlier = start.inputs.get(name)
        after = earlier.version if earlier else 0
        if source.upstream and source.version > after and (sent := sender_version_read(store, high, name)) is not None:
            sent_before = sender_version_read(store, start, name, history.find) if earlier is not None else None
            upstream = trace(store, sent_before or _sent_before(store, sent, name, earlier), sent)
            sources += upstream.sources
            lost |= set(upstream.lost)
    # One window per partition, even if the topic was read over two channels.
    hulls: dict[tuple[str, int], Window] = {}
    for window in sources:
        place = (window.topic, window.partition)
        other = hulls.get(place, window)
        hulls[place] = Window(*place, min(window.start, other.start), max(window.end, other.end))
    # Records of attached Spark queries are not counted.
    counted = high.version == start.version + 1 and high.attached is None
    records = records_of(high) if counted else None
    return Lineage(high.stage, own, tuple(sorted(hulls.values())), tuple(sorted(lost)), records)


def records_of(manifest: Manifest) -> int:
    return sum(read.rows for read in manifest.inputs.values())


def sender_version_read(
    store: ObjectStore, reader: Manifest, name: str, read: VersionReader = history.read
) -> Manifest | None:
    """Return the sender's version up to which a reader has read a channel; None if no version was read.

    If the reader was rewound and has read nothing since, returns the version up to which it had read at the target of
    the rewind. A rewind of the sender may have undone that version. If that version is gone, `read` raises `NotFound`
    or returns None.
    """
    source = reader.inputs[name]
    following = history.find(store, reader.app, source.upstream, source.version + 1) if reader.rewinds else None
    if following is not None and following.rewind is not None and following.migration <= reader.migration:
        then = read(store, reader.app, reader.stage, reader.rewinds[-1].to)
        return sender_version_read(store, then, name, read) if then is not None else None
    return read(store, reader.app, source.upstream, source.version) if source.version else None


def _last_common(store: ObjectStore, low: Manifest, high: Manifest) -> Manifest:
    ranges = high.base_versions()
    if any(low.version in version_range for version_range in ranges) or low.stage != high.stage:
        return low
    last = max(
        (min(version_range[-1], low.version) for version_range in ranges if version_range[0] <= low.version), default=0
    )
    return history.find(store, high.app, high.stage, last) or low if last else low


def skipped_windows(manifest: Manifest) -> tuple[Window, ...]:
    """Return the windows that a claim skipped on the stage's own inputs, because Kafka had lost the records.

    Ordered by topic and partition. Empty for versions other than claims.
    """
    return tuple(
        Window(lost.topic, partition, start, end)
        for _, lost in sorted(manifest.lost.items())
        for partition, (start, end) in enumerate(zip(lost.starts, lost.ends, strict=False))
        if end > start
    )


def direct_windows(low: Manifest, high: Manifest, lost: Iterable[Window]) -> tuple[Window, ...]:
    """Return the windows between two versions of a stage on the stage's own inputs, ordered by topic and partition.

    Windows in `lost` are excluded. If an input was reset in between, a partition has several windows. Records that were
    read twice are in two windows; skipped records are in no window.
    """
    windows: list[Window] = []
    for name, source in sorted(high.inputs.items()):
        earlier = low.inputs.get(name)
        if source.upstream and earlier is not None and is_other_topic(earlier.topic_id, source.topic_id):
            earlier = None  # the topic was recreated, so the old offsets have no meaning
        # Partitions added since are read from their beginning.
        read = [offset_range for starts, ends in read_spans(earlier, source) for offset_range in ranges(starts, ends)]
        read.sort(key=lambda offset_range: offset_range.partition)
        windows += (
            Window(source.topic, offset_range.partition, offset_range.first, offset_range.last) for offset_range in read
        )
    for gone in lost:
        windows = [part for window in windows for part in _subtract(window, gone)]
    return tuple(windows)


def _subtract(window: Window, gone: Window) -> Iterator[Window]:
    if (window.topic, window.partition) != (gone.topic, gone.partition):
        yield window
        return
    for start, end in ((window.start, min(window.end, gone.start)), (max(window.start, gone.end), window.end)):
        if start < end:
            yield Window(window.topic, window.partition, start, end)


def _lost_between(store: ObjectStore, low: Manifest, high: Manifest) -> tuple[Window, ...]:
    if all(name in low.inputs and low.inputs[name].lost == read.lost for name, read in high.inputs.items()):
        return ()
    return tuple(
        window
        for version in history.iter_base_versions(store, high, low.version)
        for window in skipped_windows(version)
    )


def _sent_before(store: ObjectStore, sent: Manifest, channel: str, read: Input | None) -> Manifest:
    """Return the newest version that a renamed sender committed under the former name, and that the reader has read.

    `read` is the reader's input: a version counts as read if its end offsets are at most the input's offsets. Returns
    the first version under the present name if the sender was not renamed, or if the reader has read no earlier
    version.
    """
    first = _first(store, sent)
    if not first.former_name or read is None:
        return first
    former, offsets = first.formerly[-1], read.offsets

    def is_read(manifest: Manifest) -> bool:
        output = manifest.outputs.get(channel)
        return output is None or all(map(int.__le__, output.ends, offsets))

    if (last := history.find(store, sent.app, former.stage, former.version)) is None:
        return first
    version, begin = partial(history.read, store, sent.app), partial(history.first_version, store, sent.app)
    return history.newest_where(version, begin, last, is_read) or first


def _first(store: ObjectStore, manifest: Manifest) -> Manifest:
    if history.previous_version(store, manifest) is None:
        return manifest
    first = history.first_version(store, manifest.app, manifest.stage)
    return history.read(store, manifest.app, manifest.stage, min(first, manifest.version))


def rows_read(manifest: Manifest) -> int | None:
    """Return the number of records that a version read; None if unknown, such as for a file source."""
    if manifest.attached is not None and manifest.attached.others:
        return None
    return sum(source.rows for source in manifest.inputs.values())
