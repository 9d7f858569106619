"""Where two apps stand on their users' topics and by the clock, and what keeps a stage from standing there."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import NamedTuple

from ...store.objects.protocol import ObjectStore
from ...store.versions import history, published
from ...store.versions.manifest import Input, Manifest

Offsets = Mapping[str, tuple[int, ...]]
"""By users' topic, an offset for each partition."""


class Standing(NamedTuple):
    """Where two apps are to stand, or do."""

    offsets: Offsets
    clock_ms: int | None
    """Up to when rows have fallen due by the clock; None where none ever does."""


def place_of(heads: Iterable[Manifest]) -> Standing:
    """The first place that all of these stages can come to stand at, by where they are."""
    found = tuple(heads)
    times = (each.event_time for each in found if not each.retired)
    # A row that comes too late falls due in the millisecond after: so far the other app may have come already.
    clocks = (
        at.next_due_ms if at.next_due_ms == at.due_ms + 1 else at.due_ms
        for at in times
        if at is not None and at.by_clock and at.due_ms is not None
    )
    return Standing(furthest(found), max(clocks, default=None))


def users_inputs(heads: Iterable[Manifest]) -> Iterator[Input]:
    """All that stages read of users' topics."""
    return (at for head in heads if not head.retired for at in head.inputs.values() if not at.upstream)


def furthest(heads: Iterable[Manifest]) -> dict[str, tuple[int, ...]]:
    """By users' topic, how far any of these stages has read each partition."""
    found: dict[str, tuple[int, ...]] = {}
    for at in users_inputs(heads):
        known = found.get(at.topic, ())
        found[at.topic] = tuple(max(pair) for pair in zip_longest(known, at.offsets, fillvalue=0))
    return found


def behind(heads: Iterable[Manifest], at: Offsets) -> int:
    """How many offsets the stage that is furthest behind has still to read up to these."""
    return max((left(one, at) for one in users_inputs(heads)), default=0)


def left(one: Input, at: Offsets) -> int:
    """How many offsets an input has still to read up to these."""
    return sum(max(0, end - had) for end, had in _pairs(one, at))


def short_of(store: ObjectStore, head: Manifest, at: Standing) -> str:
    """Why a stage does not stand at this place with all done that follows from it; empty where it does.

    All is done when its channels are read, no row is left that falls due at its watermark or by that clock, and its
    sinks are published.
    A request for each version that its senders are ahead, and those of `published.places`.
    """
    if head.retired:
        return ""
    name = f"{head.app}/{head.stage}"
    for one in users_inputs((head,)):
        moves = [end - had for end, had in _pairs(one, at.offsets)]
        if any(step < 0 for step in moves):
            return f"{name} has read {-sum(min(0, step) for step in moves):,} offsets more of {one.topic}"
        if any(moves):
            return f"{name} has still to read {sum(moves):,} offsets of {one.topic}"
    for channel, one in head.inputs.items():
        if one.upstream and _has_news(store, head.app, channel, one):
            return f"{name} has still to read what {one.upstream} sent it"
    if (times := head.event_time) is not None and times.by_clock and at.clock_ms is not None:
        if times.due_ms is not None and times.due_ms > at.clock_ms:
            return f"{name} has let rows fall due since"
        if times.next_due_ms is not None and times.next_due_ms <= at.clock_ms:
            return f"{name} has rows that fall due"
    elif times is not None and times.owed:
        return f"{name} has rows that fall due"
    for sink, place in published.places(store, head).items():
        if rows := published.behind(head.sinks[sink], place):
            return f"{name} has still to publish {rows:,} rows for its sink {sink!r}"
    return ""


def _pairs(one: Input, at: Offsets) -> Iterator[tuple[int, int]]:
    """Of each partition, the offset to stand at and the one where an input stands."""
    return zip_longest(at.get(one.topic, ()), one.offsets, fillvalue=0)


def _has_news(store: ObjectStore, app: str, channel: str, at: Input) -> bool:
    """Whether versions of the sender behind an input bring rows, markers or another watermark."""
    had = history.find(store, app, at.upstream, at.version) if at.version else None
    watermark_ms = had.handed_on_ms if had is not None else at.watermark_ms
    for each in history.after(store, app, at.upstream, at.version):
        sent = each.outputs.get(channel)
        if sent is not None and (sent.rows or sent.markers or each.handed_on_ms != watermark_ms):
            return True
        watermark_ms = each.handed_on_ms
    return False
