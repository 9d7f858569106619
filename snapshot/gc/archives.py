"""Garbage collection of input archives: deletes records past their retention, and objects that no index names.

Only whole objects are deleted, so some records are kept a little longer. Replaced indexes are kept for a safety margin,
since a reader may still be using them.
"""

from dataclasses import dataclass

from ...common import instants
from ...errors import Corruption
from ...store.archive import index
from ...store.archive.index import INDEXES, ArchiveIndex
from ...store.objects.many import for_each_concurrently
from ...store.objects.protocol import ObjectInfo, ObjectStore
from ...store.versions import keys
from . import census
from .inventory import total_bytes
from .reachable import Retention


@dataclass(frozen=True, slots=True)
class ArchiveCollected:
    """Deleted and kept records of one topic's archive."""

    topic: str
    life: int
    """Number that distinguishes topics of the same name: 1, or more if the topic was deleted and recreated."""
    records: int
    objects: int
    bytes: int
    kept_records: int
    kept_objects: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """Planned collection of one archive."""

    head: ArchiveIndex
    before_ms: int
    """Time, in ms since 1970 UTC, before which the app read the records to delete; 0 if there are none."""
    remaining_index: ArchiveIndex

    @property
    def deleted_objects(self) -> frozenset[str]:
        """Return the keys of the objects in which all records are past their retention."""
        return _named_objects(self.head) - _named_objects(self.remaining_index)


def plan_archives(
    store: ObjectStore, app: str, retention: Retention, now_ms: int, damaged: dict[str, Corruption]
) -> tuple[ArchivePlan, ...]:
    plans = []
    for head in index.iter_archives(store, app, damaged):
        keep_ms = retention.input_ms_of_topic(head.topic)
        before_ms = max(0, now_ms - keep_ms) if keep_ms is not None else 0
        plans.append(ArchivePlan(head, before_ms, index.thin_update(before_ms)(head) or head))
    return tuple(plans)


def collect_archive(
    store: ObjectStore, plan: ArchivePlan, now_ms: int, margin_ms: int, *, by: str, dry_run: bool
) -> ArchiveCollected:
    """Delete the planned objects; objects that were appended or merged since the plan are kept.

    Raises `CommitConflict` (other processes keep changing the index) and `Corruption` (the index is damaged).
    """
    remaining_index = plan.remaining_index
    if plan.deleted_objects and not dry_run:
        remaining_index = index.change(
            store, plan.head, index.thin_update(plan.before_ms), by=by, now_ms=instants.now_ms()
        )
    indexes, objects = _list_archive(store, plan.head)
    old = [info for info in index.replaced_indexes(indexes, margin_ms) if info.modified_ms <= now_ms - margin_ms]
    newer_indexes = [info for info in indexes if info not in old]
    oldest = next(INDEXES.read(store, newer_indexes[:1], plan.head.prefix), remaining_index)
    named = {archived.object for archive in (oldest, remaining_index) for archived in archive.objects} - (
        plan.deleted_objects - _named_objects(remaining_index)
    )
    unnamed = [info for info in objects if info.key not in named and info.modified_ms <= now_ms - margin_ms]
    goes = [*unnamed, *old]
    if not dry_run:
        # Indexes first, so that a remaining index never names a deleted object.
        for_each_concurrently(lambda info: store.delete(info.key), old)
        for_each_concurrently(lambda info: store.delete(info.key), unnamed)
    records = sum(archived.rows for archived in plan.head.objects if archived.object in plan.deleted_objects)
    return ArchiveCollected(
        remaining_index.topic,
        remaining_index.life,
        records,
        len(goes),
        total_bytes(goes),
        remaining_index.rows,
        len(remaining_index.objects),
        remaining_index.bytes,
    )


def _named_objects(archive: ArchiveIndex) -> frozenset[str]:
    return frozenset(archived.object for archived in archive.objects)


def _list_archive(store: ObjectStore, archive: ArchiveIndex) -> tuple[tuple[ObjectInfo, ...], tuple[ObjectInfo, ...]]:
    objects = (info for info in store.list(archive.prefix) if census.object_kind_of(info.key) is census.ARCHIVED)
    return INDEXES.listed(store, archive.prefix), tuple(objects)


def why_archived(store: ObjectStore, app: str, key: str) -> str:
    """Return a sentence that explains why an object of an input archive is kept; empty if it is not kept."""
    for head in index.iter_archives(store, app):
        if key in _named_objects(head):
            return f"the input archive of {head.topic} holds it, for as long as `input` under [retention] says"
        if key.startswith(keys.archive_indexes(head.prefix)):
            return f"it is an index of the input archive of {head.topic}: the newest is kept, older ones for an hour"
    return ""
