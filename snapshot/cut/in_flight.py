"""Records in flight in a cut's channels, and gaps: records that Kafka deleted before a stage read them.

Records in flight are computed from manifests: the offsets of reader and sender, and the valid attempts in between.

A reader gets either all rows of an upstream version or none. So if Kafka deleted some rows of a version before the
reader read them, the reader skips the whole version, and all unread versions before it with their snapshot markers. If
only a marker is missing, no version is skipped: markers are also in manifests.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from ...state import records
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.forgotten import add_counts
from ...store.versions.manifest import Input, LostRecords, Manifest, Output
from .graph import Channel, Cut, channels


@dataclass(frozen=True, slots=True)
class InFlight:
    """In-flight records of one channel: sent by the sender's version of a cut, not consumed by the receiver's version.

    The records are in Kafka at `topic[p]` from `starts[p]` up to, not including, `ends[p]`, in messages whose attempt
    is in `attempts`. Messages of other attempts in this range are skipped.
    """

    channel: str
    topic: str
    sender: str
    receiver: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    attempts: tuple[str, ...]
    rows: int
    """Number of records that versions `after` + 1 to `up_to` of the sender wrote.

    In the first version of a clone, this number is for all readers of the channel together; a single reader may
    need fewer of the records.
    """
    counts: tuple[int, ...]
    """Number of unread records by Kafka partition; empty if the receiver did not read the channel from its beginning.

    Computed as all records sent since the channel began, minus consumed records, minus lost records.
    """
    after: int
    up_to: int
    schema: str
    topic_id: str = ""


def in_flight(store: ObjectStore, cut: Cut) -> tuple[InFlight, ...]:
    """Return the in-flight records of each channel and receiver, upstream senders first.

    Channels and receivers without such records are left out. Reads the senders' manifests between the consumed version
    and the cut.
    """
    states = (channel_state(store, cut, channel) for channel in channels(cut))
    return tuple(state for state in states if state.attempts)


def rows_of_sink(store: ObjectStore, head: Manifest, name: str, start: int, after: int, rows: int) -> InFlight:
    """Return the location of a sink's rows from offset `start` on, written by the versions from `after` + 1 to `head`.

    `rows` is the number of these rows.
    """
    sink = head.sinks[name]
    versions = history.iter_between(store, head.app, head.stage, after, head.version)
    attempts = tuple(chain.from_iterable(at.sinks[name].attempts for at in versions if name in at.sinks))
    where = (name, sink.topic, head.stage, head.stage, (start,), (sink.end,))
    return InFlight(*where, attempts, rows, (rows,), after, head.version, "", sink.topic_id)


def channel_state(store: ObjectStore, cut: Cut, channel: Channel, until: Input | None = None) -> InFlight:
    """Return a receiver's unread records of a channel, up to the cut or to another receiver's position `until`.

    Without unread records, `attempts` of the result is empty. Returns all kept records of a channel that no stage has
    read yet, and no records of a channel whose reader was retired. Raises `NotFound` if a manifest of the sender is
    gone.
    """
    sender = cut.stages[channel.sender]
    output = sender.outputs[channel.name]
    given_up = channel.input is None and _is_given_up(store, cut, channel)
    reader = channel.input or (
        None if given_up else former_reader_position(cut.stages.values(), channel.name, channel.sender)
    )
    if reader is not None:
        after, starts, passed = reader.version, reader.offsets, reader.rows_passed
    elif given_up:
        after, starts, passed = sender.version, output.ends, output.sent
    else:
        after = history.first_version(store, cut.app, channel.sender) - 1
        starts = passed = (0,) * len(output.ends)
    if until is None:
        up_to, ends, sent = sender.version, output.ends, output.sent
    else:
        # Two readers of a clone may be at different offsets within its sender's first version.
        within = until.version == after and until.offsets != starts
        up_to, ends, sent = until.version + within, until.offsets, until.rows_passed
    written = records.sent_messages(channel.name, history.iter_between(store, cut.app, channel.sender, after, up_to))
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


def former_reader_position(heads: Iterable[Manifest], channel: str, sender: str) -> Input | None:
    stopped = (head.stopped[channel] for head in heads if channel in head.stopped)
    return max((at for at in stopped if at.upstream == sender), key=lambda at: at.version, default=None)


def _is_given_up(store: ObjectStore, cut: Cut, channel: Channel) -> bool:
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
    """Records of a channel that Kafka deleted before a reader had read them."""

    after: int
    up_to: int
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    missing_ranges: tuple[tuple[int, int, int], ...]
    sent: tuple[int, ...]
    """Number of rows, by Kafka partition, that the sender wrote from the channel's beginning to version `up_to`."""
    markers: frozenset[str]


def find_gap(channel: str, at: Input, versions: Iterable[Manifest], earliest: tuple[int, ...]) -> Gap | None:
    """Return the gap of a reader at position `at`; None if no rows are lost.

    `versions` are the sender's versions after `at.version`, read only as far as needed. `earliest` is the first
    offset in Kafka, by partition.
    """
    gap: Gap | None = None
    starts, sent = at.offsets, at.rows_passed or _zero_counts(at)
    markers: set[str] = set()
    lossy = False
    for manifest in versions:
        output = manifest.outputs.get(channel)
        if output is None:
            continue
        touched = {partition for partition, begin in enumerate(starts) if begin < earliest[partition]}
        if not touched:
            break
        written = _written_partitions(output, sent, starts) & touched
        lossy = lossy or bool(written)
        markers |= output.markers.keys()
        if written or any(
            marker[partition] < earliest[partition] for marker in output.markers.values() for partition in touched
        ):
            both = enumerate(zip(at.offsets, earliest, strict=True))
            gone = tuple((partition, start, until) for partition, (start, until) in both if start < until)
            gap = Gap(at.version, manifest.version, at.offsets, output.ends, gone, output.sent, frozenset(markers))
        starts, sent = output.ends, output.sent
    return gap if lossy else None


def skip_gap(at: Input, gap: Gap) -> tuple[Input, LostRecords]:
    previous = at.rows_passed or _zero_counts(at)
    is_counted = len(previous) == len(gap.sent)
    rows = records.difference(previous, gap.sent) if is_counted else ()
    # If the reader has read nothing, the loss is known, even if older counts are not known.
    consumed = at.consumed or _zero_counts(at)
    total = add_counts(at.lost, rows) if is_counted else ()
    skipped = replace(
        at, offsets=gap.ends, version=gap.up_to, rows=0, consumed=consumed if is_counted else (), lost=total
    )
    return skipped, LostRecords(at.topic, gap.starts, gap.ends, rows, gap.after, gap.up_to)


def snapshots_broken_by_gap(head: Manifest | None, channel: str, gap: Gap) -> frozenset[str]:
    """Return the ids of open snapshots that a reader can no longer complete if it skips the gap.

    A snapshot cannot be completed in two cases. The snapshot's marker is in the gap, and the reader has not recorded a
    version for the snapshot. Or the reader still awaits the marker, so it would have to capture the lost records.
    """
    if head is None:
        return gap.markers
    awaited = {name for name, channels in head.awaited.items() if channel in channels}
    return frozenset(awaited | (gap.markers - head.recorded.keys()))


def without_answers(draft: Manifest, snapshots: Iterable[str]) -> Manifest:
    gone = frozenset(snapshots)
    fields = ("recorded", "awaited", "captured")
    remaining = {name: {id_: of for id_, of in getattr(draft, name).items() if id_ not in gone} for name in fields}
    return replace(draft, **remaining)


def _zero_counts(at: Input) -> tuple[int, ...]:
    return (0,) * len(at.offsets) if at.version == 0 else ()


def _written_partitions(output: Output, sent: tuple[int, ...], begins: tuple[int, ...]) -> set[int]:
    if not output.rows and not output.attempts:
        return set()
    pairs = (
        zip(sent, output.sent, strict=True) if len(sent) == len(output.sent) else zip(begins, output.ends, strict=True)
    )
    return {partition for partition, (earlier, later) in enumerate(pairs) if later > earlier}
