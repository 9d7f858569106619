"""Positions of two apps on users' topics and by the clock, and reasons why a stage has not reached a position."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import NamedTuple

from ...store.objects.protocol import ObjectStore
from ...store.versions import history, published
from ...store.versions.manifest import Input, Manifest

Offsets = Mapping[str, tuple[int, ...]]
"""Offset for each partition, by users' topic."""


class Standing(NamedTuple):
    """Position of an app: offsets and clock."""

    offsets: Offsets
    clock_ms: int | None
    """Clock time up to which rows have fallen due; None if no rows fall due by the clock."""


def place_of(heads: Iterable[Manifest]) -> Standing:
    """Return the first position that all of these stages can reach."""
    manifests = tuple(heads)
    times = (head.event_time for head in manifests if not head.retired)
    # A late row falls due one millisecond later, which the other app may have passed already.
    clocks = (
        at.next_due_ms if at.next_due_ms == at.due_ms + 1 else at.due_ms
        for at in times
        if at is not None and at.by_clock and at.due_ms is not None
    )
    return Standing(furthest(manifests), max(clocks, default=None))


def users_inputs(heads: Iterable[Manifest]) -> Iterator[Input]:
    """Yield all inputs from users' topics."""
    return (at for head in heads if not head.retired for at in head.inputs.values() if not at.upstream)


def furthest(heads: Iterable[Manifest]) -> dict[str, tuple[int, ...]]:
    """Return the highest offset that any of these stages has read, by users' topic and partition."""
    offsets: dict[str, tuple[int, ...]] = {}
    for source in users_inputs(heads):
        previous = offsets.get(source.topic, ())
        offsets[source.topic] = tuple(max(pair) for pair in zip_longest(previous, source.offsets, fillvalue=0))
    return offsets


def behind(heads: Iterable[Manifest], at: Offsets) -> int:
    """Return the number of offsets that the slowest stage has to read to reach this position."""
    return max((left(source, at) for source in users_inputs(heads)), default=0)


def left(source: Input, at: Offsets) -> int:
    """Return the number of offsets that an input has to read to reach this position."""
    return sum(max(0, end - read) for end, read in _pairs(source, at))


def short_of(store: ObjectStore, head: Manifest, at: Standing) -> str:
    """Return the reason why a stage has not fully reached a position; empty if it has.

    It has reached the position if its offsets match, its channels are read, no row is due by its watermark or by the
    clock, and its sinks are published. Costs a request for each unread version of its senders, and those of
    `published.places`.
    """
    if head.retired:
        return ""
    name = f"{head.app}/{head.stage}"
    for source in users_inputs((head,)):
        moves = [end - had for end, had in _pairs(source, at.offsets)]
        if any(step < 0 for step in moves):
            return f"{name} has read {-sum(min(0, step) for step in moves):,} offsets of {source.topic} too many"
        if any(moves):
            return f"{name} has still to read {sum(moves):,} offsets of {source.topic}"
    for channel, source in head.inputs.items():
        if source.upstream and _has_unread(store, head.app, channel, source):
            return f"{name} has still to read rows from {source.upstream}"
    if (times := head.event_time) is not None and times.by_clock and at.clock_ms is not None:
        if times.due_ms is not None and times.due_ms > at.clock_ms:
            return f"{name} has processed due rows since"
        if times.next_due_ms is not None and times.next_due_ms <= at.clock_ms:
            return f"{name} has rows that are due"
    elif times is not None and times.owed:
        return f"{name} has rows that are due"
    for sink, place in published.places(store, head).items():
        if rows := published.behind(head.sinks[sink], place):
            return f"{name} has still to publish {rows:,} rows for its sink {sink!r}"
    return ""


def _pairs(source: Input, at: Offsets) -> Iterator[tuple[int, int]]:
    """Yield the target offset and the actual offset of an input by partition."""
    return zip_longest(at.get(source.topic, ()), source.offsets, fillvalue=0)


def _has_unread(store: ObjectStore, app: str, channel: str, at: Input) -> bool:
    """Return True if unread versions of the sender contain rows, markers or another watermark."""
    last_read = history.find(store, app, at.upstream, at.version) if at.version else None
    watermark_ms = last_read.handed_on_ms if last_read is not None else at.watermark_ms
    for version in history.after(store, app, at.upstream, at.version):
        sent = version.outputs.get(channel)
        if sent is not None and (sent.rows or sent.markers or version.handed_on_ms != watermark_ms):
            return True
        watermark_ms = version.handed_on_ms
    return False
