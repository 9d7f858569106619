"""What the channels of a cut hold, sent and not yet consumed, and how far a reader goes on where records are gone.

What is in flight follows from the manifests: where the reader stands, where the sender stood, and which attempts
counted in between.

Of records that are gone from Kafka before their reader: it gets all rows of an upstream version or none. So versions
that lie partly in the gap are passed over whole, and everything up to the last of them with it, the markers of
snapshots too. Versions whose rows are all there are never passed over for the sake of a marker: those are found in
manifests, not in Kafka.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from msgspec.structs import replace

from ...state import records
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Input, Lost, Manifest, Output
from .graph import Channel, Cut, channels


@dataclass(frozen=True, slots=True)
class InFlight:
    """Records sent before the sender's version and not yet consumed by the receiver's, on one channel.

    They lie in Kafka at `topic[p]` from `starts[p]` up to, not including, `ends[p]`, in messages whose
    attempt is one of `attempts`; anything else in that range is to be skipped.
    """

    channel: str
    topic: str
    sender: str
    receiver: str
    """Empty when no stage had read the channel yet."""
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    attempts: tuple[str, ...]
    rows: int
    """Records that the sender's versions `after`+1..`up_to` wrote. A clone's first version wrote for all readers: of a
    channel with several, one may have had its share of them."""
    counts: tuple[int, ...]
    """Records by Kafka partition: sent by the sender since the channel began, less those consumed and those lost. Empty
    where the receiver began in the middle."""
    after: int
    up_to: int
    schema: str
    topic_id: str = ""
    """Of the topic, as `Output.topic_id`."""


def in_flight(store: ObjectStore, cut: Cut) -> tuple[InFlight, ...]:
    """What the channels of the cut hold, senders upstream first; nothing for channels that are empty.

    Reads the senders' manifests between what was consumed and the cut. With several receivers of one channel
    there is one entry for each that lags.
    """
    found = (channel_state(store, cut, channel) for channel in channels(cut))
    return tuple(state for state in found if state.attempts)


def channel_state(store: ObjectStore, cut: Cut, channel: Channel, until: Input | None = None) -> InFlight:
    """What one receiver has still to read of a channel, up to the cut or up to where another receiver is.

    Without attempts when that is nothing. For a channel that nobody read yet, everything that is kept; for one whose
    reader was retired nothing, as nobody waits for it. Raises `NotFound` when a manifest of the sender's is gone.
    """
    sender = cut.stages[channel.sender]
    output = sender.outputs[channel.name]
    given_up = channel.input is None and _given_up(store, cut, channel)
    reader = channel.input or (None if given_up else left_at(cut.stages.values(), channel.name, channel.sender))
    if reader is not None:
        after, starts, passed = reader.version, reader.offsets, reader.passed
    elif given_up:
        after, starts, passed = sender.version, output.ends, output.sent
    else:
        after = history.first_version(store, cut.app, channel.sender) - 1
        starts = passed = (0,) * len(output.ends)
    if until is None:
        up_to, ends, sent = sender.version, output.ends, output.sent
    else:
        # Two readers of a clone may stand within its sender's first version, at what was copied for each of them.
        within = until.version == after and until.offsets != starts
        up_to, ends, sent = until.version + within, until.offsets, until.passed
    written = records.sent(channel.name, history.between(store, cut.app, channel.sender, after, up_to))
    return InFlight(
        channel=channel.name,
        topic=output.topic,
        sender=channel.sender,
        receiver=channel.receiver,
        starts=starts,
        ends=ends,
        attempts=tuple(written.attempts),
        rows=written.rows,
        counts=records.difference(passed, sent),
        after=after,
        up_to=up_to,
        schema=output.schema,
        topic_id=output.topic_id,
    )


def left_at(heads: Iterable[Manifest], channel: str, sender: str) -> Input | None:
    """Where the last reader of a channel stopped, before a migration gave it to a stage that has not begun yet."""
    left = (head.stopped[channel] for head in heads if channel in head.stopped)
    return max((at for at in left if at.upstream == sender), key=lambda at: at.version, default=None)


def _given_up(store: ObjectStore, cut: Cut, channel: Channel) -> bool:
    """Whether a stage read the channel that was retired by then, or is now."""
    absent = (stage for stage in history.list_stages(store, cut.app) if stage not in cut.stages)
    for head in filter(None, (history.head(store, cut.app, stage) for stage in absent)):
        source = head.inputs.get(channel.name)
        if source is not None and source.upstream == channel.sender:
            then = history.latest_at(store, cut.app, head.stage, cut.time_ms)
            if head.retired or (then is not None and then.retired):
                return True
    return False


@dataclass(frozen=True, slots=True)
class Gap:
    """What a reader cannot have any more."""

    after: int
    """The upstream versions `after` + 1 to `up_to` are to be passed over."""
    up_to: int
    starts: tuple[int, ...]
    """Where the reader stands, by Kafka partition."""
    ends: tuple[int, ...]
    """Where it goes on."""
    gone: tuple[tuple[int, int, int], ...]
    """Partition, and first and next offset of what Kafka does not have."""
    sent: tuple[int, ...]
    """Rows sent up to and with `up_to` since the channel began, by Kafka partition."""
    markers: frozenset[str]
    """Snapshots whose marker lies in between."""


def find_gap(channel: str, at: Input, versions: Iterable[Manifest], earliest: tuple[int, ...]) -> Gap | None:
    """What is lost to a reader that stands at `at`; None when no row is.

    `versions` are the sender's from the one after `at.version` on, read no further than needed; `earliest` has the
    first offset that Kafka holds, by Kafka partition.
    """
    found: Gap | None = None
    begins, sent = at.offsets, at.passed or _nothing(at)
    markers: set[str] = set()
    lossy = False
    for manifest in versions:
        output = manifest.outputs.get(channel)
        if output is None:
            continue
        touched = {partition for partition, begin in enumerate(begins) if begin < earliest[partition]}
        if not touched:
            break
        wrote = _wrote(output, sent, begins) & touched
        lossy = lossy or bool(wrote)
        markers |= output.markers.keys()
        if wrote or any(marker[each] < earliest[each] for marker in output.markers.values() for each in touched):
            both = enumerate(zip(at.offsets, earliest, strict=True))
            gone = tuple((partition, start, until) for partition, (start, until) in both if start < until)
            found = Gap(at.version, manifest.version, at.offsets, output.ends, gone, output.sent, frozenset(markers))
        begins, sent = output.ends, output.sent
    return found if lossy else None


def pass_over(at: Input, gap: Gap) -> tuple[Input, Lost]:
    """The reader behind the gap, and what is to be written down of it."""
    before = at.passed or _nothing(at)
    known = len(before) == len(gap.sent)
    rows = tuple(to - had for to, had in zip(gap.sent, before, strict=True)) if known else ()
    # What was lost to a reader that never read is known also where its history does not begin with the channel's.
    consumed = at.consumed or _nothing(at)
    total = tuple(had + more for had, more in zip_longest(at.lost, rows, fillvalue=0)) if known else ()
    behind = replace(at, offsets=gap.ends, version=gap.up_to, rows=0, consumed=consumed if known else (), lost=total)
    return behind, Lost(at.topic, gap.starts, gap.ends, rows, gap.after, gap.up_to)


def broken(head: Manifest | None, channel: str, gap: Gap) -> frozenset[str]:
    """The snapshots that cannot complete once the reader has passed over the gap.

    Those whose marker it will not get, and those for which it was still to capture what is lost. A snapshot whose
    marker comes later is none of them, unless the reader has recorded it already.
    """
    if head is None:
        return gap.markers
    awaited = {name for name, channels in head.awaited.items() if channel in channels}
    return frozenset(awaited | (gap.markers - head.recorded.keys()))


def forget(draft: Manifest, snapshots: Iterable[str]) -> Manifest:
    """The version without any trace of these snapshots."""
    gone = frozenset(snapshots)
    fields = ("recorded", "awaited", "captured")
    kept = {name: {id_: of for id_, of in getattr(draft, name).items() if id_ not in gone} for name in fields}
    return replace(draft, **kept)


def _nothing(at: Input) -> tuple[int, ...]:
    """What a reader has read that never read a version; empty where that is not known."""
    return (0,) * len(at.offsets) if at.version == 0 else ()


def _wrote(output: Output, sent: tuple[int, ...], begins: tuple[int, ...]) -> set[int]:
    """The partitions to which a version wrote rows; where they were not counted, in which it ends later than begins."""
    if not output.rows and not output.attempts:
        return set()
    pairs = (
        zip(sent, output.sent, strict=True) if len(sent) == len(output.sent) else zip(begins, output.ends, strict=True)
    )
    return {partition for partition, (before, after) in enumerate(pairs) if after > before}
