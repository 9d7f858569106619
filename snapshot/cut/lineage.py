"""The input behind versions: the records of some, on their own inputs and users' topics; and how far all is read."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

from ...state.records import ranges, stretches
from ...state.topics import are_two
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Input, Manifest
from .graph import Cut

Offsets = dict[str, tuple[int, ...]]
"""By topic, the next offset to be read of each partition: what is before it has been read."""


def read_up_to(store: ObjectStore, cut: Cut, stages: Collection[str]) -> Offsets:
    """How far users' topics are in all of these stages of a cut, traced up through every channel.

    Of a topic that comes over several ways, the way that is furthest behind counts. Topics are left out of which nobody
    knows any more, since a sender's version was collected. A manifest for each channel, mostly one that is known.
    """
    return _least(_of(store, cut, cut.stages[stage]) for stage in stages)


def _of(store: ObjectStore, cut: Cut, reader: Manifest) -> Offsets:
    return _least(_by(store, cut, reader, name) for name in reader.inputs)


def _by(store: ObjectStore, cut: Cut, reader: Manifest, name: str) -> Offsets:
    """How far one input of a version is."""
    source = reader.inputs[name]
    if not source.upstream:
        return {source.topic: source.offsets}
    if sent := sender_of(store, reader, name, history.find):
        return _of(store, cut, sent)
    if not source.version and (sender := cut.stages.get(source.upstream)):
        # It has read nothing of what that one sent.
        return {topic: (0,) * len(offsets) for topic, offsets in _of(store, cut, sender).items()}
    return {}


def _least(found: Iterable[Mapping[str, tuple[int, ...]]]) -> Offsets:
    least: Offsets = {}
    for each in found:
        for topic, offsets in each.items():
            known = least.get(topic)
            pairs = zip_longest(known or offsets, offsets, fillvalue=0)
            least[topic] = tuple(min(one, other) for one, other in pairs)
    return least


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """Offsets `start` up to, not including, `end` of one Kafka partition."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.start}..{self.end}"


Read = Callable[[ObjectStore, str, str, int], Manifest | None]
"""As `history.read`, or `history.find`."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a stage read for successive versions of its own. Windows that are empty are left out."""

    stage: str
    direct: tuple[Window, ...]
    """On the stage's own inputs, channels included."""
    sources: tuple[Window, ...]
    """On the users' topics, traced up through every channel; the same as `direct` where there is none."""
    lost: tuple[Window, ...] = ()
    """On all of these, channels and users' topics: what claims passed over, because it was gone. It lies within no
    window of `direct`; those of `sources` may span it."""
    records: int | None = None
    """Of one version, the records and rows in `direct`, of whose offsets not each has one; None where nobody knows."""


def trace(store: ObjectStore, low: Manifest | None, high: Manifest) -> Lineage:
    """The windows of what one stage read after version `low`, None for the beginning, up to and with `high`.

    What a clone was born with is not traced into the app that it came from. Where `low` was undone by a rewind, it is
    the version of before that both follow from. Raises `NotFound` when a manifest between the two, or of the stages
    upstream, is gone.
    """
    start = _shared(store, low or _first(store, high), high)
    gone = _lost_between(store, start, high)
    own, users = direct(start, high, gone), {source.topic for source in high.inputs.values() if not source.upstream}
    sources, lost = [window for window in own if window.topic in users], set(gone)
    for name, source in high.inputs.items():
        earlier = start.inputs.get(name)
        after = earlier.version if earlier else 0
        if source.upstream and source.version > after and (sent := sender_of(store, high, name)) is not None:
            sent_before = sender_of(store, start, name, history.find) if earlier is not None else None
            upstream = trace(store, sent_before or _sent_before(store, sent, name, earlier), sent)
            sources += upstream.sources
            lost |= set(upstream.lost)
    # One window a partition: two ways up to one topic may both have read it.
    hulls: dict[tuple[str, int], Window] = {}
    for window in sources:
        place = (window.topic, window.partition)
        other = hulls.get(place, window)
        hulls[place] = Window(*place, min(window.start, other.start), max(window.end, other.end))
    # Of a query of Spark's, nobody has counted them.
    counted = high.version == start.version + 1 and high.attached is None
    records = records_of(high) if counted else None
    return Lineage(high.stage, own, tuple(sorted(hulls.values())), tuple(sorted(lost)), records)


def records_of(manifest: Manifest) -> int:
    """How many records and rows a version has read."""
    return sum(read.rows for read in manifest.inputs.values())


def sender_of(store: ObjectStore, reader: Manifest, name: str, read: Read = history.read) -> Manifest | None:
    """The version of a channel's sender up to which a version of its reader has read it; None before the first.

    Where the reader was rewound and has not read on since, that of then: it stands right before the sender's own
    rewind. Where it is gone, `read` says what to do: raise `NotFound`, or give None.
    """
    source = reader.inputs[name]
    following = history.find(store, reader.app, source.upstream, source.version + 1) if reader.rewinds else None
    if following is not None and following.rewind is not None and following.migration <= reader.migration:
        then = read(store, reader.app, reader.stage, reader.rewinds[-1].to)
        return sender_of(store, then, name, read) if then is not None else None
    return read(store, reader.app, source.upstream, source.version) if source.version else None


def _shared(store: ObjectStore, low: Manifest, high: Manifest) -> Manifest:
    ranges = high.follows()
    if any(low.version in each for each in ranges) or low.stage != high.stage:
        return low
    last = max((min(each[-1], low.version) for each in ranges if each[0] <= low.version), default=0)
    return history.find(store, high.app, high.stage, last) or low if last else low


def losses(manifest: Manifest) -> tuple[Window, ...]:
    """What a claim passed over on the stage's own inputs, by topic and partition; nothing for other versions."""
    return tuple(
        Window(lost.topic, partition, start, end)
        for _, lost in sorted(manifest.lost.items())
        for partition, (start, end) in enumerate(zip(lost.starts, lost.ends, strict=False))
        if end > start
    )


def direct(low: Manifest, high: Manifest, lost: Iterable[Window]) -> tuple[Window, ...]:
    """The windows between two versions of one stage on the stage's own inputs, by topic and partition.

    What was `lost` in between is left out of them. Where an input was reset in between, there are two of a partition,
    and more: what was read twice lies in several, and what was skipped in none.
    """
    found: list[Window] = []
    for name, source in sorted(high.inputs.items()):
        earlier = low.inputs.get(name)
        if source.upstream and earlier is not None and are_two(earlier.topic_id, source.topic_id):
            earlier = None  # its topic was made again, and has offsets of its own
        # Partitions that a topic got since are read from their beginning.
        read = [one for starts, ends in stretches(earlier, source) for one in ranges(starts, ends)]
        read.sort(key=lambda one: one.partition)
        found += (Window(source.topic, one.partition, one.first, one.last) for one in read)
    for gone in lost:
        found = [part for window in found for part in _without(window, gone)]
    return tuple(found)


def _without(window: Window, gone: Window) -> Iterator[Window]:
    if (window.topic, window.partition) != (gone.topic, gone.partition):
        yield window
        return
    for start, end in ((window.start, min(window.end, gone.start)), (max(window.start, gone.end), window.end)):
        if start < end:
            yield Window(window.topic, window.partition, start, end)


def _lost_between(store: ObjectStore, low: Manifest, high: Manifest) -> tuple[Window, ...]:
    """What claims after `low`, up to `high`, passed over. Reads versions only where counts say that any did."""
    if all(name in low.inputs and low.inputs[name].lost == read.lost for name, read in high.inputs.items()):
        return ()
    return tuple(window for each in history.followed(store, high, low.version) for window in losses(each))


def _sent_before(store: ObjectStore, sent: Manifest, channel: str, read: Input | None) -> Manifest:
    """What a sender had sent of which a reader stands at `read`, where it had another name then; else its first."""
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
    if history.before(store, manifest) is None:
        return manifest
    first = history.first_version(store, manifest.app, manifest.stage)
    return history.read(store, manifest.app, manifest.stage, min(first, manifest.version))


def rows_read(manifest: Manifest) -> int | None:
    """Records that a version read; None where nobody counts them: offsets of files are no records."""
    if manifest.attached is not None and manifest.attached.others:
        return None
    return sum(source.rows for source in manifest.inputs.values())
