"""Whether the records that a snapshot keeps are those that its cut has in flight: what it says, and what is there."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from ...errors import Corruption, ObjectNotFound
from ...store.objects.protocol import ObjectStore
from ...store.sst.whole_file import read_whole
from ..cut.in_flight import InFlight
from ..cut.stored import ADDRESS, Captured, CapturedObject, Snapshot
from .channel_state import Flight
from .report import Checked, noted

__all__ = ["Reread", "by_place", "promises", "reread"]

Addresses = npt.NDArray[np.int64]
"""A row for each record, with the columns of `ADDRESS`."""

_PLACE = ("sender", "topic", "starts", "ends", "after", "up_to", "schema")
"""What a captured channel and the cut both say of the records in flight."""


@dataclass(frozen=True, slots=True)
class Reread:
    """What the objects of one captured channel hold."""

    counts: tuple[int, ...] | None
    """Records by partition; None when an object cannot be read."""
    checked: tuple[Checked, ...]
    """One for each object."""


def by_place(snapshot: Snapshot | None) -> dict[tuple[str, str], Captured]:
    """What the snapshot keeps, by channel and receiver."""
    return {(kept.channel, kept.receiver): kept for kept in snapshot.channels} if snapshot else {}


def promises(snapshot: Snapshot, flights: Iterable[Flight]) -> Iterator[Checked]:
    """Whether the snapshot says that it keeps exactly what is in flight.

    One that was taken by markers keeps all of it. One that was pinned keeps all or nothing.
    """
    due = {(each.channel.name, each.channel.receiver): each.in_flight for each in flights}
    kept = by_place(snapshot)
    for place in sorted(kept.keys() | due.keys() if kept or snapshot.kind == "markers" else ()):
        in_flight = due.get(place)
        if place in due and in_flight is None:
            continue  # what is in flight is not known; the books say why
        nothing = in_flight is None or not in_flight.attempts
        if nothing and place not in kept:
            continue
        where = f"{place[0]} to {place[1]}"
        wrong = _unlike(kept.get(place), None if nothing else in_flight)
        yield Checked("kept", where, tuple(f"snapshot {snapshot.name!r}, {where}: {each}" for each in wrong))


def _unlike(kept: Captured | None, due: InFlight | None) -> Iterator[str]:
    if kept is None:
        found = f"{due.rows} records of versions {due.after + 1} to {due.up_to}" if due else "nothing"
        yield f"{found} are in flight, and it keeps none"
        return
    rows = sum(each.rows for each in kept.objects)
    if sum(kept.counts) != rows:
        yield f"it counts {sum(kept.counts)} records, and names objects with {rows}"
    if due is None:
        yield f"it keeps {rows} records, and nothing is in flight"
        return
    for name in _PLACE:
        said, found = getattr(kept, name), getattr(due, name)
        if said != found:
            yield f"it keeps records with {name.replace('_', ' ')} {said}; the cut has {found} in flight"


def reread(store: ObjectStore, kept: Captured, markers: tuple[int, ...]) -> Reread:
    """Read every object of a captured channel and look at each record's address.

    Args:
        store: the store of the snapshot's app.
        kept: the channel.
        markers: the offset of the snapshot's marker in each partition; empty where there is none.

    Raises:
        Unavailable: storage did not answer.
    """
    if not len(kept.starts) == len(kept.ends) == len(markers or kept.ends):
        what = f"{kept.channel} to {kept.receiver}: it is kept of {len(kept.starts)} or {len(kept.ends)} partitions"
        return Reread(None, (Checked("kept", f"{kept.channel} to {kept.receiver}", (what,), 0),))
    counts = np.zeros(len(kept.ends), np.int64)
    last = np.full((1, len(ADDRESS)), -1)
    checked = []
    readable = True
    for each in kept.objects:
        wrong: list[str] = []
        rows = None
        with noted(wrong):
            rows = _addresses(store, each, len(kept.ends))
        if rows is None:
            readable = False
        else:
            wrong += (f"{each.key} {fault}" for fault in _faults(rows, last, each, kept, markers))
            counts += np.bincount(rows[:, 0], minlength=len(counts))
            last = rows[-1:] if len(rows) else last
        checked.append(Checked("objects", each.key, tuple(wrong)))
    return Reread(tuple(counts.tolist()) if readable else None, tuple(checked))


def _addresses(store: ObjectStore, each: CapturedObject, partitions: int) -> Addresses:
    """The address of each record of an object, if the object is what was written. Raises `Corruption`."""
    try:
        data = store.get(each.key)
    except ObjectNotFound:
        raise Corruption(f"{each.key} is missing", object_key=each.key) from None
    if len(data) != each.bytes:
        raise Corruption(f"{each.key} has {len(data)} bytes; expected {each.bytes}", object_key=each.key)
    if (found := xxhash.xxh3_128_hexdigest(data)) != each.checksum:
        raise Corruption(f"{each.key} has checksum {found}; expected {each.checksum}", object_key=each.key)
    try:
        # All columns: a page that cannot be read is found by its own checksum.
        rows = read_whole(data, check_pages=True)
        found_rows = np.column_stack([rows[name].cast(pa.int64()).to_numpy() for name in ADDRESS])
    except (pa.ArrowException, OSError, KeyError) as error:
        raise Corruption(f"{each.key} does not hold records with addresses: {error}", object_key=each.key) from None
    if len(found_rows) and not 0 <= found_rows[:, 0].min() <= found_rows[:, 0].max() < partitions:
        raise Corruption(f"{each.key} has records of partitions beyond {partitions}", object_key=each.key)
    return found_rows


def _faults(
    rows: Addresses, last: Addresses, each: CapturedObject, kept: Captured, markers: tuple[int, ...]
) -> Iterator[str]:
    """What is wrong with the records of one object; `last` is the address before them."""
    if len(rows) != each.rows:
        yield f"has {len(rows)} records; expected {each.rows}"
    partition, offset = rows[:, 0], rows[:, 1]
    outside = (offset < np.array(kept.starts)[partition]) | (offset >= np.array(kept.ends)[partition])
    for p, o, r in rows[outside][:1].tolist():
        yield f"has record {kept.topic}[{p}]@{o}+{r}; expected offsets {kept.starts[p]} to {kept.ends[p] - 1}"
    for p, o, r in rows[offset > np.array(markers)[partition]][:1].tolist() if markers else ():
        yield f"has record {kept.topic}[{p}]@{o}+{r}, which lies behind the marker at {markers[p]}"
    step = np.diff(np.concatenate([last, rows]), axis=0)
    # Of partition, offset and row, the first that changes must grow.
    grown = np.take_along_axis(step, np.argmax(step != 0, axis=1)[:, None], axis=1)[:, 0] > 0
    for p, o, r in rows[~grown][:1].tolist():
        yield f"has record {kept.topic}[{p}]@{o}+{r} twice or out of order"
