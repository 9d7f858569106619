"""What is in flight on each channel, by the manifests, and whether a snapshot's records and markers agree with it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import Corruption, NotFound, Refused, Unavailable
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ..cut.graph import Channel, Cut, channels
from ..cut.in_flight import InFlight, channel_state
from ..cut.kafka_topics import Topics
from ..cut.stored import ADDRESS, Captured, CapturedObject, Snapshot
from ..take.capture import read_object
from .report import Verified, as_sentence, noted


@dataclass(frozen=True, slots=True)
class ChannelState:
    """A channel of the cut, and what is in flight to one receiver."""

    channel: Channel
    in_flight: InFlight | None
    """None when the manifests in between do not say."""
    exact: bool
    """Whether `in_flight.rows` is the receiver's own: a clone's first version says how much it copied for all."""
    wrong: tuple[str, ...] = ()


def channel_states(store: ObjectStore, cut: Cut) -> tuple[ChannelState, ...]:
    """Every channel of the cut that a stage reads, once for each reader, and what the manifests say is in flight.

    Reads the senders' manifests between what was consumed and the cut.
    """
    found, edges = [], channels(cut)
    for channel in edges:
        output, source = cut.stages[channel.sender].outputs[channel.name], channel.input
        if source is None:
            continue
        counts = (output.ends, output.sent, source.offsets, source.consumed or output.ends, source.lost or output.ends)
        lengths = {len(each) for each in counts}
        state, exact, wrong = None, False, ""
        if len(lengths) > 1:
            several = ", ".join(map(str, sorted(lengths)))
            wrong = f"ends, sent, offsets, consumed and lost are of {several} partitions; expected one number"
        else:
            try:
                state = channel_state(store, cut, channel)
                between = history.followed(store, cut.stages[channel.sender], state.after)
                copied = any(each.begins or each.rewind is not None for each in between)
                exact = not copied or sum(other.name == channel.name for other in edges) == 1
            except (Corruption, NotFound) as error:
                state, wrong = None, as_sentence(error)
        where = f"{channel.name} from {channel.sender} to {channel.receiver}"
        found.append(ChannelState(channel, state, exact, (f"{where}: {wrong}",) if wrong else ()))
    return tuple(found)


Addresses = npt.NDArray[np.int64]
"""A row for each record, with the columns of `ADDRESS`."""

_PLACE = ("sender", "topic", "starts", "ends", "after", "up_to", "schema")
"""What a captured channel and the cut both say of the records in flight."""


def check_captured(
    snapshot: Snapshot, captured: Mapping[tuple[str, str], Captured], states: Iterable[ChannelState]
) -> Iterator[Verified]:
    """Whether the snapshot says that it keeps exactly what is in flight: `captured`, by channel and receiver.

    One that was taken by markers keeps all of it. One that was pinned keeps all or nothing.
    """
    due = {(each.channel.name, each.channel.receiver): each.in_flight for each in states}
    for place in sorted(captured.keys() | due.keys() if captured or snapshot.kind == "markers" else ()):
        in_flight = due.get(place)
        if place in due and in_flight is None:
            continue  # what is in flight is not known; the books say why
        nothing = in_flight is None or not in_flight.attempts
        if nothing and place not in captured:
            continue
        where = f"{place[0]} to {place[1]}"
        wrong, kept = [], captured.get(place)
        if kept is None and in_flight is not None:
            found = f"{in_flight.rows} records of versions {in_flight.after + 1} to {in_flight.up_to}"
            wrong.append(f"{found} are in flight, and it keeps none")
        elif kept is not None:
            if sum(kept.counts) != kept.rows:
                wrong.append(f"it counts {sum(kept.counts)} records, and names objects with {kept.rows}")
            if nothing:
                wrong.append(f"it keeps {kept.rows} records, and nothing is in flight")
            for name in () if nothing else _PLACE:
                said, due_here = getattr(kept, name), getattr(in_flight, name)
                if said != due_here:
                    what = name.replace("_", " ")
                    wrong.append(f"it keeps records with {what} {said}; the cut has {due_here} in flight")
        yield Verified("kept", where, tuple(f"snapshot {snapshot.name!r}, {where}: {each}" for each in wrong))


def recount(
    store: ObjectStore, captured: Captured, markers: tuple[int, ...]
) -> tuple[tuple[int, ...] | None, tuple[Verified, ...]]:
    """Read every object of a captured channel and check each record's address.

    `markers` has the offset of the snapshot's marker in each partition, and is empty where there is none. Returns the
    records by partition, None when an object cannot be read, and a check of each object. Raises only `Unavailable`.
    """
    begin, end = len(captured.starts), len(captured.ends)
    if not begin == end == len(markers or captured.ends):
        where = f"{captured.channel} to {captured.receiver}"
        return None, (Verified("kept", where, (f"{where}: it is kept of {begin} or {end} partitions",), 0),)
    counts = np.zeros(end, np.int64)
    last = np.full((1, len(ADDRESS)), -1)
    checked = []
    readable = True
    for each in captured.objects:
        wrong: list[str] = []
        rows = None
        with noted(wrong):
            rows = _addresses(store, each, end)
        if rows is None:
            readable = False
        else:
            wrong += (f"{each.key} {fault}" for fault in _faults(rows, last, each, captured, markers))
            counts += np.bincount(rows[:, 0], minlength=len(counts))
            last = rows[-1:] if len(rows) else last
        checked.append(Verified("objects", each.key, tuple(wrong)))
    return tuple(counts.tolist()) if readable else None, tuple(checked)


def _addresses(store: ObjectStore, each: CapturedObject, partitions: int) -> Addresses:
    """The address of each record of an object, if the object is what was written. Raises `Corruption`."""
    try:
        # All columns: a page that cannot be read is found by its own checksum.
        rows = read_object(store, each, check_pages=True)
        found_rows = np.column_stack([rows[name].cast(pa.int64()).to_numpy() for name in ADDRESS])
    except (pa.ArrowException, OSError, KeyError) as error:
        raise Corruption(f"{each.key} does not hold records with addresses: {error}", object_key=each.key) from None
    if len(found_rows) and not 0 <= found_rows[:, 0].min() <= found_rows[:, 0].max() < partitions:
        raise Corruption(f"{each.key} has records of partitions beyond {partitions}", object_key=each.key)
    return found_rows


def _faults(
    rows: Addresses, last: Addresses, each: CapturedObject, captured: Captured, markers: tuple[int, ...]
) -> Iterator[str]:
    """What is wrong with the records of one object; `last` is the address before them."""
    if len(rows) != each.rows:
        yield f"has {len(rows)} records; expected {each.rows}"
    partition, offset = rows[:, 0], rows[:, 1]
    starts, ends = np.array(captured.starts), np.array(captured.ends)
    for p, o, r in rows[(offset < starts[partition]) | (offset >= ends[partition])][:1].tolist():
        yield f"has record {captured.topic}[{p}]@{o}+{r}; expected offsets {starts[p]} to {ends[p] - 1}"
    for p, o, r in rows[offset > np.array(markers)[partition]][:1].tolist() if markers else ():
        yield f"has record {captured.topic}[{p}]@{o}+{r}, which lies behind the marker at {markers[p]}"
    step = np.diff(np.concatenate([last, rows]), axis=0)
    # Of partition, offset and row, the first that changes must grow.
    grown = np.take_along_axis(step, np.argmax(step != 0, axis=1)[:, None], axis=1)[:, 0] > 0
    for p, o, r in rows[~grown][:1].tolist():
        yield f"has record {captured.topic}[{p}]@{o}+{r} twice or out of order"


def markers_of(snapshot: Snapshot | None, cut: Cut, channel: str, sender: str) -> tuple[int, ...]:
    """The offset of the snapshot's marker in each partition of a channel; empty when there is none."""
    if snapshot is None or sender not in cut.stages or channel not in cut.stages[sender].outputs:
        return ()
    output = cut.stages[sender].outputs[channel]
    found = output.markers.get(snapshot.id, ())
    return found if len(found) == len(output.ends) else ()


def check_markers(snapshot: Snapshot, cut: Cut) -> Iterator[Verified]:
    """What the manifests say: every sender's version names the marker, and no reader in the cut has passed it."""
    seen = set()
    for channel in channels(cut):
        sender, wrong, count = cut.stages[channel.sender], [], 0
        output = sender.outputs[channel.name]
        found, ends = output.markers.get(snapshot.id), output.ends
        if channel.name not in seen:
            seen.add(channel.name)
            count = len(ends)
            at, of = f"{channel.sender}@v{sender.version}", f"of snapshot {snapshot.name!r} on channel {channel.name!r}"
            if found is None:
                wrong.append(f"{at} names no marker {of}")
            elif len(found) != len(ends):
                wrong.append(f"{at} names {len(found)} markers {of}; expected one in each of {len(ends)} partitions")
            else:
                wrong += (
                    f"{at} names a marker at {output.topic}[{partition}]@{marker}, but its messages end at {end}"
                    for partition, (marker, end) in enumerate(zip(found, ends, strict=True))
                    if marker >= end
                )
        if channel.input is not None and found and len(found) == len(ends):
            # What follows the marker up to `ends` are markers of other snapshots: they are of the same version.
            reader = f"{channel.receiver}@v{cut.stages[channel.receiver].version} consumed {channel.input.topic}"
            wrong += (
                f"{reader}[{partition}] up to {offset}, past the marker of snapshot {snapshot.name!r}: expected {end} "
                "at most"
                for partition, (end, offset) in enumerate(zip(ends, channel.input.offsets, strict=False))
                if offset > end
            )
        yield Verified("markers", f"{channel.name} from {channel.sender}", tuple(wrong), count)


def reread_markers(snapshot: Snapshot, cut: Cut, reader: Topics | None, not_reread: list[str]) -> Iterator[Verified]:
    """Check each marker in Kafka. Channels whose markers are not there any more are added to `not_reread`."""
    for name, sender in sorted({(channel.name, channel.sender) for channel in channels(cut)}):
        topic = cut.stages[sender].outputs[name].topic
        for partition, offset in enumerate(markers_of(snapshot, cut, name, sender)):
            place = f"{topic}[{partition}]@{offset}"
            found, why = None, "nothing says where Kafka is"
            if reader is not None:
                try:
                    found, why = reader.marker(topic, partition, offset), f"{place} is gone from Kafka"
                except (NotFound, Refused, Unavailable) as error:
                    why = error.message
            if found is None:
                not_reread.append(f"markers on {name} were not re-read: {why}")
                break
            if found != snapshot.id:
                what = f"the marker of {found}" if found else "no marker"
                yield Verified("markers", place, (f"{place} holds {what}; expected that of {snapshot.id}",), 0)
