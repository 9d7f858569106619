"""Records of a channel that are gone from Kafka before their reader: how far it has to go, and what that breaks. Pure.

A reader gets all rows of an upstream version or none. So versions that lie partly in the gap are passed over whole, and
everything up to the last of them with it, the markers of snapshots too. Versions whose rows are all there are never
passed over for the sake of a marker: those are found in manifests, not in Kafka.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from msgspec.structs import replace

from ...store.versions.manifest import Input, Lost, Manifest, Output


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

    Args:
        channel: its name.
        at: the reader.
        versions: the sender's, from the one after `at.version` on; read no further than it is needed.
        earliest: the first offset that Kafka has, by Kafka partition.
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
        marked = any(
            offsets[partition] < earliest[partition] for offsets in output.markers.values() for partition in touched
        )
        if wrote or marked:
            gone = tuple(
                (partition, start, until)
                for partition, (start, until) in enumerate(zip(at.offsets, earliest, strict=True))
                if start < until
            )
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
    recorded = head.recorded if head is not None else {}
    awaited = {name for name, channels in head.awaited.items() if channel in channels} if head is not None else set()
    return frozenset(awaited | (gap.markers - recorded.keys()))


def forget(draft: Manifest, snapshots: Iterable[str]) -> Manifest:
    """The version without any trace of these snapshots."""
    gone = frozenset(snapshots)
    return replace(
        draft,
        recorded={name: at for name, at in draft.recorded.items() if name not in gone},
        awaited={name: channels for name, channels in draft.awaited.items() if name not in gone},
        captured={name: spans for name, spans in draft.captured.items() if name not in gone},
    )


def _nothing(at: Input) -> tuple[int, ...]:
    """What a reader has read that never read a version; empty where that is not known."""
    return (0,) * len(at.offsets) if at.version == 0 else ()


def _wrote(output: Output, sent: tuple[int, ...], begins: tuple[int, ...]) -> set[int]:
    """The partitions to which a version wrote rows; where they were not counted, in which it ends later than begins."""
    if not output.rows and not output.attempts:
        return set()
    if len(sent) == len(output.sent):
        return {partition for partition, (had, has) in enumerate(zip(sent, output.sent, strict=True)) if has > had}
    return {partition for partition, (begin, end) in enumerate(zip(begins, output.ends, strict=True)) if end > begin}
