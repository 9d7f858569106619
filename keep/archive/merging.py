"""Merging the small objects of an app's input archives, outside of its runners, as `slackwater compact` does it."""

from dataclasses import dataclass

from ... import instants
from ...durations import DAY_MS
from ...store.archive import index, merge
from ...store.objects.protocol import ObjectStore


@dataclass(frozen=True, slots=True)
class ArchiveMerged:
    """What was merged of the archive of a topic, or would be."""

    topic: str
    before: int
    """Objects that it had."""
    after: int
    """That it has then; in a dry run as many, less those of the first merge."""
    bytes: int
    """Of what was read for it."""


def merge_archives(
    store: ObjectStore, app: str, *, full: bool, by: str, dry_run: bool = False
) -> tuple[ArchiveMerged, ...]:
    """Merge what is due of the archives of an app; with `full`, all objects of one day that are not large yet.

    An archive of which nothing is merged is left out. Raises `Corruption` where an object is missing or damaged, and
    `Unavailable`: what was merged by then stays merged.
    """
    found = []
    for head in index.all_of(store, app):
        before, read, inputs = len(head.objects), 0, merge.pick(head, DAY_MS, whole=full)
        if dry_run and inputs:
            found.append(ArchiveMerged(head.topic, before, before - len(inputs) + 1, sum(one.bytes for one in inputs)))
            continue
        newest = head
        while inputs:
            read += sum(one.bytes for one in inputs)
            newest = merge.merge(store, newest, inputs, by=by, now_ms=instants.now_ms())
            inputs = merge.pick(newest, DAY_MS, whole=full)
        if read:
            found.append(ArchiveMerged(head.topic, before, len(newest.objects), read))
    return tuple(found)
