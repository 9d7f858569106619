"""What is in flight on each channel, if the manifests can say it, and whether a snapshot keeps just these records."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import Corruption, NotFound
from ...moments.cut.graph import Channel, Cut, channels
from ...moments.cut.in_flight import InFlight, channel_state
from ...moments.cut.stored import ADDRESS, Captured, CapturedObject, Snapshot
from ...moments.take.capture import read_object
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from .report import Checked, as_sentence, noted


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
    return tuple(_state(store, cut, channel) for channel in channels(cut) if channel.input is not None)


def _state(store: ObjectStore, cut: Cut, channel: Channel) -> ChannelState:
    if misshapen := _misshapen(cut, channel):
        return ChannelState(channel, None, False, (misshapen,))
    try:
        state = channel_state(store, cut, channel)
        between = range(state.after + 1, state.up_to + 1)
        copied = any(history.read(store, cut.app, channel.sender, each).begins for each in between)
    except (Corruption, NotFound) as error:
        return ChannelState(channel, None, False, (f"{_name(channel)}: {as_sentence(error)}",))
    alone = sum(other.name == channel.name for other in channels(cut)) == 1
    return ChannelState(channel, state, alone or not copied)


def _misshapen(cut: Cut, channel: Channel) -> str:
    output, source = cut.stages[channel.sender].outputs[channel.name], channel.input
    if source is None:
        return ""
    lengths = {
        len(output.ends),
        len(source.offsets),
        len(output.sent),
        *(len(each or output.ends) for each in (source.consumed, source.lost)),
    }
    if len(lengths) == 1:
        return ""
    found = ", ".join(map(str, sorted(lengths)))
    return f"{_name(channel)}: ends, sent, offsets, consumed and lost are of {found} partitions; expected one number"


def _name(channel: Channel) -> str:
    return f"{channel.name} from {channel.sender} to {channel.receiver}"


Addresses = npt.NDArray[np.int64]
"""A row for each record, with the columns of `ADDRESS`."""

_PLACE = ("sender", "topic", "starts", "ends", "after", "up_to", "schema")
"""What a captured channel and the cut both say of the records in flight."""


@dataclass(frozen=True, slots=True)
class Recount:
    """What the objects of one captured channel hold."""

    counts: tuple[int, ...] | None
    """Records by partition; None when an object cannot be read."""
    checked: tuple[Checked, ...]
    """One for each object."""


def captured_channels(snapshot: Snapshot | None) -> dict[tuple[str, str], Captured]:
    """What the snapshot keeps, by channel and receiver."""
    return {(each.channel, each.receiver): each for each in snapshot.channels} if snapshot else {}


def check_captured(snapshot: Snapshot, states: Iterable[ChannelState]) -> Iterator[Checked]:
    """Whether the snapshot says that it keeps exactly what is in flight.

    One that was taken by markers keeps all of it. One that was pinned keeps all or nothing.
    """
    due = {(each.channel.name, each.channel.receiver): each.in_flight for each in states}
    captured = captured_channels(snapshot)
    for place in sorted(captured.keys() | due.keys() if captured or snapshot.kind == "markers" else ()):
        in_flight = due.get(place)
        if place in due and in_flight is None:
            continue  # what is in flight is not known; the books say why
        nothing = in_flight is None or not in_flight.attempts
        if nothing and place not in captured:
            continue
        where = f"{place[0]} to {place[1]}"
        wrong = _unlike(captured.get(place), None if nothing else in_flight)
        yield Checked("kept", where, tuple(f"snapshot {snapshot.name!r}, {where}: {each}" for each in wrong))


def _unlike(captured: Captured | None, due: InFlight | None) -> Iterator[str]:
    if captured is None:
        found = f"{due.rows} records of versions {due.after + 1} to {due.up_to}" if due else "nothing"
        yield f"{found} are in flight, and it keeps none"
        return
    if sum(captured.counts) != captured.rows:
        yield f"it counts {sum(captured.counts)} records, and names objects with {captured.rows}"
    if due is None:
        yield f"it keeps {captured.rows} records, and nothing is in flight"
        return
    for name in _PLACE:
        said, found = getattr(captured, name), getattr(due, name)
        if said != found:
            yield f"it keeps records with {name.replace('_', ' ')} {said}; the cut has {found} in flight"


def recount(store: ObjectStore, captured: Captured, markers: tuple[int, ...]) -> Recount:
    """Read every object of a captured channel and look at each record's address.

    `markers` has the offset of the snapshot's marker in each partition, and is empty where there is none. Raises only
    `Unavailable`.
    """
    begin, end = len(captured.starts), len(captured.ends)
    if not begin == end == len(markers or captured.ends):
        where = f"{captured.channel} to {captured.receiver}"
        return Recount(None, (Checked("kept", where, (f"{where}: it is kept of {begin} or {end} partitions",), 0),))
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
        checked.append(Checked("objects", each.key, tuple(wrong)))
    return Recount(tuple(counts.tolist()) if readable else None, tuple(checked))


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
